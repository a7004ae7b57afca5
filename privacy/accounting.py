"""What training on patients has cost: epsilon replayed from recorded events by two independent accountants.

Neighbours differ by one patient, added or removed. Sources: Mironov, Talwar and Zhang, "Renyi Differential Privacy of
the Sampled Gaussian Mechanism", 2019, and Gopi, Lee and Wutschitz, "Numerical Composition of Differential Privacy",
2021, both as implemented in Opacus; Bu, Dong, Long and Su, "Deep Learning with Gaussian Differential Privacy", 2020.
"""

import math
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from privacy.errors import PrivacyError

LARGE_ORDERS = (72, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024)
ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 64), *LARGE_ORDERS)
"""Renyi orders: Opacus' own, and larger ones that bind where the noise is large (above 1024 binomials overflow)."""
LEAST_NOISE, MOST_NOISE = 1e-2, 1e4
"""Below the first every epsilon is in the thousands: taken as infinite. Noise above the second counts as the second,
which never understates. Outside of these the series behind RDP take minutes or do not converge."""
PRV_ERROR = 0.01
"""Discretisation error of PRV's epsilon, Opacus' default ..."""
PRV_RELATIVE_ERROR = 1 / 500
"""... or this share of RDP's epsilon where that is more, so that large epsilons do not take minutes."""
PRV_MOST_EPSILON, PRV_MOST_STEPS = 1e3, 10**6
"""Beyond these PRV would need more memory than its figure is worth."""
CALIBRATED_DIGITS = 4
"""Significant digits of a calibrated noise multiplier: neighbours differ by at most a thousandth."""

Canonical = tuple[tuple[float, float, int], ...]
"""(noise, rate, steps), sorted, each pair of noise and rate once: the history that Opacus' accountants take."""


class AccountingError(PrivacyError):
    """Parameters outside of what can be accounted for."""


@dataclass(frozen=True)
class DPEvent:
    """`steps` times the Gaussian mechanism on a Poisson sample of patients.

    Each patient takes part with probability `rate` (1: everybody); the noise has a standard deviation of `noise`
    times the sensitivity. Raises `AccountingError` unless 0 < rate <= 1, noise is finite and above 0, and steps >= 1.
    """

    rate: float
    noise: float
    steps: int = 1

    def __post_init__(self) -> None:
        if not (_is_number(self.rate) and 0 < self.rate <= 1):
            raise AccountingError("a sampling rate is a probability above 0: give a number in (0, 1]")
        if not (_is_number(self.noise) and self.noise > 0):
            raise AccountingError("a noise multiplier of 0 or less protects nothing: give a finite number above 0")
        if type(self.steps) is not int or self.steps < 1:
            raise AccountingError("an event has happened: give its steps as a whole number from 1")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers that survive JSON exactly."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DPEvent":
        """The event that `to_dict` wrote. Raises `AccountingError` on a missing, unknown or unfit value."""
        if set(values) != {"rate", "noise", "steps"}:
            raise AccountingError("an event is written as exactly rate, noise and steps: add or remove fields")
        return cls(**values)


@dataclass(frozen=True)
class Spent:
    """What events have cost together.

    `epsilon` binds: the smaller of two upper bounds at `delta`, `rdp` (Renyi accountant) and `prv` (privacy random
    variables, discretisation error included; infinite where it cannot be computed).
    `mu`: Gaussian DP, exact if everybody took part in each step; otherwise its central limit approximation, which is
    asymptotic in the number of steps and no bound.
    """

    epsilon: float
    rdp: float
    prv: float
    mu: float
    delta: float


def spent(events: Iterable[DPEvent], delta: float) -> Spent:
    """The cost of all `events` together, whatever their order and grouping; all zero without any.

    Raises `AccountingError` unless 0 < delta < 1.
    """
    _check_delta(delta)
    return _spent(_canonical(events), float(delta))


