"""How the tensors of an upload lie in one vector, and which stretches of it have a weight of their own."""

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
    """The limit for an aggregate of tensors within a norm: a computation on shares adds an error of its own."""
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
        """How many numbers there are in all."""
        return sum(prod(shape) for _, shape in self.shapes)

    @property
    def segments(self) -> list[slice]:
        """Where each unit lies."""
        if self.unit == "upload":
            return [slice(0, self.size)]
        lengths: list[int] = []
        for _, shape in self.shapes:
            blocks = shape[0] if self.unit == "block" else 1
            lengths += [prod(shape) // blocks] * blocks
        ends = np.cumsum(lengths, dtype=int).tolist()
        return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]

    def flatten(self, tensors: Tensors) -> Floats:
        """[size]. Raises `SecureAggregationError` if names or shapes are not the layout's."""
        if {name: np.shape(tensor) for name, tensor in tensors.items()} != dict(self.shapes):
            raise SecureAggregationError("the tensors are not those of the job: all sites must share the same shapes")
        return np.concatenate([np.asarray(tensors[name], np.float64).reshape(-1) for name, _ in self.shapes])

    def restore(self, flat: Floats) -> Tensors:
        """The tensors that lie in [size]."""
        ends = np.cumsum([prod(shape) for _, shape in self.shapes])[:-1]
        parts = np.split(flat.astype(np.float32), ends)
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes, parts, strict=True)}

    def check_mixture(self, mixture: Tensors, most_norm: float | None) -> None:
        """A mixture is no longer, segment by segment, than the longest upload. Raises `SecureAggregationError` if this
        one is."""
        flat, most = self.flatten(mixture), with_error(min(most_norm or LARGEST_NORM, LARGEST_NORM))
        if not all(np.linalg.norm(flat[segment]) <= most for segment in self.segments):
            raise SecureAggregationError(
                "the mixture is longer than any upload may be: a site shared more than the job allows"
            )

    def zeros(self) -> Tensors:
        """Tensors of zeros, for the dealer's run."""
        return self.restore(np.zeros(self.size))
