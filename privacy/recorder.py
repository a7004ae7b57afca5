"""Records every use of trained values in a forward pass, so that one backward pass gives each patient's gradient.

While it is open, a linear layer, a normalisation, a convolution, a look-up or a sum uses a detached copy of its trained
value (`layer_rules`). The gradient of the layer's output then gives the value's gradient, patient by patient. A value
that is used in any other way still gets a gradient from torch, and is refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from privacy.clipping import GradientContribution, Lookups, Products, Segments, Separate, current_owners, merge
from privacy.errors import SettingsError
from privacy.layer_rules import RELUS, RULES, LayerUse, Lookup, Outer, Range, RowGradients


@dataclass
class Recorder(TorchFunctionMode):
    """Records one forward pass, as a context manager around it; then `contributions` gives the patients' gradients."""

    values: Sequence[torch.Tensor]
    """The trained values that are not expanded: leaves that require gradients."""
    _uses: list[LayerUse] = field(default_factory=list)
    _ranges: dict[int, tuple[torch.Tensor, Range]] = field(default_factory=dict)
    """Each trained value, or view of its rows, by its `id`, with its range. Keeping the tensor keeps its id unique."""

    def __post_init__(self) -> None:
        super().__init__()
        for value in self.values:
            self._ranges[id(value)] = value, Range(value, 0, len(value))

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in RELUS and torch.is_grad_enabled():
            return RELUS[function](*args, **(kwargs or {}))
        rule = RULES.get(function) if torch.is_grad_enabled() else None
        if rule is None or not any(isinstance(a, torch.Tensor) and id(a) in self._ranges for a in _flat(args, kwargs)):
            return function(*args, **(kwargs or {}))
        return rule(self, function, *args, **(kwargs or {}))

    def contributions(
        self, loss: torch.Tensor, patients: int, leaves: Mapping[torch.Tensor, torch.Tensor]
    ) -> tuple[list[GradientContribution], torch.Tensor]:
        """Back-propagates `loss`, a sum of rows' losses that each depend only on the row's own patient.

        `leaves`: the leaf `[patients, *shape]` of each expanded value. Returns the contributions of patients 0 to
        `patients` - 1, and whether each one's gradients are finite, bool [patients]; those that are not are zeros.
        Raises `SettingsError` if a value was used in a way that no rule knows.
        """
        if not all(use.intact for use in self._uses):
            raise SettingsError("the model overwrites a trained layer's input or output in place: use a copy")
        if not loss.requires_grad:
            raise SettingsError("no trained parameter took part in the loss: freeze them, or use them")
        outputs = [use.output for use in self._uses]
        gradients = torch.autograd.grad(loss, [*outputs, *leaves.values(), *self.values], allow_unused=True)
        if any(gradient is not None for gradient in gradients[len(outputs) + len(leaves) :]):
            raise SettingsError("a trained value is used in a way that gives no gradient per patient: freeze it")
        parts = _Parts(patients, loss.device)
        for use, gradient in zip(self._uses, gradients, strict=False):
            if gradient is not None:
                parts.add(use, gradient)
        separate = [
            Separate(value, torch.zeros_like(leaf) if each is None else each)
            for (value, leaf), each in zip(leaves.items(), gradients[len(outputs) :], strict=False)
        ]
        return parts.contributions(separate)

    def range_of(self, tensor: Any) -> Range | None:
        """The range of a trained value that a tensor is a view of; None if it is not one."""
        entry = self._ranges.get(id(tensor))
        return entry[1] if entry else None

    def show(self, tensor: torch.Tensor, range_: Range) -> torch.Tensor:
        """Registers a tensor as a view of this range, and returns it."""
        self._ranges[id(tensor)] = tensor, range_
        return tensor

    def note(
        self,
        of: Range,
        output: torch.Tensor,
        terms: Callable[[torch.Tensor], Outer | RowGradients | Lookup],
        *inputs: torch.Tensor,
    ) -> None:
        """Records a use; `inputs`: tensors of the model that `terms` reads later.

        Raises `SettingsError` outside of `owned`: the owners of the items must be known.
        """
        owners = current_owners()
        if owners is None or len(owners) != len(output):
            raise SettingsError("a layer works on items whose patients the model does not name: see `owned`")
        versions = tuple((tensor, tensor._version) for tensor in (output, *inputs))
        self._uses.append(LayerUse(of, output, owners, terms, versions))