def calibrate(target: float, delta: float, plan: Callable[[float], Sequence[DPEvent]]) -> float:
    """The smallest noise multiplier, of `CALIBRATED_DIGITS` digits, whose `plan` costs at most `target` at `delta`.

    `plan` maps a noise multiplier to its events; more noise must not cost more. Sites with
    the same package versions get the same result.
    Raises `AccountingError` if no multiplier between 0.01 and 10,000 reaches the target, and as `spent` does.
    """
    _check_delta(delta)
    per_decade = 9 * 10 ** (CALIBRATED_DIGITS - 1)
    least_decade = round(math.log10(LEAST_NOISE))
    grid = range(round(math.log10(MOST_NOISE / LEAST_NOISE)) * per_decade + 1)

    def noise(index: int) -> float:
        decade, step = divmod(index, per_decade)
        # Parsed, not computed: the nearest float to the decimal on every machine.
        return float(f"{per_decade // 9 + step}e{decade + least_decade - CALIBRATED_DIGITS + 1}")

    def fits(index: int) -> bool:
        return spent(plan(noise(index)), delta).epsilon <= target

    def surely_fits(index: int) -> bool:
        return _rdp(_canonical(plan(noise(index))), delta) <= target

    # RDP is never below the binding figure, so where it fits on a coarse grid is a start for the slower accountant.
    stride = per_decade // 100
    most = stride * bisect_left(grid[::stride], True, key=surely_fits)
    if most not in grid and not fits(most := grid[-1]):
        raise AccountingError("no amount of noise reaches this target: raise epsilon, or plan fewer releases")
    while (least := max(0, most - stride)) > 0 and fits(least):
        most, stride = least, 2 * stride
    return noise(bisect_left(grid, True, least, most, key=fits))


def fitting(limit: float, delta: float, already: Sequence[DPEvent], rounds: Sequence[Sequence[DPEvent]]) -> int:
    """How many of `rounds`, from the first, cost at most `limit` at `delta` together with `already`.

    Raises `AccountingError` as `spent` does.
    """
    _check_delta(delta)

    def cost(count: int) -> float:
        return spent([*already, *(event for events in rounds[:count] for event in events)], delta).epsilon

    # The insertion point in 1, 2, ... is the number of counts that fit.
    return bisect_right(range(1, len(rounds) + 1), limit, key=cost)


def _canonical(events: Iterable[DPEvent]) -> Canonical:
    steps: Counter[tuple[float, float]] = Counter()
    for event in events:
        steps[min(float(event.noise), MOST_NOISE), float(event.rate)] += event.steps
    return tuple(sorted((noise, rate, count) for (noise, rate), count in steps.items()))


@lru_cache(maxsize=4096)
def _spent(history: Canonical, delta: float) -> Spent:
    if not history:
        return Spent(0.0, 0.0, 0.0, 0.0, delta)
    rdp = _rdp(history, delta)
    prv = _prv(history, delta, rdp)
    return Spent(min(rdp, prv), rdp, prv, _mu(history), delta)


@lru_cache(maxsize=4096)
def _rdp(history: Canonical, delta: float) -> float:
    if not history:
        return 0.0
    if min(noise for noise, _, _ in history) < LEAST_NOISE:
        return math.inf
    # Opacus takes seconds to import, and jobs without differential privacy do without it.
    from opacus.accountants import RDPAccountant

    return _epsilon(RDPAccountant(), history, delta, alphas=list(ORDERS))


def _prv(history: Canonical, delta: float, rdp: float) -> float:
    if rdp > PRV_MOST_EPSILON or sum(steps for _, _, steps in history) > PRV_MOST_STEPS:
        return math.inf
    from opacus.accountants import PRVAccountant

    return _epsilon(PRVAccountant(), history, delta, eps_error=max(PRV_ERROR, PRV_RELATIVE_ERROR * rdp))


def _epsilon(accountant: Any, history: Canonical, delta: float, **options: Any) -> float:
    """Infinite where Opacus finds no figure."""
    accountant.history = list(history)
    # PRV takes the logarithm of 0 at a rate of 1, as it should; what is not finite in the end is caught below.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # With so much or so little noise that an extreme order is the best one, the bound is loose, not wrong.
        warnings.filterwarnings("ignore", "Optimal order is the (smallest|largest) alpha")
        try:
            epsilon = float(accountant.get_epsilon(delta, **options))
        except (ArithmeticError, ValueError, RuntimeError):
            return math.inf
    return max(0.0, epsilon) if math.isfinite(epsilon) else math.inf


def _mu(history: Canonical) -> float:
    """Mechanisms of mu_1, mu_2, ... compose to the root of the sum of their squares."""
    try:
        squares = [
            steps / noise**2 if rate == 1 else steps * rate**2 * math.expm1(noise**-2) for noise, rate, steps in history
        ]
    except ArithmeticError:
        return math.inf
    return math.sqrt(math.fsum(squares))


def _check_delta(delta: float) -> None:
    if not (_is_number(delta) and 0 < delta < 1):
        raise AccountingError("delta is a probability of failure: give a number above 0 and below 1")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
