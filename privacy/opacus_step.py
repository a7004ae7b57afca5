"""A private step that uses Opacus' `DPOptimizer` for clipping, sum, scaling and count of steps.

Opacus clips along the first dimension of each parameter's `grad_sample`. Here each entry is a whole patient's gradient,
from a `Recorder`, so Opacus' unit becomes the patient. Opacus' own noise is float32 from a seeded generator, and its
low bits may reveal the sum: `add_noise` uses the site's noise on the project's grid instead.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer

from privacy.clipping import FREE_SHARE, GradientContribution, Gradients, separate
from privacy.dp_sgd import PrivateStep
from privacy.errors import SettingsError


class StepCount(RDPAccountant):  # type: ignore[misc]  # Opacus is not typed
    """Opacus' accountant of the steps of a round, attached to each step as its hook."""

    def check(self, charged: int) -> None:
        """Raises `SettingsError` if Opacus counts more steps than the site's ledger was charged."""
        counted = sum(steps for _, _, steps in self.history)
        if counted > charged:
            raise SettingsError(f"Opacus counts {counted} private steps where {charged} were charged: report this bug")


class _SiteNoise(DPOptimizer):  # type: ignore[misc]
    """Opacus' optimiser, with the noisy sums of `PrivateStep`."""

    noisy: Sequence[torch.Tensor]

    def add_noise(self) -> None:
        for parameter, total in zip(self.params, self.noisy, strict=True):
            parameter.grad = total.view_as(parameter)


class OpacusStep(PrivateStep):
    """Like `PrivateStep`, which makes noise and grid, but holds all gradients of a pass's patients in memory."""

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        clip: float,
        sharers: int = 1,
        rate: float = 1.0,
        accountant: StepCount | None = None,
    ) -> None:
        """`rate`: each patient's probability to take part, which `accountant` counts. Otherwise as `PrivateStep`."""
        super().__init__(parameters, clip, sharers)
        # Opacus rounds to the parameters' precision. In single precision, one more patient could change the rounding of
        # the others' sum by more than the reserve of the clipping norm.
        self._stand_ins: dict[torch.Tensor, Any] = {
            value: torch.nn.Parameter(torch.zeros_like(value, dtype=torch.float64)) for value in self._sums
        }
        self._optimizer = _SiteNoise(
            torch.optim.SGD(self._stand_ins.values(), lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=clip * (1 - FREE_SHARE),
            expected_batch_size=1,
        )
        if accountant is not None:
            self._optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(rate))

    def _accumulate(self, contributions: Sequence[GradientContribution], sound: torch.Tensor) -> None:
        each = separate(contributions)
        self.unbounded += int((~sound).sum())
        kept = {value: each[value].double().transpose(0, -1).where(sound, 0.0).transpose(0, -1) for value in each}
        norms = torch.stack([part.flatten(1).square().sum(1) for part in kept.values()]).sum(0).sqrt()
        self.clipped = (norms > self._optimizer.max_grad_norm) | ~sound
        self._take(kept)
        self._optimizer.clip_and_accumulate()
        self._sums = {value: stand_in.summed_grad for value, stand_in in self._stand_ins.items()}

    def _set_gradients(self, noisy: Gradients, step: float, noise: float, divisor: float) -> None:
        optimizer = self._optimizer
        optimizer.noise_multiplier, optimizer.expected_batch_size = noise, divisor
        optimizer.noisy = [noisy[value] * step for value in self._stand_ins]
        # All patients are added: the last batch, which `pre_step` adds, is empty.
        self._take({value: total.new_zeros(0, *total.shape) for value, total in self._sums.items()})
        optimizer.pre_step()
        for value, stand_in in self._stand_ins.items():
            value.grad = stand_in.grad.to(value.dtype)

    def _take(self, each: Gradients) -> None:
        for value, stand_in in self._stand_ins.items():
            stand_in.grad_sample = each[value]
