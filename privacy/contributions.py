"""What each patient of a pass contributes to a gradient: bounds on norms, and weighted sums over patients.

There are three forms. `Separate` holds a gradient for each patient. `Products` holds the rows whose outer products sum
to it: norms come from Gram products, sums from one product of weighted rows ("ghost clipping", Li et al., ICLR 2022).
`Lookups` holds the rows of a table that were looked up.

Norms hold in floating point. Of a product in single precision only a bound is known, from the rounding of inner
products (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, Sec. 3.1): that bound is what is clipped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Gradients = dict[torch.Tensor, torch.Tensor]
"""By trained value."""

ROUNDOFF = 2.0**-24
"""The unit roundoff of single precision."""


@dataclass(frozen=True)
class Segments:
    """Rows in order of their patients: of each patient a run of rows, maybe none."""

    counts: torch.Tensor
    """int64 [patients]."""

    @property
    def runs(self) -> list[tuple[int, slice]]:
        """Of each patient with rows: its number, and where its rows are."""
        ends = self.counts.cumsum(0).tolist()
        return [
            (p, slice(end - n, end)) for p, (n, end) in enumerate(zip(self.counts.tolist(), ends, strict=True)) if n
        ]

    def of_rows(self, per_patient: torch.Tensor) -> torch.Tensor:
        """[patients, ...] to [rows, ...]."""
        return per_patient.repeat_interleave(self.counts, dim=0)

    def sums(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, ...] to [patients, ...], in double precision where the rows are."""
        owners = torch.arange(len(self.counts), device=rows.device).repeat_interleave(self.counts)
        return rows.new_zeros(len(self.counts), *rows.shape[1:]).index_add_(0, owners, rows)


class Contribution(Protocol):
    """How the patients of a pass contribute to the gradient of a trained value, or of a range of its rows."""

    value: torch.Tensor

    def squared_norms(self) -> torch.Tensor:
        """At least the squared norm of each patient's gradient, float64 [patients]."""

    def add(self, total: torch.Tensor, weights: torch.Tensor) -> None:
        """Add the sum over patients with `weights`, float64 [patients], to `total`, float64 of the value's shape."""


@dataclass(frozen=True)
class Separate:
    """A gradient for each patient, [patients, *shape of the value]."""

    value: torch.Tensor
    each: torch.Tensor

    def squared_norms(self) -> torch.Tensor:
        return self.each.flatten(1).double().square().sum(1)

    def add(self, total: torch.Tensor, weights: torch.Tensor) -> None:
        total += torch.einsum("p,p...->...", weights.to(self.each), self.each)


@dataclass(frozen=True)
class Products:
    """The sum over a patient's rows of left times right: the gradient of rows `first` to `end` of a matrix."""

    value: torch.Tensor
    first: int
    end: int
    left: torch.Tensor
    """[rows, end - first]."""
    right: torch.Tensor
    """[rows, all other dimensions of the value]."""
    segments: Segments

    def squared_norms(self) -> torch.Tensor:
        """Of each patient sqrt(Gram product + gamma S^2) + 2 n u S, squared.

        S is the sum over its n rows of the product of both lengths, u the roundoff. A product of two inner products of
        a and b terms is off by at most gamma = (a + b + 2) u, to first order, times the four lengths; the sum of n
        weighted rows by at most n u S. Twice the latter leaves room for the weights' rounding and higher orders.
        """
        counts, roundoff = self.segments.counts, torch.finfo(self.left.dtype).eps / 2
        gram = torch.zeros(len(counts), dtype=torch.float64, device=self.left.device)
        for patient, rows in self.segments.runs:
            left, right = self.left[rows], self.right[rows]
            gram[patient] = (left @ left.T).mul_(right @ right.T).sum(dtype=torch.float64)
        lengths = self.left.norm(dim=1).double() * self.right.norm(dim=1).double()
        scale = self.segments.sums(lengths) * (1 + 1e-5)
        gamma = (self.left.shape[1] + self.right.shape[1] + 2) * roundoff * (1 + 1e-2)
        return ((gram + gamma * scale**2).clamp(min=0).sqrt() + 2 * counts * roundoff * scale) ** 2

    def add(self, total: torch.Tensor, weights: torch.Tensor) -> None:
        weighted = self.left * self.segments.of_rows(weights).to(self.left)[:, None]
        part = total[self.first : self.end]
        part += (weighted.T @ self.right).view_as(part)

    def separate(self) -> Separate:
        """The same as gradients of the value for each patient."""
        each = self.left.new_zeros(len(self.segments.counts), self.end - self.first, self.right.shape[1])
        for patient, rows in self.segments.runs:
            torch.mm(self.left[rows].T, self.right[rows], out=each[patient])
        shape = (len(each), self.end - self.first, *self.value.shape[1:])
        return Separate(self.value, _padded(each.view(shape), self.value, self.first))


@dataclass(frozen=True)
class Lookups:
    """Gradients of the rows of a table that the patients looked up, each row once for each patient."""

    value: torch.Tensor
    rows: torch.Tensor
    """int64 [lookups], rows of the value."""
    each: torch.Tensor
    """[lookups, width]."""
    segments: Segments

    def squared_norms(self) -> torch.Tensor:
        return self.segments.sums(self.each.flatten(1).double().square().sum(1))

    def add(self, total: torch.Tensor, weights: torch.Tensor) -> None:
        weighted = self.each.double() * self.segments.of_rows(weights)[:, None]
        total.index_add_(0, self.rows, weighted.view(-1, *total.shape[1:]))


def merged(parts: Sequence[Separate]) -> Separate:
    """The sum of gradients of one value."""
    first, *others = parts
    return Separate(first.value, sum((other.each for other in others), first.each))


def are_separate(rows: int, left: int, right: int, patients: int) -> bool:
    """Whether a gradient for each patient costs less than Gram products of its rows, and little memory."""
    size = left * right
    return size * patients <= MOST_NUMBERS and rows * (left + right) >= size * patients


MOST_NUMBERS = 2**22
"""What the gradients of one value may take for all patients of a pass: 16 MB."""


def _padded(each: torch.Tensor, value: torch.Tensor, first: int) -> torch.Tensor:
    if each.shape[1:] == value.shape:
        return each
    whole = each.new_zeros(len(each), *value.shape)
    whole[:, first : first + each.shape[1]] = each
    return whole


def clip_weights(norms: torch.Tensor, clip: float) -> torch.Tensor:
    """What to multiply patients' gradients with, float64 [patients], so that none is longer than `clip`.

    The bound in use is a little lower than `clip`, which makes up for the rounding of the sum.
    """
    return (clip * (1 - 2.0**-10) / norms.clamp(min=math.ulp(0.0))).clamp(max=1.0)
