"""A lower bound on epsilon from an attack's guesses: exact tails, no assumption on data, model or attack.

Each of m canaries, whole synthetic patients, enters a site's training with probability 1/2, independently. An attacker
who sees all that leaves guesses for r of them whether they were in. Under (epsilon, delta)-DP few guesses can be right.

Source: Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", 2023 (arXiv 2305.08846), Theorem 5.2
and Appendix D. Canaries of independent runs are added up: all runs together are one mechanism, which protects each
canary as its own run does.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audits.errors import AuditError

STEP = 0.05
"""Epsilons are tested upwards in steps of this size before the bound is refined between two of them."""
MOST_EPSILON = 50.0
"""The largest epsilon tested: no realistic number of canaries proves more."""


class EmpiricalError(AuditError):
    """Counts, scores or levels that no audit can have."""


@dataclass(frozen=True)
class Guesses:
    """An attack's guesses about whether canaries were trained with."""

    canaries: int
    """m: each was in with probability 1/2."""
    guessed: int
    """r: the number of canaries that the attack guessed about, chosen without knowing which were in."""
    correct: int
    """v: how many guesses are right."""

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.guessed <= self.canaries:
            raise EmpiricalError("more correct guesses than guesses, or more guesses than canaries: check the counts")

    def __add__(self, other: "Guesses") -> "Guesses":
        """Guesses about other canaries: at another site, or in an independent run."""
        return Guesses(self.canaries + other.canaries, self.guessed + other.guessed, self.correct + other.correct)


def guess(scores: Sequence[float], members: Sequence[bool], share: float) -> Guesses:
    """Guesses "in" for the highest and "out" for the lowest scores, each for half of `share` of all canaries.

    `scores`: [canaries], larger where the attack takes a canary to be in. `members`: the truth, [canaries]. Ties keep
    their order. Raises `EmpiricalError` for scores that are not finite, or a share outside of (0, 1].
    """
    values, truth = np.asarray(scores, np.float64), np.asarray(members, bool)
    if values.shape != truth.shape or values.ndim != 1 or not np.isfinite(values).all():
        raise EmpiricalError("each canary needs one finite score: check the attack")
    if not 0 < share <= 1:
        raise EmpiricalError("the share of canaries to guess about must lie in (0, 1]")
    each, order = int(share * len(values) / 2), np.argsort(values, kind="stable")
    lowest, highest = order[:each], order[len(order) - each :]
    return Guesses(len(values), 2 * each, int(truth[highest].sum() + (~truth[lowest]).sum()))


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """The largest probability that (epsilon, delta)-DP gives to this many correct guesses, by any attack (Theorem 5.2).

    At delta = 0 the number of correct guesses is stochastically dominated by
    Binomial(r, e^epsilon / (1 + e^epsilon)). Otherwise the bound grows by
    2 m delta max_i P[v - i <= Binomial < v] / i. Raises `EmpiricalError` unless epsilon >= 0 and 0 <= delta <= 1.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0 and 0 <= delta <= 1):
        raise EmpiricalError("epsilon must be finite and at least 0, delta a probability")
    likely = binomial(guesses.guessed, 1 / (1 + math.exp(-epsilon)))
    tail = math.fsum(likely[guesses.correct :])
    below = np.cumsum(likely[: guesses.correct][::-1])
    steepest = float((below / np.arange(1, len(below) + 1)).max()) if len(below) else 0.0
    return min(1.0, tail + 2 * guesses.canaries * delta * steepest)


def epsilon_lower_bound(guesses: Guesses, delta: float, confidence: float) -> float:
    """The smallest epsilon that the guesses do not refute: the true one is at least this with `confidence`.

    0 where nothing is proved. It is only a lower bound: a weak attack proves nothing.
    Raises `EmpiricalError` unless 0 < confidence < 1, and as `p_value` does.
    """
    level = _level(confidence)

    def refuted(epsilon: float) -> bool:
        return p_value(guesses, epsilon, delta) < level

    if not refuted(0.0):
        return 0.0
    # Stop at the first epsilon that is not refuted: all below it are, so the tests need no correction.
    low = 0.0
    while low + STEP < MOST_EPSILON and refuted(low + STEP):
        low += STEP
    high = low + STEP
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def rate_interval(right: int, of: int, confidence: float) -> tuple[float, float]:
    """Two-sided interval of a rate from independent trials (Clopper and Pearson, 1934); (0, 1) without any trial.

    Raises `EmpiricalError` unless 0 <= right <= of and 0 < confidence < 1.
    """
    if not 0 <= right <= of:
        raise EmpiricalError("there are more successes than trials: check the counts")
    half = _level(confidence) / 2
    low = _root(lambda rate: math.fsum(binomial(of, rate)[right:]) < half) if right else 0.0
    high = _root(lambda rate: math.fsum(binomial(of, rate)[: right + 1]) >= half) if right < of else 1.0
    return low, high


def rate_p_value(right: int, of: int, reference: float) -> float:
    """The probability that at least `right` of `of` independent trials succeed, each with probability `reference`."""
    return min(1.0, math.fsum(binomial(of, reference)[right:]))


def log_odds(rate: float) -> float:
    """The epsilon at which the best guess is right at this rate: ln(rate / (1 - rate)), 0 below 1/2, infinite at 1."""
    if rate >= 1:
        return math.inf
    return max(0.0, math.log(rate / (1 - rate))) if rate > 0 else 0.0


def binomial(trials: int, rate: float) -> NDArray[np.float64]:
    """The probability of 0 to `trials` successes, [trials + 1]. Raises `EmpiricalError` unless 0 <= rate <= 1."""
    if trials < 0 or not 0 <= rate <= 1:
        raise EmpiricalError("a binomial needs a number of trials from 0 and a rate from 0 to 1")
    if rate in (0, 1):
        certain = np.zeros(trials + 1)
        certain[trials if rate else 0] = 1.0
        return certain
    successes = np.arange(trials + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    ways = factorials[-1] - factorials - factorials[::-1]
    likelihoods: NDArray[np.float64] = np.exp(ways + successes * math.log(rate) + successes[::-1] * math.log1p(-rate))
    return likelihoods


def _root(before: Callable[[float], bool]) -> float:
    """The rate from 0 to 1 at which `before` turns from true to false, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if before(middle) else (low, middle)
    return (low + high) / 2


def _level(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise EmpiricalError("confidence must be above 0 and below 1, such as 0.95")
    return 1 - confidence
