"""The quantities that the accountants compute with, and the operations of a numerical analysis."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class PrivacyLoss(Protocol):
    """A privacy loss random variable: the log of the ratio of both neighbours' densities, at a draw from the first."""

    def cdf(self, t: Floats) -> Floats:
        """Probability that the loss is at most `t`."""
        ...

    def mean(self) -> float:
        """The expected loss."""
        ...


class Losses(Protocol):
    """Makes the privacy losses to compose, each cut to values from `least` to `most`."""

    def __call__(self, least: float, most: float) -> Sequence[PrivacyLoss]: ...


class Analysis(Protocol):
    """The numerical functions that the accountants use."""

    @property
    def NAME(self) -> str:
        """The library's name, for people."""
        ...

    def renyi_divergence(self, rate: float, noise: float, orders: Sequence[float]) -> Floats:
        """Renyi divergences of one step of the Gaussian mechanism on a Poisson sample, at these orders."""
        ...

    def epsilon_of(self, divergence: Floats, orders: Sequence[float], delta: float) -> float:
        """The smallest epsilon at `delta` over all orders; infinite if no order gives one."""
        ...

    def sampled_gaussian_loss(self, rate: float, noise: float, least: float, most: float) -> PrivacyLoss:
        """The privacy loss of one step of the Gaussian mechanism on a Poisson sample, cut to `least` to `most`."""
        ...

    def composed_epsilons(
        self,
        losses: Losses,
        steps: Sequence[int],
        reach: float,
        mesh: float,
        deltas: Sequence[float],
        errors: tuple[float, float],
    ) -> list[float]:
        """Composes `steps[i]` steps of each loss i; returns an upper bound of epsilon at each of `deltas`.

        `losses` makes the variables from the ends of the grid, which reaches to about `reach` on both sides of 0 with
        a spacing of about `mesh`. `errors`: the permitted errors of delta and of epsilon. Raises `ArithmeticError`,
        `ValueError` or `RuntimeError` if there is no figure.
        """
        ...
