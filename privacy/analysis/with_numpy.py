"""The analysis without Opacus, SciPy and torch: for a verifier that recomputes what Opacus computed at the site.

Sources: Mironov, Talwar and Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019, section 3.3;
Balle et al., "Hypothesis Testing Interpretations and Renyi Differential Privacy", 2020, theorem 21; Gopi, Lee and
Wutschitz, "Numerical Composition of Differential Privacy", 2021, algorithm 1 and appendix B.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from privacy.analysis.quantities import Floats, Losses, PrivacyLoss

NAME = "NumPy, by the project's own implementation"
NEGLIGIBLE = -30.0
"""A series ends at terms with logarithms below this, as in Opacus."""
TAIL = 25.0
"""For larger arguments, erfc is computed by its asymptotic series, because `math.erfc` soon underflows."""
WIDTHS = 12
"""A Gaussian's mass beyond this many standard deviations is below float precision."""
NODES = 20
"""Points of each panel of Gauss and Legendre's quadrature."""


def renyi_divergence(rate: float, noise: float, orders: Sequence[float]) -> Floats:
    return np.array([_divergence(rate, noise, float(order)) for order in orders])


def epsilon_of(divergence: Floats, orders: Sequence[float], delta: float) -> float:
    order = np.asarray(orders, dtype=np.float64)
    epsilon = divergence - (np.log(delta) + np.log(order)) / (order - 1) + np.log((order - 1) / order)
    return math.inf if np.isnan(epsilon).all() else float(np.nanmin(epsilon))


def sampled_gaussian_loss(rate: float, noise: float, least: float, most: float) -> PrivacyLoss:
    return _SampledGaussianLoss(rate, noise, least, most)


def composed_epsilons(
    losses: Losses,
    steps: Sequence[int],
    reach: float,
    mesh: float,
    deltas: Sequence[float],
    errors: tuple[float, float],
) -> list[float]:
    grid = _Grid.aligned(reach, mesh)
    discrete = [_discrete(loss, grid) for loss in losses(grid.least, grid.most)]
    parts = [_self_convolution(loss, count) for loss, count in zip(discrete, steps, strict=True)]
    while len(parts) > 1:
        odd = [parts.pop()] if len(parts) % 2 else []
        parts = [_convolution(left, right) for left, right in zip(parts[::2], parts[1::2], strict=True)] + odd
    return [_epsilon(parts[0], delta, *errors) for delta in deltas]


@lru_cache(maxsize=1 << 16)
def _divergence(rate: float, noise: float, order: float) -> float:
    if rate == 1:
        return order / (2 * noise**2)
    moment = _whole_moment(rate, noise, int(order)) if order.is_integer() else _moment(rate, noise, order)
    return moment / (order - 1)


def _whole_moment(rate: float, noise: float, order: int) -> float:
    """The logarithm of the moment A at a whole order: the binomial sum."""
    index = np.arange(order + 1)
    logs = _log_binomials(order) + index * math.log(rate) + (order - index) * math.log1p(-rate)
    logs = logs + (index * index - index) / (2 * noise**2)
    largest = float(logs.max())
    return largest + math.log(math.fsum(np.exp(logs - largest)))


@cache
def _log_binomials(order: int) -> Floats:
    return np.array([math.log(math.comb(order, index)) for index in range(order + 1)])


def _moment(rate: float, noise: float, order: float) -> float:
    """The logarithm of the moment A at a fractional order: two series, whose terms alternate in sign in the end."""
    middle = noise**2 * math.log(1 / rate - 1) + 0.5
    log_rate, log_rest, scale = math.log(rate), math.log1p(-rate), math.sqrt(2) * noise
    terms: list[tuple[float, float]] = []
    binomial, index = 1.0, 0
    while True:
        rest, log_binomial = order - index, math.log(abs(binomial)) - math.log(2)
        below = log_binomial + index * log_rate + rest * log_rest + (index * index - index) / (2 * noise**2)
        above = log_binomial + rest * log_rate + index * log_rest + (rest * rest - rest) / (2 * noise**2)
        below, above = below + _log_erfc((index - middle) / scale), above + _log_erfc((middle - rest) / scale)
        terms += [(below, binomial), (above, binomial)]
        index += 1
        binomial *= (order - index + 1) / index
        if max(below, above) + math.log(2) < NEGLIGIBLE:
            break
    largest = max(log for log, _ in terms)
    return largest + math.log(math.fsum(math.copysign(math.exp(log - largest), sign) for log, sign in terms))


def _log_erfc(x: float) -> float:
    if x < TAIL:
        return math.log(math.erfc(x))
    inverse = 1 / (2 * x * x)
    series = 1 - inverse * (1 - 3 * inverse * (1 - 5 * inverse * (1 - 7 * inverse)))
    return math.log(series / (x * math.sqrt(math.pi))) - x * x


def _erfc(x: Floats) -> Floats:
    return np.fromiter(map(math.erfc, x.tolist()), np.float64, len(x))


