"""Per-patient gradients of one backward pass, their clipped sum, and the noise on it (DP-SGD, Abadi et al., 2016).

A patient is a sample and its rows are positions of it, so that Opacus' per-sample rules for layers give the gradient
of all of a patient's rows together. A linear layer never holds one gradient per patient: Opacus' norm rule gives its
norms, and its clipped sum is a product of weighted rows ("ghost clipping", Li et al., ICLR 2022).
Parameters that a model uses once per patient, as prompts, are expanded instead: one leaf per patient, whose gradient
is that patient's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from privacy.errors import SettingsError
from privacy.noise import Randomness

Gradients = dict[torch.Tensor, torch.Tensor]
"""By parameter."""


Rule = Callable[[nn.Module, list[torch.Tensor], torch.Tensor], Gradients]
"""Layer, inputs and gradients of the output to what Opacus computes for each sample, by parameter."""


def _gradient_rules() -> Mapping[type[nn.Module], Rule]:
    # Opacus takes seconds to import, and jobs without differential privacy do without it.
    from opacus.grad_sample import GradSampleModule

    rules: Mapping[type[nn.Module], Rule] = GradSampleModule.GRAD_SAMPLERS
    return rules


def _norm_rules() -> Mapping[type[nn.Module], Rule]:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    rules: Mapping[type[nn.Module], Rule] = GradSampleModuleFastGradientClipping.NORM_SAMPLERS
    return rules


class Contribution(Protocol):
    """How the patients of a batch contribute to the gradient of some parameters."""

    def squared_norms(self) -> torch.Tensor:
        """Of each patient's gradient, [patients]."""

    def weighted_sum(self, weights: torch.Tensor) -> Gradients:
        """The sum over patients with `weights` [patients], of each parameter's shape."""

    def each(self) -> Gradients:
        """Every patient's gradient, `[patients, *shape]`."""


@dataclass(frozen=True)
class Separate:
    """Gradients that are there for each patient."""

    gradients: Gradients

    def squared_norms(self) -> torch.Tensor:
        return torch.stack([gradient.flatten(1).square().sum(1) for gradient in self.gradients.values()]).sum(0)

    def weighted_sum(self, weights: torch.Tensor) -> Gradients:
        return {parameter: torch.einsum("p,p...->...", weights, each) for parameter, each in self.gradients.items()}

    def each(self) -> Gradients:
        return self.gradients


@dataclass(frozen=True)
class _Linear:
    """A linear layer's inputs [patients, rows, in] and output gradients [patients, rows, out], padded with zeros."""

    layer: nn.Linear
    inputs: torch.Tensor
    outputs: torch.Tensor

    def squared_norms(self) -> torch.Tensor:
        norms = _norm_rules()[nn.Linear](self.layer, [self.inputs], self.outputs)
        return torch.stack([norm.square() for norm in norms.values()]).sum(0)

    def weighted_sum(self, weights: torch.Tensor) -> Gradients:
        weight, bias = self.layer.weight, self.layer.bias
        outputs = (self.outputs * weights[:, None, None]).flatten(0, 1)
        sums: Gradients = {}
        if weight.requires_grad:
            sums[self.layer.weight] = outputs.T @ self.inputs.flatten(0, 1)
        if bias is not None and bias.requires_grad:
            sums[bias] = outputs.sum(0)
        return sums

    def each(self) -> Gradients:
        return _gradient_rules()[nn.Linear](self.layer, [self.inputs], self.outputs)


