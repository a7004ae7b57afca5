"""Rules for each kind of layer while a `Recorder` is open: compute the output on detached values, record the use."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from privacy.clipping import current_owners
from privacy.errors import SettingsError

if TYPE_CHECKING:
    from privacy.recorder import Recorder

RAMP = 2.0**-7
"""In a private step the derivative of ReLU rises from 0 at zero to 1 at this input, linearly."""


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


def _still(tensor: Any) -> Any:
    return tensor.detach() if isinstance(tensor, torch.Tensor) else tensor


def _watched(output: torch.Tensor) -> torch.Tensor:
    """The output, made to require a gradient even if none of its inputs does."""
    return output if output.requires_grad else output.requires_grad_()


def _linear(
    recorder: "Recorder", function: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    output = _watched(function(inputs, _still(weight), _still(bias)))
    rows = inputs.detach().reshape(-1, inputs.shape[-1])
    if of := recorder.range_of(weight):
        recorder.note(of, output, lambda gradient: Outer(gradient.reshape(-1, gradient.shape[-1]), rows), inputs)
    if of := recorder.range_of(bias):
        recorder.note(of, output, lambda gradient: RowGradients(_summed(gradient, gradient.shape[-1])))
    return output


def _layer_norm(
    recorder: "Recorder",
    function: Any,
    inputs: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    output, numbers = (
        _watched(function(inputs, normalized_shape, _still(weight), _still(bias), eps)),
        prod(normalized_shape),
    )
    if of := recorder.range_of(weight):
        normalised = F.layer_norm(inputs.detach(), list(normalized_shape), None, None, eps)
        recorder.note(of, output, lambda gradient: RowGradients(_summed(gradient * normalised, numbers)))
    if of := recorder.range_of(bias):
        recorder.note(of, output, lambda gradient: RowGradients(_summed(gradient, numbers)))
    return output


def _convolution(
    recorder: "Recorder",
    function: Any,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    *others: Any,
    **options: Any,
) -> torch.Tensor:
    """The rule for a convolution. `others`: dilation and groups."""
    padding = 0 if padding == "valid" else padding
    dilation, groups = (*others, *(1, 1)[len(others) :])[:2]
    dilation, groups = options.pop("dilation", dilation), options.pop("groups", groups)
    others = (dilation, groups)
    if groups != 1 and inputs.dim() == 4:
        _simple(inputs, padding, (dilation,), options, ((1, 1),))
        return _grouped(recorder, function, inputs, weight, bias, stride, padding, groups)
    _simple(inputs, padding, others, options, ((1, 1), 1))
    output = _watched(function(inputs, _still(weight), _still(bias), stride, padding, *others))
    if of := recorder.range_of(weight):
        patches = F.unfold(inputs.detach(), weight.shape[2:], padding=padding, stride=stride).transpose(1, 2)
        flat = patches.reshape(-1, patches.shape[-1])
        recorder.note(of, output, lambda gradient: Outer(_places(gradient), flat))
    if of := recorder.range_of(bias):
        recorder.note(of, output, lambda gradient: RowGradients(_by_channel(gradient)))
    return output


def _transposed(
    recorder: "Recorder",
    function: Any,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    *others: Any,
    **options: Any,
) -> torch.Tensor:
    """The rule for a transposed convolution. `others`: output padding, groups and dilation."""
    _simple(inputs, padding, others, options, ((0, 0), 1, (1, 1)))
    output = _watched(function(inputs, _still(weight), _still(bias), stride, padding, *others))
    if of := recorder.range_of(weight):
        places = _places(inputs.detach())

        def terms(gradient: torch.Tensor) -> Outer:
            patches = F.unfold(gradient, weight.shape[2:], padding=padding, stride=stride).transpose(1, 2)
            return Outer(places, patches.reshape(-1, patches.shape[-1]))

        recorder.note(of, output, terms, inputs)
    if of := recorder.range_of(bias):
        recorder.note(of, output, lambda gradient: RowGradients(_by_channel(gradient)))
    return output


def _grouped(
    recorder: "Recorder",
    function: Any,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Any,
    padding: Any,
    groups: int,
) -> torch.Tensor:
    """The rule for a convolution of groups of channels: computes each item's gradient of the weight, group by group."""
    output = _watched(function(inputs, _still(weight), _still(bias), stride, padding, 1, groups))
    if of := recorder.range_of(weight):
        still, size = inputs.detach(), weight.shape[2:]

        def terms(gradient: torch.Tensor) -> RowGradients:
            patches = F.unfold(still, size, padding=padding, stride=stride)
            patches = patches.view(len(still), groups, -1, patches.shape[-1])
            by_group = gradient.reshape(len(gradient), groups, -1, patches.shape[-1])
            return RowGradients((by_group @ patches.transpose(2, 3)).flatten(1))

        recorder.note(of, output, terms, inputs)
    if of := recorder.range_of(bias):
        recorder.note(of, output, lambda gradient: RowGradients(_by_channel(gradient)))
    return output


