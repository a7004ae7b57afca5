"""The Gaussian mechanism on a Poisson sample of patients: for sums of clipped gradients, and for counts at rate 1.

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
from privacy.errors import AccountingError
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
        """With less noise every epsilon is in the thousands, and the series behind RDP do not converge."""
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
        """The pair of counts changes by at most 1 in the L1 norm, and so in the L2 norm."""
        return cls(1.0, noise, use=Use.COUNTS)

    @property
    def deviation(self) -> float:
        return self.noise

    def noisy(self, pair: tuple[int, int], randomness: "Randomness") -> tuple[float, float]:
        first, second = randomness.normal((2,), self.noise).tolist()
        return pair[0] / UNITS + first, pair[1] / UNITS + second
