"""The dealing of tuples for one attempt at a mixture: the sites' part and the server's.

The members send seeds: with the answer to the task whose uploads are mixed, or in a separate task for a later attempt.
The server makes several dealings from the seeds and shows their digests. Then the members open coins, which choose the
dealing that is used. The server reveals the seeds of all others, and the members compute these again. If an attempt
ends after the choice and before its use, the server reveals all of its seeds, so that nobody repeats the choice.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from audits import Gate, Tensors
from medfedvqa.core.on_shares import COIN, COIN_COMMITMENT, TUPLE_SEED, seeding, tossing
from medfedvqa.errors import FederationError
from medfedvqa.federation.aggregation_attempt import Attempt, as_array, bytes_by_name, from_array, hex_by_name
from medfedvqa.federation.site_state import Dealt, Saved, StateFile
from privacy.secagg import MisdealtError, SecureAggregationError, SiteError, TensorLayout
from privacy.secagg.channel import joined
from privacy.secagg.committee import NONCE_BYTES, Beacon, Nonce
from privacy.secagg.cut_and_choose import (
    SETS,
    Dealing,
    check_dealing,
    check_part,
    check_unused,
    choice,
    new_seed,
    set_seed,
)

if TYPE_CHECKING:
    from medfedvqa.federation.hub import Reply  # not at a site, which loads no server

COMMITTED, OPENED, UNUSED = "committed", "opened", "unused"
"""The arrays in which the server shows the commitments of all, everything that was opened since, and the previous
attempt's seeds if its dealing was not used."""

_TOSS = "toss of coins"
"""The text to which a coin is bound, in place of a job: a coin serves one toss."""

Ask = Callable[[str, Mapping[str, Tensors]], Mapping[str, "Reply"]]


@dataclass(frozen=True)
class CheckedDealing:
    """The parts of a dealing that passed a site's checks."""

    transcript: bytes
    """Everything that the server opened of the dealing; the sites compare it with each other."""
    seed: bytes
    """The seed from which this site, as a member, takes its shares; empty at other sites."""


