"""The quantities that the accountants compute with, and the operations of a numerical analysis."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class PrivacyLoss(Protocol):
    """A privacy random variable: the logarithm of the ratio of both neighbours' densities, drawn from the first's."""

    def cdf(self, t: Floats) -> Floats:
        """Probability that the loss is at most `t`."""
        ...

    def mean(self) -> float:
        """The expected loss."""
        ...


class Losses(Protocol):
    """Makes the privacy losses that are composed, given the least and the most that each of them may be."""

    def __call__(self, least: float, most: float) -> Sequence[PrivacyLoss]: ...


class Analysis(Protocol):
    """What the accountants compute with."""

    @property
    def NAME(self) -> str:
        """The library, for people."""
        ...

    def renyi_divergence(self, rate: float, noise: float, orders: Sequence[float]) -> Floats:
        """Renyi divergences of one step of the Gaussian mechanism on a Poisson sample, at these orders."""
        ...

    def epsilon_of(self, divergence: Floats, orders: Sequence[float], delta: float) -> float:
        """The smallest epsilon at `delta` that any order gives, infinite if none gives one."""
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
        """Upper bounds of epsilon, one at each of `deltas`, of all steps of each loss, which are composed once.

        `losses` makes the variables, given the ends of the grid, which reaches to about `reach` on both sides of 0
        with about `mesh` between its points. `errors`: those allowed in delta and in epsilon. Raises
        `ArithmeticError`, `ValueError` or `RuntimeError` where there is no figure.
        """
        ...
