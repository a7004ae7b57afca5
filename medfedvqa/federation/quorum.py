"""When a call to the sites ends although some have not answered, and which sites compute on shares for all."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from medfedvqa.errors import FederationError
from medfedvqa.federation.task_order import LAST
from privacy.secagg.committee import Beacon, colluding, threshold

TAKEN_WITHIN = 5.0
"""Seconds in which a site that missed a call must take the next task. A site that does is waited for again."""

RECONNECT = 180.0
"""The most additional seconds for the first call of a restarted server: FLARE's sites wait for a minute
(`flare.executor.PATIENCE`) for the answer that the dead server owes them before they ask again."""


@dataclass(frozen=True)
class Quorum:
    """The conditions under which one call ends."""

    answers: int | None = None
    """The call ends with this many answers; None: only the sites' number and `seconds` end it."""
    seconds: float | None = None
    """The call ends after this time; None: there is no limit."""
    absent: frozenset[str] = frozenset()
    """Sites that missed the call before: after `TAKEN_WITHIN` only those that have taken the task are waited for."""

    def reached(self, answers: int, seconds: float) -> bool:
        """Whether the call ends with this many answers after this time."""
        enough = self.answers is not None and answers >= self.answers
        return enough or (self.seconds is not None and seconds >= self.seconds)

    def extended(self, seconds: float) -> "Quorum":
        """This quorum with more time, if it has a time limit."""
        return self if self.seconds is None else replace(self, seconds=self.seconds + seconds)

    def excused(self, taken: Collection[str], seconds: float) -> set[str]:
        """The absent sites that need not be waited for after this time; `taken`: the sites that took the task."""
        return set(self.absent) - set(taken) if seconds >= TAKEN_WITHIN else set()


NOBODY_MISSES = Quorum()
"""Every site must answer, however long it takes."""


@dataclass(frozen=True)
class QuorumRule:
    """A job's rule for sites that do not answer."""

    least: int = 1
    """The job continues with at least this many answers."""
    wait_for: int | None = None
    """A call ends with this many answers; None: it waits for all sites."""
    round_timeout: float | None = None
    """A call ends after this many seconds; None: there is no limit."""
    rounds: int = 1
    """The rounds of the job's plan."""
    rejoins: bool = False
    """Whether a site that missed a call takes part in the next; if not, it takes no further part."""
    outlives_refusals: bool = False
    """Whether the job continues without a site that refuses, while as many are left as it needs."""

    def of(self, task: str, absent: Collection[str]) -> Quorum:
        """The quorum of a call. The evaluation waits for all sites, for as long as all rounds: in it a site may train
        alone."""
        if task != LAST:
            return Quorum(self.wait_for, self.round_timeout, frozenset(absent))
        seconds = None if self.round_timeout is None else self.round_timeout * self.rounds
        return Quorum(None, seconds, frozenset(absent))

    def least_of(self, task: str, called: int) -> int:
        """The fewest answers with which the job continues after a call to `called` sites: 1 in the evaluation, which
        changes no model. A method whose sites rejoin may call fewer than `least`; then all of them must answer."""
        if task == LAST:
            return 1
        return min(self.least, called) if self.rejoins else self.least


Protocol = Literal["mix", "mean", "sum"]
"""A mixture by CrypTen, a mean under masks, or a sum by CrypTen from which the mean follows."""


@dataclass(frozen=True)
class MembersRule:
    """The rule that server and sites both follow, so that the server cannot choose the members.

    The members are all of the `named` sites; without these, all sites if there are at most `size`, else `size` sites
    that the `beacon` draws anew for each round.
    """

    size: int
    named: tuple[str, ...] = ()
    beacon: Beacon | None = None

    def needs_draw(self, sites: tuple[str, ...]) -> bool:
        """Whether the members among these sites depend on a draw that has not been made."""
        return not self.named and len(sites) > self.size and self.beacon is None

    def members(self, sites: tuple[str, ...], round: int) -> tuple[str, ...]:
        """The members of an attempt of these sites, in order of names.

        All attempts of a round have the same members; the next sites in the draw replace those that fell out. Raises
        `FederationError` if a necessary draw is missing, or one of the named sites.
        """
        if missing := sorted(set(self.named) - set(sites)):
            raise FederationError(f"{', '.join(missing)} of the named committee is missing: the job cannot continue")
        if self.named:
            return self.named
        if len(sites) <= self.size:
            return sites
        if self.beacon is None or not set(sites) <= set(self.beacon.sites):
            raise FederationError(f"no committee was drawn from these sites, and only {self.size} of them may compute")
        return self.beacon.committee(round, self.size, set(self.beacon.sites) - set(sites))

    def sentence(self, sites: tuple[str, ...], members: tuple[str, ...], protocol: Protocol) -> str:
        """A sentence for the log: who computes, how they were chosen, and how many colluding sites could open what."""
        if protocol != "mean":
            enough, could = len(members), f"all {len(members)} of them together could open every input"
        else:
            enough = 2 * threshold(len(members)) - len(members)
            could = f"{enough} of them together with the server could open single uploads"
        if self.named:
            return f"computed by {', '.join(members)}, named by the sites' policies: {could}"
        if self.beacon is None or len(sites) <= self.size:
            return f"computed by all of them: {could}"
        participants, dropouts = len(self.beacon.sites), len(self.beacon.sites) - len(sites)
        chances = (
            f"{100 * colluding(participants, colluders, len(members), enough, dropouts):.2g} % if {colluders}"
            for colluders in (max(1, participants // 10), participants // 3)
        )
        return (
            f"computed by {', '.join(members)}, drawn for this round: {could}; this many collude in "
            f"{', '.join(chances)} of the {participants} sites that drew do"
        )
