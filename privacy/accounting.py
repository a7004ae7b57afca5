"""The privacy cost of training on patients: epsilon, recomputed from recorded events by two independent accountants.

Neighbours differ by one patient, added or removed. Each mechanism (`privacy.mechanisms`) brings its Renyi divergence
and the variable of its privacy loss; here they are composed and turned into epsilon. Sources: Mironov, "Renyi
Differential Privacy", 2017, and Gopi, Lee and Wutschitz, "Numerical Composition of Differential Privacy", 2021, both
with the functions of Opacus where it is installed (`privacy.analysis`).
"""

import math
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from privacy.analysis import PrivacyLoss, analysis
from privacy.errors import AccountingError
from privacy.mechanisms import DPEvent
from privacy.mechanisms.base import LEAST_NOISE, MOST_NOISE, is_number

LARGE_ORDERS = (72, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024)
OPACUS_ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 64))
"""The default orders of Opacus' RDPAccountant."""
ORDERS = (*OPACUS_ORDERS, *LARGE_ORDERS)
"""Renyi orders: Opacus' own, and larger ones that bind where the noise is large (above 1024 binomials overflow)."""
PRV_ERROR = 0.01
"""Discretisation error of PRV's epsilon, Opacus' default ..."""
PRV_RELATIVE_ERROR = 1 / 500
"""... or this share of RDP's epsilon where that is more, so that large epsilons do not take minutes."""
PRV_DELTA_PARTS = 1000
"""PRV's error in delta is delta divided by this, Opacus' default."""
PRV_MOST_EPSILON, PRV_MOST_STEPS = 1e3, 10**6
"""Beyond these limits PRV is not computed, because it would need too much memory."""
CURVE = tuple(float(f"{1e-4 * 1.5**step:.3g}") for step in range(23))
"""The deltas of a privacy curve, up to 0.75."""
CALIBRATED_DIGITS = 4
"""Significant digits of a calibrated noise multiplier: neighbours differ by at most a thousandth."""

Canonical = tuple[DPEvent, ...]
"""Events sorted and merged: one event for each mechanism and its parameters, with all its steps."""


@dataclass(frozen=True)
class PrivacyCost:
    """The composed privacy cost of events.

    `epsilon` binds: the smaller of two upper bounds at `delta`, `rdp` (Renyi accountant) and `prv` (privacy random
    variables, discretisation error included; infinite where it cannot be computed).
    `mu`: Gaussian DP, exact for Gaussian noise with everybody in each step; otherwise its central limit
    approximation, which is asymptotic in the number of steps and no bound.
    """

    epsilon: float
    rdp: float
    prv: float
    mu: float
    delta: float


def spent(events: Iterable[DPEvent], delta: float) -> PrivacyCost:
    """The cost of all `events` together, whatever their order and grouping; all zero without any.

    Raises `AccountingError` unless 0 < delta < 1.
    """
    _check_delta(delta)
    return _spent(_canonical(events), float(delta))


