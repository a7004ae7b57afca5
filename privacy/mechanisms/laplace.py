"""The Laplace mechanism for counts, exact on a grid.

The noise is a Laplace variable rounded to a whole number of grid units. Counts are whole numbers of these units too. So
the noisy counts are the rounded output of the continuous mechanism, and cost no more than it does. No floating-point
number is used until the result is on the grid, so that the low bits of a result reveal nothing (Mironov, "On
Significance of the Least Significant Bits for Differential Privacy", 2012). The sampler is exact and needs only uniform
whole numbers: Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020, algorithms 1 and 2.

A patient who changes several counts by 1 in total costs at most as much as one who changes a single count by 1, at
every delta. For two counts, changed by a and 1 - a: the loss is less often 1/b or -1/b, every loss between these is
more likely, and the expected likelihood ratio is the same. For counts changed by a_1, ..., a_k of sum 1: by the same
argument, on a scale of b / (a_(k-1) + a_k), the last two cost at most as much as one count changed by their sum.
Composition keeps this order, so counts can be merged one by one until a single count changes by 1.

Source of the Renyi divergence: Mironov, "Renyi Differential Privacy", 2017, Table II.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from privacy.analysis import PrivacyLoss
from privacy.errors import AccountingError
from privacy.mechanisms.base import MOST_NOISE, UNITS, CountsMechanism, Use, check_steps, is_number

if TYPE_CHECKING:
    from privacy.noise import Randomness

WORD = 53
"""Bits of each uniform number."""


@dataclass(frozen=True)
class Laplace(CountsMechanism):
    """`steps` releases with Laplace noise of `scale` b, in units of the sensitivity; every patient takes part.

    Raises `AccountingError` unless the scale is finite and above 0, and steps >= 1.
    """

    mechanism: ClassVar[str] = "laplace"
    rdp_source: ClassVar[str] = "Mironov, Renyi Differential Privacy, 2017, Table II"
    norm: ClassVar[str] = "L1 norm"

    scale: float
    steps: int = 1
    use: Use | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.scale) and self.scale > 0 and math.isfinite(1 / self.scale)):
            raise AccountingError("a scale of 0 or less protects nothing: give a finite number above 0")
        check_steps(self.steps)

    @property
    def accounted(self) -> Self:
        return type(self)(min(float(self.scale), MOST_NOISE))

    @property
    def pure_epsilon(self) -> float:
        return 1 / self.scale

    def rdp(self, orders: Sequence[float]) -> NDArray[np.float64]:
        """Table II, with the larger power of e taken out of the sum, so that no order overflows or cancels."""
        order, largest = np.asarray(orders, dtype=np.float64), 1 / self.scale
        inner = (order - 1) / (2 * order - 1) * np.expm1(-(2 * order - 1) * largest)
        return np.asarray(largest + np.log1p(inner) / (order - 1))

    def loss(self, least: float, most: float) -> PrivacyLoss:
        """The loss, which is bounded by `pure_epsilon` and so needs no cutting."""
        return _LaplaceLoss(1 / self.scale)

    @property
    def mu_squared(self) -> float:
        """The chi-squared divergence, as for the sampled Gaussian."""
        return self.steps * (2 * math.expm1(1 / self.scale) + math.expm1(-2 / self.scale)) / 3

    @property
    def mu_is_exact(self) -> bool:
        return False

    @property
    def sampler(self) -> str:
        return "none: every patient takes part"

    @property
    def noise_words(self) -> str:
        return f"Laplace noise of scale {self.scale:g}"

    @property
    def sentence(self) -> str:
        return "Laplace noise on counts over all patients"

    @classmethod
    def for_counts(cls, noise: float) -> Self:
        return cls(noise, use=Use.COUNTS)

    @property
    def deviation(self) -> float:
        return math.sqrt(2) * self.scale

    def noisy(self, counts: Sequence[int], randomness: "Randomness") -> tuple[float, ...]:
        return tuple((count + _rounded_laplace(self.scale, randomness)) / UNITS for count in counts)


@dataclass(frozen=True)
class _LaplaceLoss:
    """A loss: `largest` with probability 1/2; else `largest` - 2 E, E standard exponential, at least -`largest`."""

    largest: float

    def cdf(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        between = np.exp(np.minimum(t - self.largest, 0) / 2) / 2
        return np.where(t < -self.largest, 0.0, np.where(t < self.largest, between, 1.0))

    def mean(self) -> float:
        return self.largest + math.expm1(-self.largest)


def _rounded_laplace(scale: float, randomness: "Randomness") -> int:
    """A Laplace variable of at least this scale, in patients, rounded to the nearest whole number of 1/UNITS.

    `halves` is the scale in half units. The number of whole half units in an exponential variable is geometric, and
    rounding needs no more than that number.
    """
    halves = math.ceil(scale * 2 * UNITS)  # a product with a power of two is exact
    while not _coin(part := _below(halves, randomness), halves, randomness):
        pass
    while _coin(1, 1, randomness):
        part += halves
    magnitude = (part + 1) // 2
    return magnitude if _below(2, randomness) else -magnitude


def _coin(top: int, bottom: int, randomness: "Randomness") -> bool:
    """True with probability exp(-top / bottom), exactly; 0 <= top <= bottom."""
    count = 1
    while _below(bottom * count, randomness) < top:
        count += 1
    return count % 2 == 1


def _below(most: int, randomness: "Randomness") -> int:
    """A whole number from 0 to `most` - 1, exactly uniform."""
    words = most.bit_length() // WORD + 1
    span = 1 << (WORD * words)
    while True:
        number = 0
        for uniform in randomness.uniform(words).tolist():
            number = (number << WORD) | int(uniform * 2**WORD)
        if number < span - span % most:
            return number % most
