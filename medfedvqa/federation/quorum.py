"""Decides when a call to the sites ends although some of them have not answered."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from medfedvqa.federation.task_order import LAST

TAKEN_WITHIN = 5.0
"""Seconds in which a site that missed a call must take the next task. A site that does is waited for again."""

RECONNECT = 180.0
"""The most additional seconds for the first call of a restarted server: FLARE's sites wait for a minute
(`flare.executor.PATIENCE`) for the answer that the dead server owes them before they ask again."""


@dataclass(frozen=True)
class Quorum:
    """When one call ends."""

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