def calibrate(target: float, delta: float, plan: Callable[[float], Sequence[DPEvent]]) -> float:
    """The smallest noise, to `CALIBRATED_DIGITS` digits, for which the `plan` costs at most `target` at `delta`.

    `plan` maps the noise, a multiplier or scale, to events; more noise must not cost more. Sites with the same package
    versions get the same result. Raises `AccountingError` if no noise between 0.01 and 10,000 reaches the target, and
    as `spent` does.
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

    # RDP is never below the binding figure, so the first fit on a coarse grid is a start for the slower accountant.
    stride = per_decade // 100
    most = stride * bisect_left(grid[::stride], True, key=surely_fits)
    if most not in grid and not fits(most := grid[-1]):
        raise AccountingError("no amount of noise reaches this target: raise epsilon, or plan fewer releases")
    while (least := max(0, most - stride)) > 0 and fits(least):
        most, stride = least, 2 * stride
    return noise(bisect_left(grid, True, least, most, key=fits))


def fitting(limit: float, delta: float, already: Sequence[DPEvent], rounds: Sequence[Sequence[DPEvent]]) -> int:
    """The number of `rounds`, from the first, that cost at most `limit` at `delta` together with `already`.

    Raises `AccountingError` as `spent` does.
    """
    _check_delta(delta)

    def cost(count: int) -> float:
        return spent([*already, *(event for events in rounds[:count] for event in events)], delta).epsilon

    # The insertion point in 1, 2, ... is the number of counts that fit.
    return bisect_right(range(1, len(rounds) + 1), limit, key=cost)


def privacy_curve(events: Iterable[DPEvent]) -> tuple[tuple[float, float], ...]:
    """Pairs of epsilon and delta. All `events` together are (epsilon, delta)-differentially private at each pair.

    Composed once for all of `CURVE`, by PRV, or by RDP where PRV has no figure; infinite epsilons are left out.
    """
    return _curve(_canonical(events))


@lru_cache(maxsize=256)
def _curve(history: Canonical) -> tuple[tuple[float, float], ...]:
    if not history:
        return ((0.0, 0.0),)
    pure = sum(event.steps * event.pure_epsilon for event in history)
    rdp = _rdp(history, CURVE[0])
    prv = list[float]()
    if rdp <= PRV_MOST_EPSILON and sum(event.steps for event in history) <= PRV_MOST_STEPS:
        prv = _epsilons(lambda: _prv_epsilons(history, CURVE, rdp))
    epsilons = prv or [_rdp(history, delta) for delta in CURVE]
    slack, factor = _slack(history, 1.0)
    pairs = ((pure, 0.0), *((epsilon + slack, delta / factor) for epsilon, delta in zip(epsilons, CURVE, strict=True)))
    return tuple((epsilon, delta) for epsilon, delta in pairs if math.isfinite(epsilon))


def _canonical(events: Iterable[DPEvent]) -> Canonical:
    steps: Counter[DPEvent] = Counter()
    for event in events:
        steps[event.accounted] += event.steps
    return tuple(once.times(count) for once, count in sorted(steps.items(), key=lambda item: _place(item[0])))


def _place(event: DPEvent) -> tuple[str, tuple[float, ...]]:
    """The sort key, noise before rate. The order is fixed because float sums depend on it, to the last bit."""
    return event.mechanism, tuple(reversed(event.parameters.values()))


@lru_cache(maxsize=4096)
def _spent(history: Canonical, delta: float) -> PrivacyCost:
    if not history:
        return PrivacyCost(0.0, 0.0, 0.0, 0.0, delta)
    slack, delta_left = _slack(history, delta)
    rdp = _rdp(history, delta_left)
    prv = _prv(history, delta_left, rdp)
    return PrivacyCost(min(rdp, prv) + slack, rdp + slack, prv + slack, _mu(history), delta)


def _slack(history: Canonical, delta: float) -> tuple[float, float]:
    """The increase of epsilon by approximate noise, and the reduced delta for the exact figure.

    With both neighbours' probabilities off by factors within exp(+-z), delta(epsilon) grows to at most
    exp(z) delta(epsilon - 2 z).
    """
    slack = math.fsum(event.steps * event.slack for event in history)
    return slack, delta * math.exp(-slack / 2)


@lru_cache(maxsize=4096)
def _rdp(history: Canonical, delta: float) -> float:
    """The smallest epsilon of all orders. The infinite order, with delta 0, gives the sum of pure epsilons."""
    if not history:
        return 0.0
    if not all(event.is_accountable for event in history):
        return math.inf
    pure = sum(event.steps * event.pure_epsilon for event in history)
    return min(pure, _epsilon(lambda: _rdp_epsilon(history, delta, ORDERS)))


def _rdp_epsilon(history: Canonical, delta: float, orders: Sequence[float]) -> float:
    divergence = sum((event.rdp(orders) * event.steps for event in history), np.zeros(len(orders)))
    return analysis().epsilon_of(divergence, orders, delta)


def _prv(history: Canonical, delta: float, rdp: float) -> float:
    if rdp > PRV_MOST_EPSILON or sum(event.steps for event in history) > PRV_MOST_STEPS:
        return math.inf
    return _epsilon(lambda: _prv_epsilons(history, (delta,), rdp)[0])


def _prv_epsilons(history: Canonical, deltas: Sequence[float], rdp: float) -> list[float]:
    """Like Opacus' PRVAccountant, but for several mechanisms: each brings the random variable of its own loss.

    The errors are those that the smallest of `deltas` allows, and `rdp` is RDP's epsilon there.
    """

    def losses(least: float, most: float) -> list[PrivacyLoss]:
        return [event.loss(least, most) for event in history]

    error = max(PRV_ERROR, PRV_RELATIVE_ERROR * rdp)
    delta_error, steps = min(deltas) / PRV_DELTA_PARTS, [event.steps for event in history]
    reach = _largest_loss(history, delta_error, error)
    mesh = error / math.sqrt(sum(steps) * math.log(12 / delta_error) / 2)
    return analysis().composed_epsilons(losses, steps, reach, mesh, deltas, (delta_error, error))


def _largest_loss(history: Canonical, delta_error: float, error: float) -> float:
    """The magnitude beyond which losses may be cut off: Gopi, Lee and Wutschitz, remark 5.6, as in Opacus."""
    steps = sum(event.steps for event in history)
    total_loss = _rdp_epsilon(history, delta_error / 4, OPACUS_ORDERS)
    each = [_rdp_epsilon((event.times(1),), delta_error / (8 * steps), OPACUS_ORDERS) for event in history]
    bounded = [event.pure_epsilon for event in history if math.isfinite(event.pure_epsilon)]
    return max(total_loss, *each, *bounded, error) + 3


def _epsilon(figure: Callable[[], float]) -> float:
    """The epsilon that `figure` computes; infinite where the analysis finds none."""
    return (_epsilons(lambda: [figure()]) or [math.inf])[0]


def _epsilons(figures: Callable[[], Sequence[float]]) -> list[float]:
    """The epsilons that `figures` computes, infinite where one is not finite; an empty list if the analysis fails."""
    # PRV takes the logarithm of 0 at a rate of 1, as it should; what is not finite in the end is caught below.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # With so much or so little noise that an extreme order is the best one, the bound is loose, not wrong.
        warnings.filterwarnings("ignore", "Optimal order is the (smallest|largest) alpha")
        try:
            epsilons = figures()
        except (ArithmeticError, ValueError, RuntimeError):
            return []
    return [max(0.0, epsilon) if math.isfinite(epsilon) else math.inf for epsilon in epsilons]


def _mu(history: Canonical) -> float:
    """The mu of all mechanisms together: the root of the sum of their squared mus."""
    try:
        return math.sqrt(math.fsum(event.mu_squared for event in history))
    except ArithmeticError:
        return math.inf


def _check_delta(delta: float) -> None:
    if not (is_number(delta) and 0 < delta < 1):
        raise AccountingError("delta must be a probability above 0 and below 1")