@dataclass(frozen=True)
class DealingSite:
    """A member's part in the dealing of one job's mixtures. A repeated task gets the same bytes."""

    name: str
    gate: Gate
    file: StateFile

    def seed(self, task: str, saved: Saved, attempt: Attempt, message: Tensors, layout: TensorLayout) -> Tensors:
        """A seed for this attempt alone, and the hash of a coin.

        Raises `FederationError`, or `MisdealtError` if the previous dealing, which was not used, was wrong.
        """
        label, dealt = attempt.label(saved.round), saved.dealt
        if self.name not in attempt.members:
            raise FederationError("this site is not a member of the attempt, and no tuples are dealt to it")
        if dealt is None or dealt.attempt != label:
            if dealt is not None and dealt.attempt is not None:
                self._check_before(dealt, saved.round, attempt.number)
                self._check_unused(dealt, dealt.attempt, message, layout)
            dealt = _bound(_fresh(), saved.round, attempt)
            self.file.save(replace(saved, dealt=dealt))
        return self.gate.release(seeding(task), saved.round, self._offered(dealt))

    def check_shown(self, saved: Saved) -> None:
        """Check, before the site answers another mixed task, that the server has shown every dealing.

        Raises `MisdealtError` if an attempt ended after this site opened its coin.
        """
        if saved.dealt is not None and saved.dealt.committed is not None:
            raise MisdealtError("the server continues without showing a dealing that it did not use: refuse the job")

    def offered(self, saved: Saved) -> Saved:
        """The saved task with a seed and the hash of a coin in its answer, for the first attempt to mix it."""
        dealt = _fresh()
        return replace(saved, dealt=dealt, reply={**saved.reply, **self._offered(dealt)})

    def _offered(self, dealt: Dealt) -> Tensors:
        commitment = Nonce(_TOSS, self.name, dealt.coin).commitment
        return {TUPLE_SEED.name: _array(dealt.seed), COIN_COMMITMENT.name: _array(commitment)}

    def toss(self, task: str, saved: Saved, attempt: Attempt, message: Tensors) -> Tensors:
        """The site's coin, revealed for one attempt and one set of commitments only. Raises `FederationError`."""
        if self.name not in attempt.members:
            raise FederationError("this site is not a member of the attempt, and no tuples are dealt to it")
        if saved.dealt is not None and saved.dealt.attempt is None:
            saved = replace(saved, dealt=_bound(saved.dealt, saved.round, attempt))
        _, coins = _committed(message)
        dealt, committed = self._dealing_of(saved, attempt), _bytes_of(message, COMMITTED)
        if dealt.committed not in (None, committed):
            raise FederationError("the server showed this site different dealings of the attempt before")
        if coins.get(self.name) != Nonce(_TOSS, self.name, dealt.coin).commitment:
            raise FederationError("the dealing leaves out this site's own coin")
        if coins.keys() != set(attempt.members):
            raise FederationError("the dealing's coins are not those of exactly the attempt's members")
        self.file.save(replace(saved, dealt=replace(dealt, committed=committed)))
        return self.gate.release(tossing(task), saved.round, {COIN.name: _array(dealt.coin)})

    def checked(self, saved: Saved, attempt: Attempt, message: Tensors, layout: TensorLayout) -> CheckedDealing:
        """Check the dealing to this site.

        Raises `MisdealtError` if the dealing is wrong, or `FederationError` if the message is malformed.
        """
        (sets, coins), opened = _committed(message), _OpenedDealing.read(message)
        label = attempt.label(saved.round)
        if coins.keys() != set(attempt.members):
            raise FederationError("the dealing's coins are not those of exactly the attempt's members")
        try:
            index = choice(Beacon.of(_TOSS, coins, opened.coins).value)
        except SecureAggregationError as error:
            raise MisdealtError(f"a coin of the dealing is not as it was committed to: {error}") from None
        check_part(self.name, attempt.dealt, opened.parts, sets[index])
        seed = b""
        if self.name in attempt.members:
            dealt = self._dealing_of(saved, attempt)
            if dealt.committed != _bytes_of(message, COMMITTED) or opened.coins[self.name] != dealt.coin:
                raise MisdealtError("the dealing is not the one for which this site has opened its coin")
            own_seed = self.name, dealt.seed
            check_dealing(attempt.sites, attempt.members, layout, label, own_seed, opened.seeds, sets, index)
            seed = set_seed(dealt.seed, label, index)
        return CheckedDealing(joined(_bytes_of(message, COMMITTED), _bytes_of(message, OPENED)), seed)

    def _check_before(self, dealt: Dealt, round: int, number: int) -> None:
        if (dealt.round, dealt.number) >= (round, number):
            raise FederationError("this site gave its seed to another attempt of this number: each needs its own seed")

    def _check_unused(self, dealt: Dealt, label: bytes, message: Tensors, layout: TensorLayout) -> None:
        """Check the unused dealing of the previous attempt, if this member opened its coin for it."""
        if dealt.committed is None:
            return
        _, _, sites, members, _ = json.loads(label)
        sets, _ = _committed({COMMITTED: np.frombuffer(dealt.committed, np.uint8)})
        seeds = from_array(message, UNUSED, bytes_by_name, "show the seeds of the dealing before")
        check_unused(sites, members, layout, label, (self.name, dealt.seed), seeds, sets)

    def _dealing_of(self, saved: Saved, attempt: Attempt) -> Dealt:
        if saved.dealt is None or saved.dealt.attempt != attempt.label(saved.round):
            raise FederationError("this site gave no seed to this attempt, or the seed is used already")
        return saved.dealt