class Recorder:
    """Records what a model's trainable layers compute in one forward pass, while it is open."""

    def __init__(self, model: nn.Module, expanded: Iterable[nn.Parameter] = ()) -> None:
        """`expanded`: parameters of the model whose gradients come from leaves of their own.

        Raises `SettingsError` if another parameter belongs to a layer that Opacus has no rule for.
        """
        apart = set(expanded)
        self._layers = [
            layer
            for layer in model.modules()
            if any(p.requires_grad and p not in apart for p in layer.parameters(recurse=False))
        ]
        for layer in self._layers:
            if type(layer) not in _gradient_rules():
                raise SettingsError(f"a {type(layer).__name__} layer has no gradient per patient: freeze or replace it")
        self._calls: list[tuple[nn.Module, torch.Tensor, torch.Tensor]] = []
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> "Recorder":
        self._hooks = [layer.register_forward_hook(self._note) for layer in self._layers]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note(self, layer: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        self._calls.append((layer, inputs[0].detach(), output))

    def contributions(
        self, loss: torch.Tensor, owners: torch.Tensor, patients: int, leaves: Mapping[nn.Parameter, torch.Tensor]
    ) -> list[Contribution]:
        """Back-propagate `loss`, a sum over rows of which each depends on its patient alone.

        `owners`: each row's patient, int64 [rows] in 0..patients-1. `leaves`: what stood for each expanded
        parameter in the forward pass, `[patients, *shape]`. A patient with a gradient that is not finite
        contributes nothing.
        """
        outputs = [output for _, _, output in self._calls]
        found = torch.autograd.grad(loss, [*outputs, *leaves.values()], materialize_grads=True)
        by_row, by_patient = found[: len(outputs)], found[len(outputs) :]
        sound = torch.ones(patients, dtype=torch.bool, device=loss.device)
        for rows in (*by_row, *(inputs for _, inputs, _ in self._calls)):
            sound[owners[~rows.flatten(1).isfinite().all(1)]] = False
        for each in by_patient:
            sound &= each.flatten(1).isfinite().all(1)
        parts = [
            _layer_part(layer, _kept(inputs, sound[owners]), _kept(gradient, sound[owners]), owners, patients)
            for (layer, inputs, _), gradient in zip(self._calls, by_row, strict=True)
        ]
        if leaves:
            parts.append(Separate({p: _kept(each, sound) for p, each in zip(leaves, by_patient, strict=True)}))
        return _merged(parts)


def _layer_part(
    layer: nn.Module, inputs: torch.Tensor, outputs: torch.Tensor, owners: torch.Tensor, patients: int
) -> Contribution:
    if isinstance(layer, nn.Linear) and inputs.dim() == 2:
        rows = _Grid(owners, patients)
        return _Linear(layer, rows.spread(inputs), rows.spread(outputs))
    by_row = _gradient_rules()[type(layer)](layer, [inputs], outputs)
    sums = {p: each.new_zeros(patients, *each.shape[1:]).index_add_(0, owners, each) for p, each in by_row.items()}
    return Separate(sums)


def _kept(values: torch.Tensor, sound: torch.Tensor) -> torch.Tensor:
    """`values` where `sound` [len(values)] holds, zeros elsewhere."""
    return values.where(sound.view(-1, *[1] * (values.dim() - 1)), 0.0)


class _Grid:
    """Lays rows out as [patients, most rows of one]."""

    def __init__(self, owners: torch.Tensor, patients: int) -> None:
        order = torch.argsort(owners, stable=True)
        counts = torch.bincount(owners, minlength=patients)
        first = counts.cumsum(0) - counts
        self._width = int(counts.max()) if len(owners) else 0
        self._patients = patients
        self._place = torch.empty_like(owners)
        self._place[order] = torch.arange(len(owners), device=owners.device) - first[owners[order]]
        self._place += owners * self._width

    def spread(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, width] to [patients, most, width], zeros where a patient has fewer rows."""
        grid = rows.new_zeros(self._patients * self._width, rows.shape[1])
        return grid.index_copy_(0, self._place, rows).view(self._patients, self._width, -1)


def _merged(parts: Sequence[Contribution]) -> list[Contribution]:
    """A layer that was called twice has one gradient: the sum, which only exists patient by patient."""
    called: dict[frozenset[torch.Tensor], list[Contribution]] = {}
    for part in parts:
        owned = part.layer.parameters() if isinstance(part, _Linear) else part.each()
        called.setdefault(frozenset(owned), []).append(part)
    return [same[0] if len(same) == 1 else _sum(same) for same in called.values()]


def _sum(parts: Sequence[Contribution]) -> Contribution:
    total = dict(parts[0].each())
    for part in parts[1:]:
        for parameter, gradient in part.each().items():
            total[parameter] = total[parameter] + gradient
    return Separate(total)


class PrivateStep:
    """One step's gradient: the sum of clipped patient gradients over any number of passes, plus noise, once."""

    def __init__(self, parameters: Iterable[nn.Parameter], clip: float) -> None:
        """`clip`: C, the largest norm that one patient's gradient over all `parameters` has in the sum."""
        self._clip = clip
        self._sums: Gradients = {one: torch.zeros_like(one, dtype=torch.float64) for one in parameters}

    def add(self, contributions: Sequence[Contribution]) -> None:
        """Clip and add the patients of one pass; no patient is in two passes of a step.

        Raises `SettingsError` if the contributions are not of exactly the step's parameters.
        """
        norms = torch.stack([part.squared_norms() for part in contributions]).sum(0).sqrt()
        weights = (self._clip / (norms * (1 + _ROUNDING))).clamp(max=1.0)
        seen = set()
        for part in contributions:
            for parameter, gradient in part.weighted_sum(weights).items():
                self._sums[parameter] += gradient
                seen.add(parameter)
        if seen != set(self._sums):
            raise SettingsError("a trained parameter took no part in the loss: freeze it, or use it")

    def finish(self, noise: float, divisor: float, randomness: Randomness) -> None:
        """Set every parameter's `grad` to (sum + normal(0, noise * C)) / divisor, also where nobody was drawn.

        Terms of the loss that do not depend on data may be back-propagated afterwards: they add to it.
        """
        sizes = [total.numel() for total in self._sums.values()]
        drawn = randomness.normal((sum(sizes),), noise * self._clip).double()
        for (parameter, total), part in zip(self._sums.items(), torch.split(drawn, sizes), strict=True):
            noisy = (total + part.view_as(total).to(total.device)) / divisor
            parameter.grad = noisy.to(parameter.dtype)


_ROUNDING = 1e-6
"""Single precision sums may be this much too small; clipping allows for it, so that C holds."""
