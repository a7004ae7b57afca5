"""The arrangement of an upload's tensors in one vector, and the segments of it that are weighed separately."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from audits import Tensors
from privacy.aggregation import Unit
from privacy.secagg.errors import SecureAggregationError
from privacy.secagg.ring import Floats

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
        """Raises `SecureAggregationError` if a segment of the mixture is longer than any upload's may be."""
        flat, most = self.flatten(mixture), with_error(min(most_norm or LARGEST_NORM, LARGEST_NORM))
        if not all(np.linalg.norm(flat[segment]) <= most for segment in self.segments):
            raise SecureAggregationError(
                "the mixture is longer than any upload may be: a site shared more than the job allows"
            )

    def zeros(self) -> Tensors:
        """Tensors of zeros, for the dealer's run."""
        return self.restore(np.zeros(self.size))
