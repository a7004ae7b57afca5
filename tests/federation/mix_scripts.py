"""Random scripts against mixtures: the server deals what it likes, and some members show each other what they hear."""

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from lying_dealer import Deal, Parts, bent
from lying_server import Answer
from lying_views import PRIME, Equations, Row, input_of
from random_scripts import Script, TinyMix

from medfedvqa.core import ACCURACY
from privacy.secagg import TensorLayout, protocol
from privacy.secagg.channel import Session
from privacy.secagg.cut_and_choose import SETS, set_seed
from privacy.secagg.ring import Ring
from privacy.secagg.tuples import mask_key

NUMBERS = 4
INPUTS = NUMBERS + 2
"""Of a site, in a mixture: the numbers, their norm, the accuracy."""
CONFIRMATION = len(b"confirmed") + 32
"""Bytes of the message that confirms a channel, and what the server said."""
PUBLIC = {"tuple_seed", "coin_commitment", "coin", "fault", "shared_bytes", "commitment", "nonce", "beacon", "epsilon"}
"""All that the server is sent in a job that mixes."""


class Ears:
    """What every site unseals, by number of the attempt, hearer and sender."""

    def __init__(self) -> None:
        self.attempt = 0
        self.heard: dict[tuple[int, str, str], list[bytes]] = {}
        self._unsealed = Session.open

    @property
    def listening(self) -> Callable[[Session, bytes], bytes]:
        """`Session.open`, whose results are kept."""

        def unseal(session: Session, sealed: bytes) -> bytes:
            content = self._unsealed(session, sealed)
            self.heard.setdefault((self.attempt, session.me, session.peer), []).append(content)
            return content

        return unseal


