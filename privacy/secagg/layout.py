"""The arrangement of an upload's tensors in one vector, and the segments of it that are weighed separately."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log2, prod

import numpy as np

from audits import Tensors
from audits.exchange import joint_norm
from privacy.aggregation import Unit
from privacy.secagg.errors import RangeError, SecureAggregationError
from privacy.secagg.ring import FixedPoint, Floats, Ring, signed

LARGEST_NORM = 1024.0
"""The largest norm of a segment that a site may put into a mixture."""


def with_error(most_norm: float) -> float:
    """The norm limit for an aggregate, which allows for the error of a computation on shares."""
    return 1.01 * most_norm + 1e-3


@dataclass(frozen=True)
class TensorLayout:
    """The shapes of float32 tensors, in an order that all sites share; blocks lie along the first axis."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    unit: Unit = "prompt"

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], unit: Unit = "prompt") -> "TensorLayout":
        """The layout of tensors with these shapes, in order of their names."""
        return cls(tuple(sorted((name, tuple(shape)) for name, shape in shapes.items())), unit)

    @property
    def size(self) -> int:
        """The total number of values."""
        return sum(prod(shape) for _, shape in self.shapes)

    @property
    def segments(self) -> list[slice]:
        """The slice of each unit in the vector."""
        if self.unit == "upload":
            return [slice(0, self.size)]
        lengths: list[int] = []
        for _, shape in self.shapes:
            blocks = shape[0] if self.unit == "block" else 1
            lengths += [prod(shape) // blocks] * blocks
        ends = np.cumsum(lengths, dtype=int).tolist()
        return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]

    def flatten(self, tensors: Tensors) -> Floats:
        """The tensors as one vector, float64 [size]. Raises `SecureAggregationError` for other names or shapes."""
        if {name: np.shape(tensor) for name, tensor in tensors.items()} != dict(self.shapes):
            raise SecureAggregationError("the tensors are not those of the job: all sites must share the same shapes")
        return np.concatenate([np.asarray(tensors[name], np.float64).reshape(-1) for name, _ in self.shapes])

    def restore(self, flat: Floats) -> Tensors:
        """The inverse of `flatten`: float32 tensors from a vector [size]."""
        ends = np.cumsum([prod(shape) for _, shape in self.shapes])[:-1]
        parts = np.split(flat.astype(np.float32), ends)
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes, parts, strict=True)}

    def check_mixture(self, mixture: Tensors, most_norm: float | None) -> None:
        """Raises `SecureAggregationError` if a segment of the mixture has a larger norm than an upload may have."""
        flat, most = self.flatten(mixture), with_error(min(most_norm or LARGEST_NORM, LARGEST_NORM))
        if not all(np.linalg.norm(flat[segment]) <= most for segment in self.segments):
            raise SecureAggregationError(
                "the mixture's norm is above the limit for an upload: a site shared more than the job allows"
            )

    def zeros(self) -> Tensors:
        """Tensors of zeros, for the dealer's run."""
        return self.restore(np.zeros(self.size))


SUM_BITS = 24
"""Fractional bits: a sum is exact to sites * 2^-25, and one site's tensors times its weight stay below 2^38 / sites."""


@dataclass(frozen=True)
class SumCode:
    """How a sum is written: `bits` fractional bits, words of `word` bytes, and weights times 2^`exponent`."""

    bits: int = SUM_BITS
    word: int = 8
    exponent: int = 0

    def fixed_point(self, sites: int = 1) -> FixedPoint:
        """The numbers of a sum over this many sites."""
        return FixedPoint(self.bits, sites, self.word)

    @property
    def scale(self) -> float:
        """What all weights are multiplied by."""
        return 2.0**self.exponent


WIDE = SumCode()
NARROW_BITS, NARROW_WORD, WEIGHT_BITS = 20, 5, 10
"""The sums of a stepwise job are of differences from values that everybody has. Where the weights of all sites add up
to 2^10, a mean is exact to sites * 2^-31, and each weighted difference stays below 2^18 / sites. Smaller counts are not
scaled up, so that a larger batch next step still fits: there a mean is exact to sites * 2^-21 / (sum of weights)."""


def exponent_for(weights: float, most: int) -> int:
    """The exponent by which weights that add up to `weights` become about 2^WEIGHT_BITS, but `most` at the most."""
    return min(most, WEIGHT_BITS - floor(log2(weights))) if weights > 0 else 0


def summand(tensors: Tensors, weight: float, layout: TensorLayout, sites: int, code: SumCode = WIDE) -> Ring:
    """The tensors times the weight, then the weight, then a 1: [layout.size + 2], to be masked before it leaves.

    Raises `RangeError` if a value is not finite or too large, or if the weight is negative.
    """
    if not weight >= 0:
        raise RangeError("a weight must be a number that is not negative: nothing was shared; check the row counts")
    with np.errstate(invalid="ignore", over="ignore"):
        values = np.append(layout.flatten(tensors) * weight, weight) * code.scale
    return np.append(code.fixed_point(sites).encode(values), np.uint64(1))


def mean_of_sum(
    total: Ring,
    sites: int,
    layout: TensorLayout,
    weights: tuple[float, float] | None = None,
    code: SumCode = WIDE,
    beside: Floats | float = 0.0,
) -> Tensors:
    """The weighted mean, from the sum over `sites` sites; `weights`: the bounds of one site's weight.

    `beside`: the values from which the summed tensors differ, [layout.size].

    Raises `SecureAggregationError` if the sum does not count `sites` sites, if the weights are all zero, or if their
    sum is impossible within the bounds.
    """
    # Every site adds a one: any other sum means that the masks did not cancel.
    if total.shape != (layout.size + 2,) or signed(total[-1:], code.word)[0] != sites:
        raise SecureAggregationError("the sum does not count each site once: a site or a member sent something else")
    sums = code.fixed_point().decode(total[:-1])
    if sums[-1] <= 0:
        raise SecureAggregationError("the weights of all sites are zero: there is no mean")
    if weights is not None and not sites * weights[0] <= sums[-1] / code.scale <= sites * weights[1]:
        raise SecureAggregationError("the sites' weights do not add up to what the job allows: one of them sent more")
    return layout.restore(beside + sums[:-1] / sums[-1])


def weight_of_sum(total: Ring, code: SumCode = WIDE) -> float:
    """The sum of the weights of the sites in a sum."""
    return float(code.fixed_point().decode(total[-2:-1])[0]) / code.scale


def check_mean(mean: Tensors, most_norm: float | None) -> None:
    """Raises `SecureAggregationError` if the mean has a larger norm than an upload may have."""
    if most_norm is not None and not joint_norm(mean) <= with_error(most_norm):
        raise SecureAggregationError(
            "the mean's norm is above the limit for an upload: a site sent more than the job allows"
        )
