"""Sampled patients, per-patient gradients of one backward pass, their clipped sum, and the noise on it (DP-SGD, Abadi
et al., 2016).

Values that a model uses once per patient, such as prompts, are expanded: one leaf per patient, which gets the patient's
gradient. The uses of all other values are recorded, see `Recorder`.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from privacy.clipping import GradientContribution, Gradients, clip_weights
from privacy.errors import SettingsError
from privacy.mechanisms import shared_gaussian
from privacy.mechanisms.sampled_gaussian import GRID_SHARE, grid_step
from privacy.noise import Randomness
from privacy.training_randomness import PatientStreams


class PatientSampler:
    """Draws whole patients, each with its own coin. The sample is as secret as the noise."""

    def __init__(
        self, patients: torch.Tensor, keys: Sequence[str], rate: float, cap: int, randomness: Randomness
    ) -> None:
        """`patients`: each row's patient, int64 [rows]. `keys`: by patient number, the key of the patient's stream.
        `rate`: the probability of each patient. `cap`: the most rows of one patient."""
        order = torch.argsort(patients, stable=True)
        numbers, counts = torch.unique(patients, return_counts=True)
        rows = torch.split(order, counts.tolist())
        self._rows = {keys[number]: its_rows for number, its_rows in zip(numbers.tolist(), rows, strict=True)}
        self._rate, self._cap, self._randomness = rate, cap, randomness

    def sample(self) -> list[torch.Tensor]:
        """The rows of each drawn patient, int64 [1 to cap]; of a patient with more rows, `cap` drawn at random."""
        streams = PatientStreams(self._randomness.secret())
        keys = (key for key in self._rows if streams.uniform(key, "coin", 1)[0] < self._rate)
        return [self._capped(self._rows[key], streams, key) for key in keys]

    def _capped(self, rows: torch.Tensor, streams: PatientStreams, key: str) -> torch.Tensor:
        if len(rows) <= self._cap:
            return rows
        places = np.argsort(streams.uniform(key, "rows", len(rows)), kind="stable")[: self._cap]
        return rows[torch.from_numpy(np.sort(places))]


LONGEST = 2.0**100
"""The longest gradient that is clipped, in units of C: of longer ones, weights in single precision lose digits."""


class PrivateStep:
    """One step's gradient: the sum of clipped patient gradients over any number of passes, plus noise once."""

    def __init__(self, parameters: Iterable[torch.Tensor], clip: float, sharers: int = 1) -> None:
        """`clip`: C, the largest norm that one patient's gradient over all `parameters` has in the sum.
        `sharers`: the least number of sites that share the noise of their masked sum.

        Raises `SettingsError` if torch is set to round products to less than single precision.
        """
        if torch.get_float32_matmul_precision() != "highest":
            raise SettingsError(
                "bounds on gradients need products in full single precision: leave out the call of "
                "torch.set_float32_matmul_precision"
            )
        self._clip, self._sharers = clip, sharers
        self._sums: Gradients = {value: torch.zeros_like(value, dtype=torch.float64) for value in parameters}
        self.unbounded = 0
        """Patients whose gradient was not finite, or too long for a weight, and who therefore contributed nothing."""
        self.clipped = torch.zeros(0, dtype=torch.bool)
        """The patients whose gradients the last pass clipped, bool [patients]."""

    def add(self, contributions: Sequence[GradientContribution], sound: torch.Tensor) -> None:
        """Clips and adds the patients of one pass; no patient may be in two passes of a step.

        `sound`: whether each patient's gradient is finite, bool [patients]; contributions that are not must be zeros.
        Raises `SettingsError` if the contributions are not of exactly the step's parameters.
        """
        if {part.value for part in contributions} != self._sums.keys():
            raise SettingsError("a trained parameter took no part in the loss: freeze it, or use it")
        self._accumulate(contributions, sound)

    def _accumulate(self, contributions: Sequence[GradientContribution], sound: torch.Tensor) -> None:
        norms = torch.stack([part.squared_norms() for part in contributions]).sum(0).sqrt()
        sound = sound & (norms < LONGEST * self._clip)
        weights = clip_weights(norms, self._clip).where(sound, 0.0)
        self.unbounded, self.clipped = self.unbounded + int((~sound).sum()), weights < 1
        for part in contributions:
            part.add(self._sums[part.value], weights)

    @property
    def rounded_sums(self) -> tuple[float, Gradients]:
        """The grid's step, and the sums in whole grid steps, float64, to which the noise is added."""
        share = GRID_SHARE if self._sharers == 1 else shared_gaussian.GRID_SHARE
        step = grid_step(self._clip, sum(total.numel() for total in self._sums.values()), share)
        return step, {parameter: (total / step).round() for parameter, total in self._sums.items()}

    def finish(self, noise: float, divisor: float, randomness: Randomness) -> Gradients:
        """Set every parameter's `grad` to (sum + normal(0, noise * C / sqrt(sharers))) / divisor, also where nobody was
        drawn; returns the noisy sums in whole numbers of the grid's step, float64.

        Sum and noise are whole numbers of grid steps, which are as private as real numbers with Gaussian noise, see
        `privacy.mechanisms.sampled_gaussian`; the gradients are computed from them.
        Terms of the loss that do not depend on data may be back-propagated afterwards and add to `grad`.
        """
        step, sums = self.rounded_sums
        sizes = [total.numel() for total in sums.values()]
        deviation, noisy = shared_gaussian.site_share(noise, self._sharers) * self._clip / step, Gradients()
        noise_values = randomness.rounded_normal(sum(sizes), deviation)
        for (parameter, total), part in zip(sums.items(), torch.split(noise_values, sizes), strict=True):
            noisy[parameter] = total + part.view_as(total).to(total.device)
        self._set_gradients(noisy, step, noise, divisor)
        return noisy

    def _set_gradients(self, noisy: Gradients, step: float, noise: float, divisor: float) -> None:
        for parameter, total in noisy.items():
            parameter.grad = (total * (step / divisor)).to(parameter.dtype)


def expanded(values: Mapping[str, torch.Tensor], patients: int) -> dict[str, torch.Tensor]:
    """For each value a leaf tensor with one copy per patient, `[patients, *shape]`."""
    return {
        name: value.detach().expand(patients, *value.shape).clone().requires_grad_() for name, value in values.items()
    }
