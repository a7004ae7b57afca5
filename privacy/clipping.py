"""Each patient's contribution to a gradient in a pass: bounds on norms, and weighted sums over patients.

There are three forms. `Separate` holds a gradient for each patient. `Products` holds the rows whose outer products sum
to it ("ghost clipping", Li et al., ICLR 2022). `Lookups` holds gradients of the rows of a table that were looked up.

A patient's contribution depends on the patient's own rows alone, and so does the choice between ways to compute its
norm and its sum. Products in single precision round, so that only a bound on their norm is known: clipping uses this
bound.

Under differential privacy, the first dimension of every tensor between a model's trained values is over items that each
belong to one patient: rows, distinct pictures, distinct beginnings of questions. A model declares them by `owned`.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import torch

_owners: ContextVar[torch.Tensor | None] = ContextVar("owners", default=None)


@contextmanager
def owned(owners: torch.Tensor | None) -> Iterator[None]:
    """A context in which the first dimension of tensors is over items of these patients, int64 [items] in ascending
    order.

    None if patients do not matter: in plain training, and without training.
    """
    token = _owners.set(owners)
    try:
        yield
    finally:
        _owners.reset(token)


def current_owners() -> torch.Tensor | None:
    """The owners that the innermost `owned` declares; None without one."""
    return _owners.get()


Gradients = dict[torch.Tensor, torch.Tensor]
"""Sums of gradients by trained value."""

Terms = TypeVar("Terms", float, torch.Tensor)

ROUNDOFF = 2.0**-24
"""The unit roundoff u of single precision."""
FLOOR = 2.0**-50
"""A row's length is raised by this times the square root of its width: more than operations on numbers too small for
float32 lose, 2**-126 each."""
MOST_NUMBERS = 2**22
"""The most numbers of single patients' gradients in memory at a time: 16 MB."""
FREE_SHARE = 2.0**-10
"""The share of the clipping norm that is kept in reserve, see `clip_weights`."""
MOST_CANCELLED = 32.0
"""A patient whose rows cancel, so that their lengths sum to more than this times the gradient's norm, is summed alone:
its large numbers would round away the small ones of others. 1,000 independent Gaussian rows cancel to this."""


@dataclass(frozen=True)
class Segments:
    """Rows sorted by patient: each patient has a run of rows, which may be empty."""

    counts: torch.Tensor
    """int64 [patients]."""

    @property
    def runs(self) -> list[tuple[int, slice]]:
        """The number of each patient with rows, and the slice of these rows."""
        ends = self.counts.cumsum(0).tolist()
        return [
            (p, slice(end - n, end)) for p, (n, end) in enumerate(zip(self.counts.tolist(), ends, strict=True)) if n
        ]

    def of_rows(self, per_patient: torch.Tensor) -> torch.Tensor:
        """Repeats each patient's value for its rows: [patients, ...] to [rows, ...]."""
        return per_patient.repeat_interleave(self.counts, dim=0)

    def sums(self, rows: torch.Tensor) -> torch.Tensor:
        """Sums each patient's rows, in double precision if the rows are: [rows, ...] to [patients, ...]."""
        owners = torch.arange(len(self.counts), device=rows.device).repeat_interleave(self.counts)
        return rows.new_zeros(len(self.counts), *rows.shape[1:]).index_add_(0, owners, rows)


class GradientContribution(Protocol):
    """The contributions of a pass's patients to the gradient of a trained value, or of a range of its rows."""

    @property
    def value(self) -> torch.Tensor:
        """The trained value."""

    def squared_norms(self) -> torch.Tensor:
        """An upper bound of the squared norm of each patient's gradient, float64 [patients]."""

    def separate(self) -> "Separate":
        """The contributions as gradients of the value, one for each patient."""

    def add(self, total: torch.Tensor, weights: torch.Tensor) -> None:
        """Adds the weighted sum over patients to `total`, float64 [value's shape]; `weights`: float64 [patients]."""


