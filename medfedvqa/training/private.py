"""Gradients under differential privacy by patient: sampled patients, clipped one by one, summed, with noise on the sum.

A patient's contribution depends on its own rows and on its own stream under the step's secret: not on other patients,
its place in a batch, or the job's seed. The optimiser sees only noisy gradients, so its state costs no privacy.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from medfedvqa.data import Examples
from medfedvqa.models import PROMPT, Values
from medfedvqa.training.rows import RowLoss, SiteRows
from medfedvqa.training.site import Site, TrainingConfig
from privacy import (
    DPSettings,
    NoiseLevels,
    PatientChance,
    PatientSampler,
    PatientStreams,
    PrivateStep,
    Recorder,
    SeededChance,
    expanded,
    owned,
)

if TYPE_CHECKING:
    from privacy.opacus_step import StepCount

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Privacy:
    """The settings and the noise of private training."""

    settings: DPSettings
    noise: NoiseLevels
    jumps: bool = False
    """Whether the gradient of the method's loss or of the model jumps somewhere."""

    @property
    def pass_size(self) -> int:
        """The most patients in a pass.

        Patients of one pass affect the rounding of each other's numbers. Where a gradient jumps, rounding could decide
        on which side a patient's numbers are, so each patient has a pass alone there.
        """
        return 1 if self.jumps else self.settings.physical_patients


@dataclass(frozen=True)
class Sample:
    """The rows of each patient who takes part in a step, int64 [rows] each, and the keys of their random choices."""

    patients: tuple[torch.Tensor, ...]
    streams: PatientStreams


@dataclass(frozen=True)
class PrivateGradients:
    """Noisy sums over Poisson samples of patients. One pass handles all patients of a chunk."""

    site: Site
    rows: SiteRows
    train: Examples
    config: TrainingConfig
    privacy: Privacy

    def draws(self, seed: int | SeededChance, passes: int) -> Iterator[tuple[Sample, ...]]:
        """The samples of one round. Each pass draws its own patients, as the accounting assumes.

        The job's seed has no effect.
        """
        settings, randomness = self.privacy.settings, self.site.randomness
        sampler = PatientSampler(
            self.train.patients, self.site.data.patients, settings.sample_rate, settings.patient_rows, randomness
        )
        steps = self.config.private_steps(settings)
        for _ in range(steps):
            yield tuple(Sample(tuple(sampler.sample()), PatientStreams(randomness.secret())) for _ in range(passes))
        if settings.engine == "opacus":
            self._counted.check(steps * passes)
            self._counted.history.clear()

    def fill(self, values: Values, loss: RowLoss, sample: Sample) -> Values:
        """Sets each value's gradient: the noisy sum over the expected number of patients, which is public.

        Returns the noisy sums by name, in whole steps of their grid.
        """
        settings, noise, size = self.privacy.settings, self.privacy.noise, self.privacy.pass_size
        step = self._step(values)
        for first in range(0, len(sample.patients), size):
            self._add(step, values, loss, sample.patients[first : first + size], sample.streams)
        if step.unbounded:
            logger.warning("%d patients without a finite gradient contributed nothing to a step", step.unbounded)
        noisy = step.finish(noise.gradients, settings.expected_patients, self.site.randomness)
        return {name: noisy[value] for name, value in values.items()}

    def _step(self, values: Values) -> PrivateStep:
        """A step of the engine that the settings name."""
        settings = self.privacy.settings
        if settings.engine == "own":
            return PrivateStep(values.values(), settings.clip, settings.sharers)
        from privacy.opacus_step import OpacusStep  # only here, as Opacus takes seconds to load

        return OpacusStep(values.values(), settings.clip, settings.sharers, settings.sample_rate, self._counted)

    @cached_property
    def _counted(self) -> "StepCount":
        """Opacus' count of a round's steps."""
        from privacy.opacus_step import StepCount

        return StepCount()

    @cached_property
    def clipped(self) -> torch.Tensor:
        """How often each patient took part, and how often its gradient was clipped, int64 [patients, 2]."""
        return torch.zeros(len(self.site.data.patients), 2, dtype=torch.int64)

    def _add(
        self, step: PrivateStep, values: Values, loss: RowLoss, chunk: tuple[torch.Tensor, ...], streams: PatientStreams
    ) -> None:
        """Adds the contributions of a chunk's patients, after one pass over all their rows."""
        drawn = [int(self.train.patients[rows[0]]) for rows in chunk]
        chosen, counts = torch.cat(chunk), torch.tensor([len(rows) for rows in chunk])
        owners = torch.arange(len(chunk)).repeat_interleave(counts)
        keys = [self.site.data.patients[patient] for patient in drawn]
        leaves = expanded({name: value for name, value in values.items() if name.startswith(PROMPT)}, len(chunk))
        recorder = Recorder([value for name, value in values.items() if name not in leaves])
        with owned(owners.to(self.site.device)), recorder:
            rows = self.rows.rows(self.train, chosen, PatientChance(streams, keys), owners)
            summed = loss({**values, **leaves}, rows).sum()
        step.add(*recorder.contributions(summed, len(chunk), {values[name]: leaf for name, leaf in leaves.items()}))
        self.clipped[drawn] += torch.stack([torch.ones_like(step.clipped), step.clipped], dim=1).long().cpu()
