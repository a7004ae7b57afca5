"""A lying server's mixtures and draws: it deals what it likes, and draws until a committee suits it."""

import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from lying_server import Answer, Liar, as_json, attempt_message, hex_message

from audits import canonical
from medfedvqa.core import MixOnShares, Tensors
from medfedvqa.federation.job import JobSpec
from medfedvqa.models import shape_of
from privacy.secagg import TensorLayout
from privacy.secagg.channel import joined
from privacy.secagg.committee import Beacon
from privacy.secagg.cut_and_choose import SETS, choice, set_seed
from privacy.secagg.protocol import deal_mix

KEY = 32
"""Bytes of a key in what is dealt."""

Parts = dict[str, bytes]
Bend = Callable[[int, Parts], Parts]
"""What the dealer puts in the place of the honest parts of one set, before it commits to it."""


def honest(index: int, parts: Parts) -> Parts:
    """Nothing is bent."""
    return parts


def mixed_layout(job: JobSpec, task: str) -> TensorLayout:
    """What the job mixes."""
    method = job.build()
    how = method.on_shares[task]
    assert isinstance(how, MixOnShares)
    return how.layout(method.declared(shape_of(job.backbone)).task(task))


@dataclass
class Deal:
    """One attempt at a mixture as its dealer plays it, step by step; `answers` are those of the last step."""

    server: Liar
    task: str
    round: int
    sites: tuple[str, ...]
    members: tuple[str, ...]
    number: int = 1
    bend: Bend = honest
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    seeds: dict[str, bytes] = field(default_factory=dict)
    sets: list[Parts] = field(default_factory=list)
    """The parts of each set, bent or not."""
    index: int | None = None
    """Which set the coins chose."""
    answers: dict[str, Answer] = field(default_factory=dict)

    def play(self, unused: Mapping[str, bytes] | None = None) -> "Deal":
        """All steps, as far as the members go along. `unused`: the seeds of the attempt before."""
        if self.seed(unused) and self.toss():
            self.mix()
        return self

    def seed(self, unused: Mapping[str, bytes] | None = None) -> bool:
        """The members send seeds, from which the sets are made; whether all have."""
        shown = {} if unused is None else {"unused": as_json({name: seed.hex() for name, seed in unused.items()})}
        self.answers = self.server.tell(f"{self.task}/seed", self.round, self.members, self._described() | shown)
        self.seeds = self._sent("tuple_seed")
        self._coins = self._sent("coin_commitment")
        if self.seeds.keys() != set(self.members):
            return False
        layout = mixed_layout(self.server.job, self.task)
        for index in range(SETS):
            seeds = {member: set_seed(seed, self.label, index) for member, seed in self.seeds.items()}
            self.sets.append(self.bend(index, deal_mix(self.sites, self.members, layout, seeds)))
        return True

    def toss(self) -> bool:
        """The members open their coins for what the dealer has committed to; whether all have."""
        sets = [_digest_of(parts).hex() for parts in self.sets]
        self.committed = as_json({"sets": sets, "coins": _hex(self._coins)})
        message = self._described() | {"committed": self.committed}
        self.answers = self.server.tell(f"{self.task}/coin", self.round, self.members, message)
        self.opened = self._sent("coin")
        if self.opened.keys() != set(self.members):
            return False
        self.index = choice(Beacon.of("toss of coins", self._coins, self.opened).value)
        return True

    def mix(self, parts: Parts | None = None) -> dict[str, Answer]:
        """All sites mix with what is dealt to them: the chosen set, or other `parts`."""
        messages = self.mixing_messages(parts or self.sets[self.index or 0])
        self.answers = self.server.ask(f"{self.task}/mix", self.round, messages)
        return self.answers

    def mixing_messages(self, parts: Parts) -> dict[str, Tensors]:
        """What each site is sent, with the seeds of all sets that were not chosen."""
        others = [index for index in range(SETS) if index != self.index]
        shown = {m: [set_seed(seed, self.label, index).hex() for index in others] for m, seed in self.seeds.items()}
        digests = {site: hashlib.sha256(part).digest() for site, part in parts.items()}
        opened = as_json({"coins": _hex(self.opened), "parts": _hex(digests), "seeds": shown})
        common = {"committed": self.committed, "opened": opened}
        return {site: self._described(parts[site]) | common for site in self.sites}

    @property
    def label(self) -> bytes:
        """What names the attempt in all that sites derive for it."""
        return canonical([self.round, self.name, list(self.sites), list(self.members), self.number])

    @property
    def codes(self) -> set[str]:
        """Of the refusals of the last step."""
        return {answer.code for answer in self.answers.values() if answer.code}

    @property
    def completed(self) -> list[str]:
        """The sites that have their mixture."""
        return [site for site, answer in self.answers.items() if int(answer.tensors.get("fault", 0)) < 0]

    def _described(self, dealt: bytes = b"") -> Tensors:
        return attempt_message(self.name, self.sites, self.members, self.number, dealt)

    def _sent(self, array: str) -> dict[str, bytes]:
        arrays = {site: answer.tensors.get(array) for site, answer in self.answers.items()}
        return {site: np.asarray(sent, "<i8").tobytes() for site, sent in arrays.items() if sent is not None}


def _digest_of(parts: Parts) -> bytes:
    digests = [piece for site in sorted(parts) for piece in (site.encode(), hashlib.sha256(parts[site]).digest())]
    return hashlib.sha256(joined(b"medfedvqa dealing 1", b"set", *digests)).digest()


def _hex(values: Mapping[str, bytes]) -> dict[str, str]:
    return {name: values[name].hex() for name in sorted(values)}


def bent(part: bytes, members: int, size: int, vector: np.ndarray) -> bytes:
    """A site's part with a vector of ring elements, [size], added to the correction of its mixture."""
    start, end = members * KEY, members * KEY + 8 * size
    correction = np.frombuffer(part[start:end], "<u8") + vector.astype(np.uint64)
    return part[:start] + correction.tobytes() + part[end:]


def draw(server: Liar, round: int, sites: Collection[str]) -> tuple[dict[str, bytes], set[str]]:
    """One whole draw of a committee: the beacons by site, and the codes of refusals on the way."""
    codes: set[str] = set()

    def step(task: str, names: Collection[str], array: str, message: dict[str, np.ndarray]) -> dict[str, bytes]:
        answers = server.tell(task, round, names, message)
        codes.update(answer.code for answer in answers.values() if answer.code)
        return {site: answer.tensors[array].tobytes() for site, answer in answers.items() if array in answer.tensors}

    commitments = step("committee/commit", sites, "commitment", {})
    nonces = step("committee/open", sorted(commitments), "nonce", hex_message("commitments", commitments))
    return step("committee/check", sorted(nonces), "beacon", hex_message("nonces", nonces)), codes