@dataclass(frozen=True)
class Separate:
    """A gradient for each patient, [patients, *shape of the value]."""

    value: torch.Tensor
    each: torch.Tensor

    def squared_norms(self) -> torch.Tensor:
        return self.each.flatten(1).double().square().sum(1)

    def separate(self) -> "Separate":
        return self

    def add(self, total: torch.Tensor, weights: torch.Tensor) -> None:
        total += _weighted(self.each, weights).sum(0)


@dataclass(frozen=True)
class Products:
    """The gradient of rows `first` to `end` of a matrix: the sum over a patient's rows of outer products, left times
    right.
    """

    value: torch.Tensor
    first: int
    end: int
    left: torch.Tensor
    """[rows, end - first]."""
    right: torch.Tensor
    """[rows, all other dimensions of the value]."""
    segments: Segments

    def squared_norms(self) -> torch.Tensor:
        """Squared bounds on each patient's exact norm, and on the norm that `add` computes for it with weight 1.

        Let a patient have n rows of widths a and b, let S be the sum of the products of their lengths, and let
        gamma(k) = k u / (1 - k u). An inner product of k terms, in any order, is off by at most gamma(k) times the
        product of the lengths (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, Sec. 3.1). So
        - a number of a Gram product of inner products of a and b terms is off by gamma(a + b + 1) times four lengths,
          and their sum, the squared norm, by gamma(a + b + 1) S^2: the norm is at most sqrt(Gram + gamma S^2);
        - the sum of n outer products is off by gamma(n) S: the norm is at most its own norm + gamma(n) S;
        - weighting the rows in single precision and summing is off by gamma(n + 2) S times the weight: added to both.
        One more term in each gamma stands for rounding in double precision. S is summed from lengths in single
        precision, whose squares are off by gamma(a) and gamma(b).
        """
        return self._bounds.square()

    @cached_property
    def _scale(self) -> torch.Tensor:
        """S of each patient, float64 [patients]."""
        widths = self.left.shape[1] + self.right.shape[1]
        return self.segments.sums(_lengths(self.left) * _lengths(self.right)) * (1 + _gamma(widths + 4))

    @cached_property
    def _bounds(self) -> torch.Tensor:
        counts, widths = self.segments.counts, self.left.shape[1] + self.right.shape[1]
        by_gram = (self._gram() + _gamma(widths + 2) * self._scale**2).clamp(min=0).sqrt()
        by_sum = self._norms_of_sums() + _gamma(counts + 1) * self._scale
        return by_sum.where(self._many, by_gram) + _gamma(counts + 3) * self._scale

    @property
    def _many(self) -> torch.Tensor:
        """The patients with enough rows that a sum costs less than Gram products, bool [patients]."""
        left, right = self.left.shape[1], self.right.shape[1]
        return self.segments.counts * (left + right) >= left * right

    def _gram(self) -> torch.Tensor:
        """The squared norm of each patient with few rows, by Gram products; 0 for others."""
        gram, many = torch.zeros(len(self.segments.counts), dtype=torch.float64), self._many.tolist()
        for patient, rows in self.segments.runs:
            if not many[patient]:
                left, right = self.left[rows], self.right[rows]
                gram[patient] = (left @ left.T).mul_(right @ right.T).sum(dtype=torch.float64)
        return gram.to(self.left.device)

    def _norms_of_sums(self) -> torch.Tensor:
        """The norm of each patient with many rows, from the sum of its outer products; 0 for others."""
        many = self._many.tolist()
        norms = torch.zeros(len(many), dtype=torch.float64, device=self.left.device)
        runs = [(patient, rows) for patient, rows in self.segments.runs if many[patient]]
        size = max(1, MOST_NUMBERS // (self.left.shape[1] * self.right.shape[1]))
        for first in range(0, len(runs), size):
            part = runs[first : first + size]
            each = self._outer_sums([rows for _, rows in part])
            norms[[patient for patient, _ in part]] = each.flatten(1).double().square().sum(1).sqrt()
        return norms

    def _outer_sums(self, runs: Sequence[slice]) -> torch.Tensor:
        """The sum of outer products over each run of rows, [runs, left, right]."""
        each = self.left.new_empty(len(runs), self.left.shape[1], self.right.shape[1])
        for target, rows in zip(each, runs, strict=True):
            torch.mm(self.left[rows].T, self.right[rows], out=target)
        return each

    def add(self, total: torch.Tensor, weights: torch.Tensor) -> None:
        """Adds the weighted rows of all patients in one product, except patients whose rows cancel."""
        part = total[self.first : self.end]
        alone = self._scale > MOST_CANCELLED * self._bounds
        together = _weighted(self.left, self.segments.of_rows(weights.where(~alone, 0.0)).to(self.left))
        part += (together.T @ self.right).view_as(part)
        if not bool(alone.any()):
            return
        is_alone = alone.tolist()
        for patient, rows in self.segments.runs:
            if is_alone[patient] and weights[patient] > 0:
                weighted = self.left[rows] * weights[patient].to(self.left)
                part += (weighted.T @ self.right[rows]).view_as(part)

    def separate(self) -> Separate:
        """Each patient's gradient of the value, from these factors."""
        each = self.left.new_zeros(len(self.segments.counts), self.left.shape[1], self.right.shape[1])
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
        weighted = _weighted(self.each, self.segments.of_rows(weights))
        total.index_add_(0, self.rows, weighted.view(-1, *total.shape[1:]))

    def separate(self) -> Separate:
        owners = torch.arange(len(self.segments.counts), device=self.rows.device)
        each = self.each.new_zeros(len(owners), *self.value.shape)
        each[owners.repeat_interleave(self.segments.counts), self.rows] = self.each.view(-1, *self.value.shape[1:])
        return Separate(self.value, each)


def merge(parts: Sequence[Separate]) -> Separate:
    """Adds up, patient by patient, contributions to the gradient of one value."""
    first, *others = parts
    return Separate(first.value, sum((other.each for other in others), first.each))


def separate(parts: Sequence[GradientContribution]) -> Gradients:
    """Each patient's gradient of each value, `[patients, *shape]`. Needs memory for all of them."""
    by_value: dict[torch.Tensor, list[Separate]] = {}
    for part in parts:
        by_value.setdefault(part.value, []).append(part.separate())
    return {value: merge(each).each for value, each in by_value.items()}


def _padded(each: torch.Tensor, value: torch.Tensor, first: int) -> torch.Tensor:
    if each.shape[1:] == value.shape:
        return each
    padded = each.new_zeros(len(each), *value.shape)
    padded[:, first : first + each.shape[1]] = each
    return padded


def _weighted(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`rows` times `weights` [len(rows)], in the higher of both precisions; zeros where a weight is 0, in any row."""
    by_row = weights.view(-1, *[1] * (rows.dim() - 1))
    product = rows * by_row
    return product if bool(weights.all()) else product.where(by_row > 0, 0.0)


def _lengths(rows: torch.Tensor) -> torch.Tensor:
    """The length of each row, float64 [rows], plus the most that float32 may lose of very small numbers."""
    lengths: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths.double() + FLOOR * math.sqrt(rows.shape[1])


def _gamma(terms: Terms) -> Terms:
    """The largest relative error of `terms` roundings in single precision."""
    return terms * ROUNDOFF / (1 - terms * ROUNDOFF)


def clip_weights(norms: torch.Tensor, clip: float) -> torch.Tensor:
    """The factor for each patient's gradient, float64 [patients], with which no norm exceeds `clip`.

    The bound in use is a little below `clip`, so that two neighbours' sums differ by at most `clip` in spite of
    rounding. Half of that reserve is for a forward pass over one patient more, which rounds the others' rows
    differently; half is for rounding both sums to the noise's grid, see `grid_step`.
    """
    return (clip * (1 - FREE_SHARE) / norms.clamp(min=math.ulp(0.0))).clamp(max=1.0)