class Dealer:
    """The server's part in one job."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._unused: Tensors = {}
        self._offers: dict[str, Tensors] = {}

    def offered(self, answers: Mapping[str, Tensors]) -> None:
        """Take the seeds for the first attempt from the answers that are to be mixed."""
        self._offers = dict(answers)

    def deal(self, task: str, round: int, attempt: Attempt, layout: TensorLayout) -> dict[str, Tensors]:
        """The message to each site of the attempt.

        Raises `SiteError` naming a member that sent no seed, or whose coin differs from its commitment.
        """
        label, members = attempt.label(round), attempt.members
        described = {"attempt": attempt.message()["attempt"]}
        offers, self._offers = self._offers, {}  # A seed serves one attempt.
        if not offers:
            offers = self._answers(seeding(task), members, {**described, **self._unused})
        seeds, commitments = _values(members, offers, TUPLE_SEED.name), _values(members, offers, COIN_COMMITMENT.name)
        dealing = Dealing.of(attempt.sites, members, layout, label, seeds)
        committed = as_array({"sets": [digest.hex() for digest in dealing.digests], "coins": hex_by_name(commitments)})
        self._unused = {UNUSED: as_array(hex_by_name(seeds))}
        tossed = self._answers(tossing(task), members, {**described, COMMITTED: committed})
        coins = _values(members, tossed, COIN.name)
        chosen = dealing.chosen(choice(Beacon.of(_TOSS, commitments, coins).value))
        self._unused = {}
        revealed = {member: [seed.hex() for seed in seeds] for member, seeds in chosen.revealed.items()}
        opened = as_array({"coins": hex_by_name(coins), "parts": hex_by_name(chosen.digests), "seeds": revealed})
        return {
            site: {**replace(attempt, dealt=part).message(), COMMITTED: committed, OPENED: opened}
            for site, part in chosen.parts.items()
        }

    def _answers(self, task: str, members: tuple[str, ...], message: Tensors) -> dict[str, Tensors]:
        replies = self._ask(task, dict.fromkeys(members, message))
        return {member: reply.tensors for member, reply in replies.items()}


@dataclass(frozen=True)
class _OpenedDealing:
    """The server's openings of a dealing: the members' coins, the digests of all parts, and the unused seeds."""

    coins: dict[str, bytes]
    parts: dict[str, bytes]
    seeds: dict[str, list[bytes]]

    @classmethod
    def read(cls, message: Tensors) -> "_OpenedDealing":
        def parse(fields: Any) -> _OpenedDealing:
            seeds = {str(site): [bytes.fromhex(seed) for seed in fields["seeds"][site]] for site in fields["seeds"]}
            return cls(bytes_by_name(fields["coins"]), bytes_by_name(fields["parts"]), seeds)

        return from_array(message, OPENED, parse, "hold what was opened of a dealing")


def _committed(message: Tensors) -> tuple[list[bytes], dict[str, bytes]]:
    """The digests of the dealings, and the members' commitments to their coins."""

    def parse(fields: Any) -> tuple[list[bytes], dict[str, bytes]]:
        return [bytes.fromhex(digest) for digest in fields["sets"]], bytes_by_name(fields["coins"])

    sets, coins = from_array(message, COMMITTED, parse, "hold the digests of a dealing")
    if len(sets) != SETS:
        raise FederationError(f"a dealer makes {SETS} dealings, of which one is used")
    return sets, coins


def _fresh() -> Dealt:
    return Dealt(new_seed(), secrets.token_bytes(NONCE_BYTES))


def _bound(dealt: Dealt, round: int, attempt: Attempt) -> Dealt:
    """The dealing, bound to this attempt and no other."""
    return replace(dealt, attempt=attempt.label(round), round=round, number=attempt.number)


def _array(value: bytes) -> NDArray[np.int64]:
    return np.frombuffer(value, "<i8")


def _values(members: tuple[str, ...], answers: Mapping[str, Tensors], name: str) -> dict[str, bytes]:
    """The 32 bytes that each member sent. Raises `SiteError` naming a member that sent none."""
    arrays = {site: np.asarray(tensors.get(name, ()), "<i8") for site, tensors in answers.items()}
    for member in members:
        if member not in arrays or arrays[member].shape != (4,):
            raise SiteError(member, "took no part in the dealing of tuples: repeat the round without it")
    return {member: arrays[member].tobytes() for member in members}


def _bytes_of(message: Tensors, name: str) -> bytes:
    return message[name].tobytes()
