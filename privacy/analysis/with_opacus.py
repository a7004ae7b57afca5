"""The analysis by the functions of Opacus, which brings torch and SciPy."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from opacus.accountants.analysis.prv import (
    Domain,
    PoissonSubsampledGaussianPRV,
    TruncatedPrivacyRandomVariable,
    compose_heterogeneous,
    discretize,
)
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

from privacy.analysis.quantities import Floats, Losses, PrivacyLoss

NAME = "Opacus"


def renyi_divergence(rate: float, noise: float, orders: Sequence[float]) -> Floats:
    return np.array([_divergence(rate, noise, order) for order in orders])


@lru_cache(maxsize=1 << 14)
def _divergence(rate: float, noise: float, order: float) -> float:
    """One order's divergence, cached: each epsilon needs the same orders up to three times, a millisecond each."""
    return float(compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=[order])[0])


def epsilon_of(divergence: Floats, orders: Sequence[float], delta: float) -> float:
    epsilon, _ = get_privacy_spent(orders=list(orders), rdp=divergence, delta=delta)
    return float(epsilon)


def sampled_gaussian_loss(rate: float, noise: float, least: float, most: float) -> PrivacyLoss:
    loss: PrivacyLoss = TruncatedPrivacyRandomVariable(PoissonSubsampledGaussianPRV(rate, noise), least, most)
    return loss


def composed_epsilons(
    losses: Losses,
    steps: Sequence[int],
    reach: float,
    mesh: float,
    deltas: Sequence[float],
    errors: tuple[float, float],
) -> list[float]:
    domain = Domain.create_aligned(-reach, reach, mesh)
    discrete = [discretize(loss, domain) for loss in losses(domain.t_min, domain.t_max)]
    composed = compose_heterogeneous(discrete, list(steps))
    return [float(composed.compute_epsilon(delta, *errors)[2]) for delta in deltas]
