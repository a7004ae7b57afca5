"""The Gaussian mechanism on a Poisson sample of patients: for sums of clipped gradients, and for counts at rate 1.

Sum and noise are both rounded to whole multiples of one grid step, which follows from public settings. So the result is
the rounded output of the continuous mechanism on the rounded sum, and costs no more than that mechanism. With
floating-point noise, the low bits of the result could reveal the sum (Mironov, "On Significance of the Least
Significant Bits for Differential Privacy", 2012).

Sources: Mironov, Talwar and Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019, and Gopi, Lee
and Wutschitz, "Numerical Composition of Differential Privacy", 2021, as `privacy.analysis` has both; Bu, Dong, Long and
Su, "Deep Learning with Gaussian Differential Privacy", 2020.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from privacy.analysis import PrivacyLoss, analysis
from privacy.errors import AccountingError, SettingsError
from privacy.mechanisms.base import (
    LEAST_NOISE,
    MOST_NOISE,
    UNITS,
    CountsMechanism,
    Use,
    check_steps,
    is_number,
)

if TYPE_CHECKING:
    from privacy.noise import Randomness

GRID_SHARE = 2.0**-11
"""The share of the clipping norm that rounding sums to the grid may add to the sensitivity: half of the reserve of
`clip_weights`."""
MOST_VALUES = 2**28
"""The most values in one sum: with more, whole numbers of grid steps would not all be exact in double precision."""


def grid_step(clip: float, values: int, share: float = GRID_SHARE) -> float:
    """The grid's step for a sum of `values` numbers to which each patient adds at most norm `clip`.

    A power of two, so that dividing by it is exact. Rounding moves each of the numbers by at most half a step in either
    of two sums, so it moves their difference by at most step * sqrt(values) <= `share` * clip in the L2 norm.
    Raises `SettingsError` if there are more than `MOST_VALUES`.
    """
    if values > MOST_VALUES:
        raise SettingsError(f"a private step trains at most {MOST_VALUES:,} values: train fewer blocks")
    _, exponent = math.frexp(clip * share / math.sqrt(max(values, 1)))
    return math.ldexp(0.5, exponent)


@dataclass(frozen=True)
class SampledGaussian(CountsMechanism):
    """`steps` times the Gaussian mechanism on a Poisson sample of patients.

    Each patient takes part with probability `rate` (1: everybody); the noise has a standard deviation of `noise`
    times the sensitivity. Raises `AccountingError` unless 0 < rate <= 1, noise is finite and above 0, and steps >= 1.
    """

    mechanism: ClassVar[str] = "sampled_gaussian"
    rdp_source: ClassVar[str] = (
        "Mironov, Talwar and Zhang, Renyi Differential Privacy of the Sampled Gaussian Mechanism, 2019"
    )
    norm: ClassVar[str] = "L2 norm"

    rate: float
    noise: float
    steps: int = 1
    use: Use | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.rate) and 0 < self.rate <= 1):
            raise AccountingError("a sampling rate is a probability above 0: give a number in (0, 1]")
        if not (is_number(self.noise) and self.noise > 0):
            raise AccountingError("a noise multiplier of 0 or less protects nothing: give a finite number above 0")
        check_steps(self.steps)

    @property
    def accounted(self) -> Self:
        return type(self)(float(self.rate), min(float(self.noise), MOST_NOISE))

    @property
    def is_accountable(self) -> bool:
        """Whether noise is at least LEAST_NOISE: with less, epsilon is in the thousands and RDP's series diverge."""
        return self.noise >= LEAST_NOISE

    def rdp(self, orders: Sequence[float]) -> NDArray[np.float64]:
        return analysis().renyi_divergence(self.rate, self.noise, orders)

    def loss(self, least: float, most: float) -> PrivacyLoss:
        return analysis().sampled_gaussian_loss(self.rate, self.noise, least, most)

    @property
    def mu_squared(self) -> float:
        if self.rate == 1:
            return self.steps / self.noise**2
        return self.steps * self.rate**2 * math.expm1(self.noise**-2)

    @property
    def mu_is_exact(self) -> bool:
        return self.rate == 1

    @property
    def sampler(self) -> str:
        return "none: every patient takes part" if self.rate == 1 else "Poisson, by patient"

    @property
    def noise_words(self) -> str:
        return f"Gaussian noise of multiplier {self.noise:g}"

    @property
    def sentence(self) -> str:
        return f"Gaussian noise on sums over {'all patients' if self.rate == 1 else 'Poisson samples of patients'}"

    @classmethod
    def for_counts(cls, noise: float) -> Self:
        """Counts change by at most 1 in the L1 norm, and so in the L2 norm."""
        return cls(1.0, noise, use=Use.COUNTS)

    @property
    def deviation(self) -> float:
        return self.noise

    def noisy(self, counts: Sequence[int], randomness: "Randomness") -> tuple[float, ...]:
        noise = randomness.rounded_normal(len(counts), self.noise * UNITS).tolist()
        return tuple((count + value) / UNITS for count, value in zip(counts, noise, strict=True))
