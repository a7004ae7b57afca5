"""The most that patients may lose, and whether rounds of a plan fit into it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from privacy.accounting import fitting, spent
from privacy.ledger_journal import BudgetRefused
from privacy.ledger_replay import PlannedTask
from privacy.mechanisms import DPEvent


@dataclass(frozen=True)
class Limits:
    """The most that a patient may lose: epsilon over all jobs and by one job, both at `delta`; None is no limit.

    Raises `ValueError` unless the epsilons are positive and finite and `delta` lies between 0 and 1.
    """

    max_epsilon: float | None
    delta: float
    max_epsilon_per_job: float | None = None

    def __post_init__(self) -> None:
        limits = [epsilon for epsilon in (self.max_epsilon, self.max_epsilon_per_job) if epsilon is not None]
        if not all(0 < epsilon < math.inf for epsilon in limits) or not 0 < self.delta < 1:
            raise ValueError("limits on epsilon are positive and finite, and delta lies between 0 and 1")


def by_round(plan: Sequence[PlannedTask]) -> list[list[DPEvent]]:
    """The events of each round of a plan."""
    numbers = sorted({task.round for task in plan})
    return [[event for task in plan if task.round == number for event in task.events] for number in numbers]


def check_fits(
    bounds: Iterable[tuple[str, float | None, list[list[DPEvent]]]],
    rounds: Sequence[Sequence[DPEvent]],
    delta: float,
    history: Callable[[], str],
) -> None:
    """Whether these rounds more, beside each of a bound's exposures, stay within it; `history` tells what came before.

    A bound is whose it is, its epsilon or None, and the exposures. Raises `BudgetRefused`.
    """
    new_events = [event for events in rounds for event in events]
    for who, most, exposures in bounds:
        if most is None:
            continue
        epsilon = max(spent([*events, *new_events], delta).epsilon for events in exposures)
        if epsilon > most:
            fit = min(fitting(most, delta, events, rounds) for events in exposures)
            raise BudgetRefused(
                f"{who} would spend epsilon {epsilon:.3f} of the {most:g} that the site allows at delta {delta:g}; "
                f"{fit} of {len(rounds)} rounds would fit. So far: {history()}"
            )