@dataclass
class MixScript(Script):
    """The server of a mixture, whose colluders are members or owners that do what they are told."""

    ears: Ears = field(default_factory=Ears)
    mixes = True

    def __post_init__(self) -> None:
        self.deals: list[tuple[int, Deal]] = []
        self.mixed: list[tuple[int, Deal, str]] = []
        self.public_keys: set[bytes] = set()
        self.number = 0
        super().__post_init__()

    def begin_job(self) -> None:
        self.number = 0
        super().begin_job()

    # Moves.

    def aggregate(self, task: str, round: int, group: tuple[str, ...]) -> None:
        """One attempt at a mixture, as far as it comes."""
        if task == "evaluate":
            self.ask_task(task, round, group)
            return
        self.number = self.rng.randint(0, 9) if self.lying(0.4) else self.number + 1
        deal = Deal(self.server, task, round, group, self.members(group, round), self.number, self.bend)
        if self.deals and self.lying(0.2):
            deal.name = self.rng.choice(self.deals)[1].name
        if self.lying(0.2):
            deal.members = tuple(sorted(self.rng.sample(group, max(1, len(group) - 1))))
        unused = None if self.lying(0.3) or not self.deals else self.deals[-1][1].seeds
        self.ears.attempt = len(self.deals)
        self.deals.append((self.jobs, deal))
        reached = deal.seed(unused) and deal.toss()
        self.heard(deal.answers)
        self.note(f"{task} {round} deal {group} {deal.members} {deal.number}: {reached} {deal.codes}")
        if not reached or self.lying(0.5):
            self.reveal(deal, range(SETS) if reached else ())
            return
        self.mix(deal)
        if self.lying(0.4):
            self.mix(deal)

    def mix(self, deal: Deal) -> None:
        """The last step; with a lie, under other parts than were committed to, or with other words for some."""
        assert deal.index is not None
        parts = deal.sets[deal.index]
        if self.lying(0.3):
            parts = self.bend_parts(parts)
        messages = deal.mixing_messages(parts)
        if self.lying(0.3):
            site = self.rng.choice(deal.sites)
            messages[site] = messages[site] | {"opened": messages[site]["committed"]}
        if self.lying(0.3):
            messages.pop(self.rng.choice(deal.sites))
        deal.answers = self.server.ask(f"{deal.task}/mix", deal.round, messages)
        self.reveal(deal, [index for index in range(SETS) if index != deal.index])
        self.heard(deal.answers)
        self.mixed += [(self.jobs, deal, site) for site in deal.completed]
        self.note(f"{deal.task}/mix {deal.round}: {deal.completed} {deal.codes}")

    def bend(self, index: int, parts: Parts) -> Parts:
        """What the dealer commits to in the place of the honest parts."""
        return self.bend_parts(parts) if self.lying(0.15) else parts

    def bend_parts(self, parts: Parts) -> Parts:
        """The parts of an earlier set, or a vector added, or two sites' parts exchanged."""
        earlier = [each for _, deal in self.deals for each in deal.sets if each.keys() == parts.keys()]
        site, other = self.rng.sample(sorted(parts), 2)
        kind = self.rng.choice(["reused", "added", "exchanged"])
        if kind == "reused" and earlier:
            return self.rng.choice(earlier)
        if kind == "exchanged":
            return {**parts, site: parts[other], other: parts[site]}
        members = len(parts) if self.setting.committee is None else min(len(parts), self.setting.committee)
        return {**parts, site: bent(parts[site], members, NUMBERS, np.full(NUMBERS, 2**51))}

    def reveal(self, deal: Deal, sets: range | list[int] | tuple[()]) -> None:
        """Mask keys that everybody knows: those of dealings whose seeds were shown."""
        for index, seed, rank in itertools.product(sets, deal.seeds.values(), range(len(deal.sites))):
            self.public_keys.add(mask_key(set_seed(seed, deal.label, index), rank))

    def heard(self, answers: dict[str, Answer]) -> None:
        """Remembers who refuses, and that the server was sent nothing but what is public."""
        self.hear(answers)
        sent = {name for answer in answers.values() for name in answer.tensors}
        assert sent <= PUBLIC, f"script {self.seed}: the server was sent {sorted(sent - PUBLIC)}"

    # Checks.

    def exposed(self) -> list[str]:
        equations, shown = self.masked(), self.shown()
        for job, deal, site in self.mixed:
            if site in self.colluders:
                equations.add(self.mixture(job, deal, site))
        return [*equations.exposed(), *self.exposed_in_numbers(shown)]

    def exposed_by_masks(self, deal: Deal) -> list[str]:
        """Sites that one attempt exposes by what members heard, without their own mixtures."""
        return self.masked(deal).exposed()

    def masked(self, only: Deal | None = None) -> Equations:
        """What honest owners showed, as equations of their inputs and of masks that colluders do not know."""
        equations, known = Equations(), {("mask", key) for key in self.public_keys | self.keys_of_colluders()}
        for job, deal, owner, _ in self.shown():
            row: Row = {input_of(owner, job, deal.round): 1}
            for key in self.keys(deal, owner):
                row["mask", key] = row.get(("mask", key), 0) + PRIME - 1
            if only in (None, deal):
                equations.add(row, known)
        return equations

    def shown(self) -> list[tuple[int, Deal, str, Ring]]:
        """What honest owners showed colluding members under their masks."""
        showings = {}
        for number, (job, deal) in enumerate(self.deals):
            for member, owner in itertools.product(
                self.colluders & set(deal.members), set(deal.sites) - self.colluders
            ):
                heard = self.ears.heard.get((number, member, owner), [])
                for before, content in itertools.pairwise(heard):
                    # What an owner shows follows what confirms the channel.
                    if (len(before), len(content)) == (CONFIRMATION, 8 * INPUTS):
                        showings[content] = (job, deal, owner, np.frombuffer(content, "<u8"))
        return list(showings.values())

    def keys(self, deal: Deal, owner: str) -> list[bytes]:
        """Of the shares of the mask that an owner used: those that were dealt to it."""
        assert deal.index is not None
        part = deal.sets[deal.index][owner]
        return [part[32 * seat : 32 * (seat + 1)] for seat in range(len(deal.members))]

    def keys_of_colluders(self) -> set[bytes]:
        """Those that follow from the seeds of colluding members."""
        return {
            mask_key(set_seed(deal.seeds[member], deal.label, index), rank)
            for _, deal in self.deals
            for member in self.colluders & deal.seeds.keys()
            for index in range(SETS)
            for rank in range(len(deal.sites))
        }

    def mixture(self, job: int, deal: Deal, site: str) -> Row:
        """A colluder's own mixture, as if it knew all weights; they are as good as random."""
        return {
            input_of(other, job, deal.round): int.from_bytes(
                hashlib.sha256(f"{job} {deal.label!r} {site} {other}".encode()).digest()[:7]
            )
            for other in deal.sites
            if other not in self.colluders
        }

    def exposed_in_numbers(self, shown: list[tuple[int, Deal, str, Ring]]) -> list[str]:
        """Honest owners of whom a member saw the input itself, or the difference of two inputs, or one mask twice."""
        exposed = [owner for _, deal, owner, ring in shown if np.array_equal(ring, planted(owner, deal.round))]
        for one, other in itertools.combinations(shown, 2):
            if one[2] == other[2]:
                apart = planted(one[2], one[1].round) - planted(other[2], other[1].round)
                exposed += [one[2]] if np.array_equal(one[3] - other[3], apart) else []
        return exposed


def planted(site: str, round: int) -> Ring:
    """What a site puts into a mixture, in the ring."""
    held = TinyMix.holding(site, round)
    return protocol._encoded(
        {"prompt.x": held["prompt.x"]}, float(held[ACCURACY]), TensorLayout.of({"prompt.x": (NUMBERS,)})
    )
