"""The uses of trained values in a forward pass, and their gradients in terms of the outputs' gradients."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Range:
    """A trained value, or a range of its rows."""

    value: torch.Tensor
    first: int
    end: int


@dataclass(frozen=True)
class LayerUse:
    """One use of a trained value: how its gradient follows from the gradient of an output."""

    of: Range
    output: torch.Tensor
    owners: torch.Tensor
    """The owner of each item of the output, int64 [items]."""
    terms: Callable[[torch.Tensor], "Outer | RowGradients | Lookup"]
    """Maps the gradient of the output, [items, ...], to the terms of the value's gradient."""
    read: tuple[tuple[torch.Tensor, int], ...]
    """The tensors that `terms` and the gradient depend on, each with its version at the time of use."""

    @property
    def intact(self) -> bool:
        """Whether none of the tensors in `read` was overwritten in place since the use."""
        return all(tensor._version == version for tensor, version in self.read)


@dataclass(frozen=True)
class Outer:
    """The gradient is the sum over rows of left times right."""

    left: torch.Tensor
    right: torch.Tensor


@dataclass(frozen=True)
class RowGradients:
    """The gradient is the sum over items of `each`, [items, numbers of the range]."""

    each: torch.Tensor


@dataclass(frozen=True)
class Lookup:
    """The gradient is the sum of `each` [lookups, width] over `rows` int64 [lookups] of a table."""

    rows: torch.Tensor
    each: torch.Tensor