def _batch_norm(
    recorder: "Recorder",
    function: Any,
    inputs: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Normalisation by fixed statistics. Statistics of a batch would mix patients, and are refused."""
    if training or running_mean is None or running_var is None:
        raise SettingsError("batch normalisation by the statistics of a batch mixes patients: use fixed ones")
    output = _watched(function(inputs, running_mean, running_var, _still(weight), _still(bias), False, momentum, eps))
    if of := recorder.range_of(weight):
        normalised = F.batch_norm(inputs.detach(), running_mean, running_var, None, None, False, momentum, eps)
        recorder.note(of, output, lambda gradient: RowGradients(_by_channel(gradient * normalised)))
    if of := recorder.range_of(bias):
        recorder.note(of, output, lambda gradient: RowGradients(_by_channel(gradient)))
    # ResNets add to this output in place; what was noted stays as it is.
    return output.clone()


def _group_norm(
    recorder: "Recorder",
    function: Any,
    inputs: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Normalisation within each item, which reaches no other patient."""
    output = _watched(function(inputs, num_groups, _still(weight), _still(bias), eps))
    if of := recorder.range_of(weight):
        normalised = F.group_norm(inputs.detach(), num_groups, None, None, eps)
        recorder.note(of, output, lambda gradient: RowGradients(_by_channel(gradient * normalised)))
    if of := recorder.range_of(bias):
        recorder.note(of, output, lambda gradient: RowGradients(_by_channel(gradient)))
    return output.clone()  # as for batch normalisation


def _instance_norm(
    recorder: "Recorder",
    function: Any,
    inputs: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Normalisation of each channel of each item, computed as group normalisation with one channel per group."""
    if running_mean is not None or not use_input_stats:
        raise SettingsError("instance normalisation by statistics of earlier items mixes patients: do not track them")
    return _group_norm(recorder, F.group_norm, inputs, inputs.shape[1], weight, bias, eps)


def _simple(
    inputs: torch.Tensor, padding: Any, others: Sequence[Any], options: Mapping[str, Any], defaults: Sequence[Any]
) -> None:
    """Raises `SettingsError` for a kind of convolution that the rules do not cover."""
    settings = [
        (other,) * 2 if isinstance(other, int) and isinstance(d, tuple) else other
        for other, d in zip(others, defaults, strict=False)
    ]
    if inputs.dim() != 4 or isinstance(padding, str) or options or settings != list(defaults[: len(others)]):
        raise SettingsError("a convolution with dilation or named padding has no gradient per patient: freeze it")


def _embedding(
    recorder: "Recorder",
    function: Any,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """Looks up rows of a table. One look-up that all items share is repeated for each item."""
    owners, of = current_owners(), recorder.range_of(weight)
    if of is None or weight.shape[1:] != of.value.shape[1:] or max_norm is not None or scale_grad_by_freq:
        raise SettingsError(
            "a table that is reshaped, or scaled when it is looked up, has no gradient per patient: freeze it"
        )
    if owners is not None and len(inputs) == 1 < len(owners):
        inputs = inputs.expand(len(owners), *inputs.shape[1:])
    output = _watched(F.embedding(inputs, _still(weight)))
    rows, blank = inputs.reshape(-1), padding_idx if padding_idx is None else padding_idx % len(weight)

    def terms(gradient: torch.Tensor) -> Lookup:
        each = gradient.reshape(-1, gradient.shape[-1])
        return Lookup(rows + of.first, each if blank is None else each * (rows != blank)[:, None])

    recorder.note(of, output, terms)
    return output


def _item(recorder: "Recorder", function: Any, tensor: torch.Tensor, index: Any) -> torch.Tensor:
    of = recorder.range_of(tensor)
    if of is None or tensor.dim() == 0 or len(tensor) != len(of.value) or of.end - of.first != len(of.value):
        return torch.as_tensor(function(tensor, index))
    if isinstance(index, slice) and index.step in (None, 1):
        first, end, _ = index.indices(len(tensor))
        return recorder.show(function(tensor, index), Range(of.value, first, end))
    if type(index) is int:
        first = index % len(tensor)
        return recorder.show(function(tensor, index), Range(of.value, first, first + 1))
    if isinstance(index, torch.Tensor) and index.dtype == torch.int64 and tensor.dim() == 2:
        return _embedding(recorder, None, index, tensor)
    return torch.as_tensor(function(tensor, index))


def _view(recorder: "Recorder", function: Any, tensor: torch.Tensor, *shape: Any) -> torch.Tensor:
    view = function(tensor, *shape)
    of = recorder.range_of(tensor)
    return recorder.show(view, of) if of else view


def _expand(recorder: "Recorder", function: Any, tensor: torch.Tensor, *shape: Any) -> torch.Tensor:
    """Expands a value to items: only its first dimension, of length 1 or new, may grow."""
    of = recorder.range_of(tensor)
    output = function(_still(tensor) if of else tensor, *shape)
    before = (1,) * (output.dim() - tensor.dim()) + tuple(tensor.shape)
    if of is None or not before or before[0] != 1 or before[1:] != tuple(output.shape[1:]):
        return torch.as_tensor(function(tensor, *shape))
    output, size = _watched(output.clone()), tensor.numel()
    recorder.note(of, output, lambda gradient: RowGradients(gradient.reshape(len(gradient), size)))
    return output


def _sum(recorder: "Recorder", function: Any, first: Any, second: Any) -> torch.Tensor:
    """Adds items and a value that is the same for all items."""
    (value, items) = (first, second) if recorder.range_of(first) else (second, first)
    of = recorder.range_of(value)
    if of is None or not isinstance(items, torch.Tensor) or recorder.range_of(items):
        return torch.as_tensor(function(first, second))
    output = _watched(items + _still(value))
    shape = value.shape
    recorder.note(of, output, lambda gradient: RowGradients(_reduced(gradient, shape)))
    return output


def _product(recorder: "Recorder", function: Any, first: Any, second: Any) -> torch.Tensor:
    """Scales items by a value that is the same for all items, such as a layer scale."""
    (value, items) = (first, second) if recorder.range_of(first) else (second, first)
    of = recorder.range_of(value)
    if of is None or not isinstance(items, torch.Tensor) or recorder.range_of(items):
        return torch.as_tensor(function(first, second))
    output, still, shape = _watched(items * _still(value)), items.detach(), value.shape
    recorder.note(of, output, lambda gradient: RowGradients(_reduced(gradient * still, shape)), items)
    return output


def _summed(gradient: torch.Tensor, width: int) -> torch.Tensor:
    """The gradient [items, ..., width], summed over all positions of each item."""
    return gradient.reshape(len(gradient), -1, width).sum(1)


def _by_channel(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient [items, channels, ...], summed over all places of each item."""
    return gradient.reshape(*gradient.shape[:2], -1).sum(2)


def _places(maps: torch.Tensor) -> torch.Tensor:
    """Maps [items, channels, height, width] as rows of places, [items * places, channels]."""
    return maps.flatten(2).transpose(1, 2).reshape(-1, maps.shape[1])


def _reduced(gradient: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The gradient [items, ...], summed over the dimensions along which a value of `shape` was broadcast: [items,
    numbers].
    """
    extra = gradient.dim() - len(shape)
    if len(shape) == gradient.dim() and shape[0] != 1:
        raise SettingsError("a parameter has separate values for each item of a batch: no gradient by patient")
    full_shape = [1] * extra + list(shape)
    along = [d for d in range(1, gradient.dim()) if full_shape[d] == 1 and gradient.shape[d] != 1]
    return (gradient.sum(along) if along else gradient).reshape(len(gradient), -1)


class _Ramped(torch.autograd.Function):
    """ReLU, with a derivative that rises linearly over [0, `RAMP`]."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward((inputs / RAMP).clamp(0, 1))
        return inputs.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        slope: torch.Tensor = ctx.saved_tensors[0]
        return gradient * slope


def ramped_relu(inputs: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """ReLU without a jump in its derivative.

    Patients of one pass share matrix products, so that one patient more changes the rounding of the others' numbers.
    At a jump, that could switch a unit of another patient on or off, and move the gradient by more than rounding.
    """
    output: torch.Tensor = _Ramped.apply(inputs)
    return inputs.copy_(output) if inplace else output


RELUS: Mapping[Any, Callable[..., torch.Tensor]] = MappingProxyType(
    {
        **dict.fromkeys((torch.relu, torch.Tensor.relu, F.relu), ramped_relu),
        **dict.fromkeys((torch.relu_, torch.Tensor.relu_, F.relu_), partial(ramped_relu, inplace=True)),
    }
)
"""What takes the place of each form of ReLU in a private step."""

RULES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        F.linear: _linear,
        F.layer_norm: _layer_norm,
        F.conv2d: _convolution,
        F.conv_transpose2d: _transposed,
        F.embedding: _embedding,
        torch.Tensor.__getitem__: _item,
        torch.Tensor.view: _view,
        torch.Tensor.reshape: _view,
        torch.Tensor.unsqueeze: _view,
        torch.Tensor.expand: _expand,
        torch.Tensor.add: _sum,
        torch.Tensor.__radd__: _sum,
        torch.Tensor.__add__: _sum,
        F.batch_norm: _batch_norm,
        F.group_norm: _group_norm,
        F.instance_norm: _instance_norm,
        torch.mul: _product,
        torch.Tensor.mul: _product,
        torch.Tensor.__mul__: _product,
        torch.Tensor.__rmul__: _product,
    }
)
"""Rules by torch function; each is called with the recorder, the function and its arguments."""