class _SampledGaussianLoss:
    """The loss log(1 - rate + rate * e**z), where z = (2 x - 1) / (2 noise**2).

    x is drawn from the sampled Gaussian: with probability `rate` around 1, else around 0.
    """

    def __init__(self, rate: float, noise: float, least: float, most: float) -> None:
        self._rate, self._noise, self._ends = rate, noise, np.array([least, most])
        self._below, upper = self._whole(self._ends)
        self._mass = upper - self._below

    def cdf(self, t: Floats) -> Floats:
        inside = (self._whole(t) - self._below) / self._mass
        return np.where(t < self._ends[0], 0.0, np.where(t < self._ends[1], inside, 1.0))

    def mean(self) -> float:
        """Integrates over x in panels that are narrow compared with the Gaussians and the bend of the loss."""
        rate, noise = self._rate, self._noise
        least, most = (self._z(self._ends) * noise**2 + 0.5).tolist()
        start, stop = max(least, -WIDTHS * noise), min(most, 1 + WIDTHS * noise)
        panels = math.ceil((stop - start) / (min(noise, noise**2) / 2))
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        half = (stop - start) / panels / 2
        x = (start + half * (2 * np.arange(panels) + 1))[:, None] + half * nodes
        loss = np.logaddexp(np.log1p(-rate), np.log(rate) + (2 * x - 1) / (2 * noise**2))
        density = (1 - rate) * np.exp(-((x / noise) ** 2) / 2) + rate * np.exp(-(((x - 1) / noise) ** 2) / 2)
        return float(half * ((loss * density) @ weights).sum() / (noise * math.sqrt(2 * math.pi)) / self._mass)

    def _whole(self, t: Floats) -> Floats:
        """The distribution function of the loss before cutting."""
        z, noise = self._z(t), self._noise
        around_one = _erfc((2 * z * noise**2 - 1) / (2 * math.sqrt(2) * noise))
        around_zero = _erfc((2 * z * noise**2 + 1) / (2 * math.sqrt(2) * noise))
        return np.asarray(1 - self._rate * around_one / 2 - (1 - self._rate) * around_zero / 2)

    def _z(self, t: Floats) -> Floats:
        """The z at which the loss is `t`; -infinity for values below the loss's infimum."""
        rest = 1 - self._rate
        above = t + np.log1p(-np.minimum(rest * np.exp(-np.maximum(t, 0)), 1))
        below = np.log(np.maximum(np.expm1(np.minimum(t, 0)) + self._rate, 0))
        return np.asarray(np.where(t > 0, above, below) - math.log(self._rate))


@dataclass(frozen=True)
class _Grid:
    """An even number of equidistant points from `least` to `most`; `shift`: how far they were moved in all."""

    least: float
    most: float
    size: int
    shift: float = 0.0

    @classmethod
    def aligned(cls, reach: float, mesh: float) -> "_Grid":
        """Points at multiples of `mesh`, from -`reach` to `reach` or a little beyond."""
        most = math.ceil(reach / mesh) * mesh
        size = round(2 * most / mesh) + 1
        return cls(-most, most + mesh, size + 1)

    @property
    def mesh(self) -> float:
        return (self.most - self.least) / (self.size - 1)

    @property
    def points(self) -> Floats:
        return np.linspace(self.least, self.most, self.size)

    def moved(self, by: float) -> "_Grid":
        return _Grid(self.least + by, self.most + by, self.size, self.shift + by)


@dataclass(frozen=True)
class _Discrete:
    """Probabilities of the points of a grid."""

    masses: Floats
    grid: _Grid


def _discrete(loss: PrivacyLoss, grid: _Grid) -> _Discrete:
    """Rounds a loss to the grid, then moves the grid to keep the mean."""
    edges = np.append(grid.points - grid.mesh / 2, grid.most + grid.mesh / 2)
    masses = np.diff(loss.cdf(edges))
    shift = loss.mean() - float(grid.points @ masses)
    if abs(shift) >= grid.mesh / 2:
        raise RuntimeError("the mean of a discretised loss is far from that of the loss")
    return _Discrete(masses, grid.moved(shift))


def _self_convolution(loss: _Discrete, steps: int) -> _Discrete:
    """The distribution of the sum of `steps` draws, which wraps around the grid's ends."""
    size = loss.grid.size
    masses = np.fft.irfft(np.fft.rfft(loss.masses) ** steps, size)
    # The grid's first point is not at 0 but half of the grid below it.
    turn = steps - 1 + (size // 2 if steps % 2 == 0 else 0)
    return _Discrete(np.roll(masses, turn), loss.grid.moved(loss.grid.shift * (steps - 1)))


def _convolution(left: _Discrete, right: _Discrete) -> _Discrete:
    """The distribution of the sum of both, cut to the grid."""
    size, padded_size = left.grid.size, 2 * left.grid.size
    product = np.fft.rfft(left.masses, padded_size) * np.fft.rfft(right.masses, padded_size)
    start = (size - 1) // 2
    return _Discrete(np.fft.irfft(product, padded_size)[start : start + size], left.grid.moved(right.grid.shift))


def _epsilon(loss: _Discrete, delta: float, delta_error: float, epsilon_error: float) -> float:
    """The upper bound of epsilon: at delta - `delta_error`, plus `epsilon_error`."""
    target = delta - delta_error
    if np.finfo(np.longdouble).eps * loss.grid.size > target:
        raise ValueError("rounding errors would be larger than delta")
    points = loss.grid.points
    above = np.cumsum(loss.masses[::-1])[::-1]
    weighted = np.cumsum((loss.masses * np.exp(-points))[::-1])[::-1]
    place = int(np.searchsorted(np.exp(points) * weighted - above, -target))
    if place == 0:
        raise RuntimeError("no epsilon on the grid reaches delta")
    return float(np.log((above[place] - target) / weighted[place])) + epsilon_error
