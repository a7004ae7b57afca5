"""Exact t-SNE for a few hundred points.

Source: van der Maaten and Hinton, "Visualizing data using t-SNE", JMLR 2008.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
AnyFloats = NDArray[np.floating[Any]]

LEAST_POINTS = 4
TINY = 1e-12
BISECTIONS = 60
EXAGGERATION, EXAGGERATED_ITERATIONS = 12.0, 250
EARLY_MOMENTUM, LATE_MOMENTUM = 0.5, 0.8
LEAST_RATE = 50.0


@dataclass(frozen=True)
class Embedding:
    """Where the points lie in the plane, [points, 2], and the divergence left, in nats."""

    positions: Floats
    divergence: float


def tsne(points: Floats, seed: int = 0, perplexity: float = 30.0, iterations: int = 1000) -> Embedding:
    """Embed `points` [points, width] in the plane; the same seed gives the same picture.

    The perplexity (about how many neighbours count) is cut to a third of the other points. Time and
    memory grow with the square of the points. Raises `ValueError` for fewer than four points, or
    for values that are not finite.
    """
    count = len(points)
    if count < LEAST_POINTS or not np.isfinite(points).all():
        raise ValueError(f"t-SNE needs at least {LEAST_POINTS} points, all of them finite")
    affinities = _affinities(_squared_distances(points), min(perplexity, (count - 1) / 3))
    start = 1e-4 * np.random.default_rng(seed).normal(size=(2, count))
    positions = _descend(affinities, start, iterations)
    kernel, *_ = _kernel(positions)
    similarities = np.maximum(kernel / kernel.sum(), TINY)
    return Embedding(positions.T, float((affinities * np.log(affinities / similarities)).sum()))


def _descend(affinities: Floats, start: Floats, iterations: int) -> Floats:
    """Gradient descent with momentum, a rate of its own for each coordinate, and early exaggeration.

    In single precision, which is ample for a picture and three times as fast. Positions are [2, points].
    """
    late = affinities.astype(np.float32)
    early = np.float32(EXAGGERATION) * late
    positions = start.astype(np.float32)
    rate = max(len(late) / EXAGGERATION / 4, LEAST_RATE)
    steps, gains = np.zeros_like(positions), np.ones_like(positions)
    for iteration in range(iterations):
        exaggerated = iteration < EXAGGERATED_ITERATIONS
        gradient = _gradient(early if exaggerated else late, positions)
        gains = np.maximum(np.where(gradient * steps < 0, gains + 0.2, gains * 0.8), 0.01)
        steps = (EARLY_MOMENTUM if exaggerated else LATE_MOMENTUM) * steps - rate * gains * gradient
        positions = positions + steps
        positions -= positions.mean(axis=1, keepdims=True)
    return positions.astype(np.float64)


def _gradient(affinities: Singles, positions: Singles) -> Singles:
    """Eq. 5: 4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2)."""
    kernel, across, along = _kernel(positions)
    pull = (affinities - kernel / kernel.sum()) * kernel
    return 4 * np.stack([(pull * across).sum(axis=1), (pull * along).sum(axis=1)])


def _kernel(positions: AnyFloats) -> tuple[AnyFloats, AnyFloats, AnyFloats]:
    """The numerator of eq. 4, a Student t kernel [points, points], none for the point itself.

    With it, the differences y_i - y_j along both axes. No matrix product: threads cannot change the sums.
    """
    across, along = (np.subtract.outer(axis, axis) for axis in positions)
    kernel = 1 / (1 + across**2 + along**2)
    np.fill_diagonal(kernel, 0.0)
    return kernel, across, along


def _affinities(distances: Floats, perplexity: float) -> Floats:
    """Symmetric neighbour probabilities [points, points], each row's bandwidth found by bisection.

    Eq. 1 and section 3.1: p_ij = (p_j|i + p_i|j) / 2n, where each p_.|i has the given perplexity.
    """
    count = len(distances)
    scaled = distances / max(float(distances.mean()), TINY)
    low, high = np.full((count, 1), -60.0), np.full((count, 1), 60.0)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        conditional = _conditional(scaled, np.exp2(middle))
        entropy = -(conditional * np.log(np.maximum(conditional, TINY))).sum(axis=1, keepdims=True)
        too_wide = entropy > np.log(perplexity)
        low, high = np.where(too_wide, middle, low), np.where(too_wide, high, middle)
    conditional = _conditional(scaled, np.exp2((low + high) / 2))
    return np.maximum((conditional + conditional.T) / (2 * count), TINY)


def _conditional(distances: Floats, precisions: Floats) -> Floats:
    """Eq. 1: each row's Gaussian neighbour probabilities, none for the point itself."""
    exponents = -precisions * distances
    np.fill_diagonal(exponents, -np.inf)
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    normalised: Floats = weights / weights.sum(axis=1, keepdims=True)
    return normalised


def _squared_distances(points: Floats) -> Floats:
    squares = (points**2).sum(axis=1)
    distances: Floats = np.maximum(squares[:, None] + squares[None, :] - 2 * points @ points.T, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances
