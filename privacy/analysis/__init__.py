"""The numerical analysis behind both accountants, by Opacus or by NumPy alone.

A site charges its patients by the functions of Opacus, a library that many people check. Opacus needs torch, which a
verifier of reports does without: there `with_numpy` computes the same quantities, written anew from the papers. Tests
hold both to the same figures, far within the tolerance with which a report is verified.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEAST_DELTA = 1e-7
"""Below this the rounding of probabilities alone moves epsilon by more than a report's tolerance, and by another amount
in each implementation."""


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
        """The loss of one such step, given that it lies between `least` and `most`."""
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


@cache
def analysis() -> Analysis:
    """Opacus where it is installed, as at every site that trains; NumPy alone elsewhere."""
    if find_spec("opacus") is None:
        from privacy.analysis import with_numpy

        return with_numpy
    # Opacus takes seconds to import, and jobs without differential privacy do without it.
    from privacy.analysis import with_opacus

    return with_opacus


def recomputes_at(delta: float) -> bool:
    """Whether the figures of a site, which come from Opacus, can be had again here within a report's tolerance."""
    return delta >= LEAST_DELTA or find_spec("opacus") is not None
