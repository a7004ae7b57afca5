"""A lying server's mixtures and draws: it deals what it likes, and draws until a committee suits it."""

import hashlib
import itertools
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from lying_server import Answer, Liar, as_json, attempt_message, hex_message
from lying_views import Equations, Row, input_of
from untrained import Mixed

from audits import canonical
from medfedvqa.core import ACCURACY, MixOnShares, Tensors
from medfedvqa.models import shape_of
from privacy.secagg import TensorLayout, protocol
from privacy.secagg.channel import Session, joined
from privacy.secagg.committee import Beacon
from privacy.secagg.cut_and_choose import SETS, choice, set_seed
from privacy.secagg.protocol import deal_mix
from privacy.secagg.ring import Ring
from privacy.secagg.tuples import mask_key

KEY = 32
"""Bytes of a key in what is dealt."""

CONFIRMATION = len(b"confirmed") + 32
"""Bytes of the message that confirms a channel, and what the server said."""

Parts = dict[str, bytes]
Bend = Callable[["Deal", int, Parts], Parts]
"""What the dealer puts in the place of the honest parts of the set of this number, before it commits to it."""


@dataclass
class Deal:
    """One attempt at a mixture as its dealer plays it, step by step; `answers` are those of the last step."""

    server: Liar
    task: str
    round: int
    sites: tuple[str, ...]
    members: tuple[str, ...]
    number: int = 1
    bend: Bend = lambda deal, index, parts: parts
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
        for index in range(SETS):
            seeds = {member: set_seed(seed, self.label, index) for member, seed in self.seeds.items()}
            self.sets.append(self.bend(self, index, deal_mix(self.sites, self.members, self.layout, seeds)))
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
    def layout(self) -> TensorLayout:
        """What the job mixes."""
        method = self.server.job.build()
        how = method.on_shares[self.task]
        assert isinstance(how, MixOnShares)
        return how.layout(method.declared(shape_of(self.server.job.backbone)).task(self.task))

    def shifted(self, parts: Parts, site: str) -> Parts:
        """A half added to all numbers of one site's mixture."""
        start, end = (KEY * len(self.members) + 8 * size for size in (0, self.layout.size))
        part, correction = parts[site], np.frombuffer(parts[site][start:end], "<u8") + np.uint64(2**51)
        return {**parts, site: part[:start] + correction.tobytes() + part[end:]}

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


class Ears:
    """What every site unseals, by number of the attempt, hearer and sender."""

    def __init__(self) -> None:
        self.attempt = 0
        self._heard: dict[tuple[int, str, str], list[bytes]] = {}
        self._unsealed = Session.open

    @property
    def listening(self) -> Callable[[Session, bytes], bytes]:
        """`Session.open`, whose results are kept."""

        def unseal(session: Session, sealed: bytes) -> bytes:
            content = self._unsealed(session, sealed)
            self._heard.setdefault((self.attempt, session.me, session.peer), []).append(content)
            return content

        return unseal

    def shown(self, attempt: int, member: str, owner: str, size: int) -> list[bytes]:
        """What an owner of `size` numbers showed a member under its mask: unit vector, norm and accuracy."""
        pairs = itertools.pairwise(self._heard.get((attempt, member, owner), []))
        # What an owner shows follows what confirms the channel.
        return [content for before, content in pairs if (len(before), len(content)) == (CONFIRMATION, 8 * (size + 2))]


class Overheard(Ears):
    """What colluding members of mixtures learn together, over all jobs of a server."""

    def __init__(self) -> None:
        super().__init__()
        self.deals: list[tuple[int, Deal]] = []
        """With the number of the job."""
        self.mixed: list[tuple[int, Deal, str]] = []
        """The sites that have their mixtures."""
        self.public_keys: set[bytes] = set()

    def begin(self, job: int, deal: Deal) -> None:
        """The next attempt."""
        self.attempt = len(self.deals)
        self.deals.append((job, deal))

    def reveal(self, deal: Deal, sets: Collection[int]) -> None:
        """Mask keys that everybody knows: those of dealings whose seeds were shown."""
        self.public_keys |= _keys(deal, deal.seeds, sets)

    def exposed(self, colluders: Collection[str]) -> list[str]:
        """Sites of whose inputs something follows, from what members heard and from their own mixtures."""
        equations, shown = self._masked(colluders), self._shown(colluders)
        for job, deal, site in self.mixed:
            if site in colluders:
                equations.add(_mixture(job, deal, site, colluders))
        exposed = [owner for _, deal, owner, ring in shown if np.array_equal(ring, _planted(owner, deal.round))]
        # The difference of two inputs, or one mask twice.
        for (_, deal, owner, ring), (_, other_deal, other, other_ring) in itertools.combinations(shown, 2):
            if owner == other:
                apart = _planted(owner, deal.round) - _planted(other, other_deal.round)
                exposed += [owner] if np.array_equal(ring - other_ring, apart) else []
        return [*equations.exposed(), *exposed]

    def exposed_by_masks(self, deal: Deal, colluders: Collection[str]) -> list[str]:
        """Sites that one attempt exposes by what members heard, without their own mixtures."""
        return self._masked(colluders, deal).exposed()

    def _masked(self, colluders: Collection[str], only: Deal | None = None) -> Equations:
        """What honest owners showed, as equations of their inputs and of masks that colluders do not know."""
        known = set(self.public_keys)
        for _, deal in self.deals:
            known |= _keys(deal, deal.seeds.keys() & set(colluders), range(SETS))
        equations = Equations()
        for job, deal, owner, _ in self._shown(colluders):
            assert deal.index is not None
            part, row = deal.sets[deal.index][owner], {input_of(owner, job, deal.round): 1}
            # The shares of the mask that an owner used are those that were dealt to it.
            for seat in range(len(deal.members)):
                mask = "mask", part[KEY * seat : KEY * (seat + 1)]
                row[mask] = row.get(mask, 0) - 1
            if only in (None, deal):
                equations.add(row, {("mask", key) for key in known})
        return equations

    def _shown(self, colluders: Collection[str]) -> list[tuple[int, Deal, str, Ring]]:
        """What honest owners showed colluding members under their masks."""
        showings = {}
        for number, (job, deal) in enumerate(self.deals):
            for member, owner in itertools.product(
                set(colluders) & set(deal.members), set(deal.sites) - set(colluders)
            ):
                for content in self.shown(number, member, owner, deal.layout.size):
                    showings[content] = (job, deal, owner, np.frombuffer(content, "<u8"))
        return list(showings.values())


def _keys(deal: Deal, members: Collection[str], sets: Collection[int]) -> set[bytes]:
    """The mask keys that follow from the seeds of these members, in these sets."""
    sought = itertools.product(members, sets, range(len(deal.sites)))
    return {mask_key(set_seed(deal.seeds[member], deal.label, index), rank) for member, index, rank in sought}


def _mixture(job: int, deal: Deal, site: str, colluders: Collection[str]) -> Row:
    """A colluder's own mixture, as if it knew all weights; they are as good as random."""
    return {
        input_of(other, job, deal.round): int.from_bytes(
            hashlib.sha256(f"{job} {deal.label!r} {site} {other}".encode()).digest()[:7]
        )
        for other in deal.sites
        if other not in colluders
    }


def _planted(site: str, round: int) -> Ring:
    """What a site puts into a mixture, in the ring."""
    held = Mixed.holding(site, round)
    accuracy = float(held.pop(ACCURACY))
    return protocol._encoded(held, accuracy, TensorLayout.of({name: array.shape for name, array in held.items()}))


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