class _Parts:
    """The uses of one pass, grouped by trained value."""

    def __init__(self, patients: int, device: torch.device) -> None:
        self._patients = patients
        self._sound = torch.ones(patients, dtype=torch.bool, device=device)
        self._terms: dict[tuple[torch.Tensor, int, int], list[tuple[torch.Tensor, Outer | RowGradients | Lookup]]] = {}

    def add(self, use: LayerUse, gradient: torch.Tensor) -> None:
        """Adds a use, with the gradient of its output."""
        terms = use.terms(gradient)
        for rows in vars(terms).values():
            if rows.is_floating_point() and not bool(rows.sum().isfinite()):
                owners = _by_row(use.owners, rows)
                self._sound[owners[~rows.flatten(1).isfinite().all(1)]] = False
        self._terms.setdefault((use.of.value, use.of.first, use.of.end), []).append((use.owners, terms))

    def contributions(self, separate: list[Separate]) -> tuple[list[GradientContribution], torch.Tensor]:
        """The contributions of all parts; gradients of unsound patients are zero in them."""
        for part in separate:
            self._sound &= part.each.flatten(1).isfinite().all(1)
        gradients: list[GradientContribution] = [
            Separate(part.value, _kept(part.each, self._sound)) for part in separate
        ]
        by_value: dict[torch.Tensor, list[GradientContribution]] = {}
        for (value, first, end), terms in self._terms.items():
            by_value.setdefault(value, []).extend(self._of_range(Range(value, first, end), terms))
        for parts in by_value.values():
            gradients.extend(_apart(parts))
        return gradients, self._sound

    def _of_range(self, of: Range, terms: list[tuple[torch.Tensor, Any]]) -> list[GradientContribution]:
        """The contributions to one range: its products, its sums and its look-ups, one of each kind at most."""
        contributions: list[GradientContribution] = []
        for kind in (Outer, RowGradients, Lookup):
            matches = [(owners, item) for owners, item in terms if isinstance(item, kind)]
            if matches:
                contributions.append(_MERGED[kind](self, of, matches))
        return contributions

    def _outer(self, of: Range, terms: list[tuple[torch.Tensor, Outer]]) -> GradientContribution:
        segments, left, right = self._in_order(terms, "left", "right")
        return Products(of.value, of.first, of.end, left, right, segments)

    def _rows(self, of: Range, terms: list[tuple[torch.Tensor, RowGradients]]) -> GradientContribution:
        segments, each = self._in_order(terms, "each")
        sums = segments.sums(each).view(self._patients, of.end - of.first, *of.value.shape[1:])
        if sums.shape[1:] == of.value.shape:
            return Separate(of.value, sums)
        padded_sums = sums.new_zeros(self._patients, *of.value.shape)
        padded_sums[:, of.first : of.end] = sums
        return Separate(of.value, padded_sums)

    def _looked(self, of: Range, terms: list[tuple[torch.Tensor, Lookup]]) -> GradientContribution:
        segments, rows, each = self._in_order(terms, "rows", "each")
        owners = torch.arange(self._patients, device=rows.device).repeat_interleave(segments.counts)
        pairs, place = torch.unique(torch.stack([owners, rows]), dim=1, return_inverse=True)
        sums = each.new_zeros(pairs.shape[1], each.shape[1]).index_add_(0, place, each)
        return Lookups(of.value, pairs[1], sums, Segments(torch.bincount(pairs[0], minlength=self._patients)))

    def _in_order(self, terms: list[tuple[torch.Tensor, Any]], *names: str) -> tuple[Any, ...]:
        """Segments and columns of several uses' rows, sorted by patient, with zeros for patients that are not sound."""
        owners = _joined([_by_row(whose, getattr(item, names[0])) for whose, item in terms])
        columns = [_joined([getattr(item, name) for _, item in terms]) for name in names]
        if not bool((owners[1:] >= owners[:-1]).all()):
            order = torch.argsort(owners, stable=True)
            owners, columns = owners[order], [column[order] for column in columns]
        if not bool(self._sound.all()):
            columns = [_kept(c, self._sound[owners]) if c.is_floating_point() else c for c in columns]
        return Segments(torch.bincount(owners, minlength=self._patients)), *columns


_MERGED: dict[type, Callable[[_Parts, Range, Any], GradientContribution]] = {
    Outer: _Parts._outer,
    RowGradients: _Parts._rows,
    Lookup: _Parts._looked,
}


def _apart(parts: list[GradientContribution]) -> list[GradientContribution]:
    """Contributions to one value with squared norms that add up: to disjoint ranges, or else merged into one.

    Raises `SettingsError` for a table that is used both by a look-up and by another layer.
    """
    products = [part for part in parts if isinstance(part, Products)]
    ranges = sorted((part.first, part.end) for part in products)
    disjoint = all(end <= first for (_, end), (first, _) in zip(ranges, ranges[1:], strict=False))
    if len(parts) == 1 or (len(products) == len(parts) and disjoint):
        return parts
    separate = [part.separate() if isinstance(part, Products) else part for part in parts]
    separate_parts = [part for part in separate if isinstance(part, Separate)]
    if len(separate_parts) < len(parts):
        raise SettingsError("an embedding table is used by a look-up and by another layer: freeze it")
    return [merge(separate_parts)]


def _by_row(owners: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The patient of each row. Raises `SettingsError` unless every item has the same number of rows."""
    if len(rows) % max(1, len(owners)):
        raise SettingsError("a layer's first dimension is not the batch: its rows cannot be divided among the items")
    return owners.repeat_interleave(len(rows) // max(1, len(owners)))


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Like `torch.cat`, but does not copy a single part."""
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]


def _kept(rows: torch.Tensor, sound: torch.Tensor) -> torch.Tensor:
    """`rows` where `sound` [len(rows)] holds, zeros elsewhere."""
    return rows.where(sound.view(-1, *[1] * (rows.dim() - 1)), 0.0)


def _flat(args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Iterable[Any]:
    return (*args, *(kwargs or {}).values())
