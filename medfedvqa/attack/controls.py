"""Known faults: an audit that does not catch them proves nothing by finding no fault.

The sampler, clipping, noise and accountants are the project's own, the very code that trains models; the model is a
linear layer in which every canary has a feature of its own, so that an attack loses nothing and a trial takes a moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from audits.epsilon_lower_bound import Guesses, guess
from privacy import (
    DPEvent,
    PatientSampler,
    PrivateStep,
    Randomness,
    Recorder,
    RepeatableRandomness,
    SampledGaussian,
    calibrate,
    owned,
    spent,
)

OTHERS = 32
"""Patients who are no canaries, and features of theirs."""
CLIP, LOUD = 1.0, 10.0
"""A canary's feature is large, so that its gradient is always clipped."""


class Fault(StrEnum):
    """What is wrong with a mechanism. What it claims is what its accountant says, which does not know of the fault."""

    NONE = "none"
    SILENT = "noise off"
    FORGETFUL = "rounds forgotten"
    """The last round is claimed as if it were the only one: an engine, and its accountant, made anew each round."""
    ROWS = "rows for patients"
    """Rows are sampled and clipped, and epsilon is claimed for patients."""


@dataclass(frozen=True)
class Trial:
    """One training run."""

    noise: float
    """Noise multiplier."""
    delta: float = 1e-5
    canaries: int = 256
    rows: int = 8
    """Of each patient."""
    rounds: int = 40
    """Of one step each."""
    sample_rate: float = 0.5

    @classmethod
    def claiming(cls, epsilon: float, fault: Fault, canaries: int) -> "Trial":
        """With as much noise as makes a run with this fault claim so much. Raises `AccountingError`."""

        def trial(noise: float) -> "Trial":
            return cls(noise, canaries=canaries)

        return trial(calibrate(epsilon, cls.delta, lambda noise: [trial(noise)._event(fault)]))

    def claimed(self, fault: Fault) -> float:
        """The epsilon that the accountants give for what they are told."""
        return spent([self._event(fault)], self.delta).epsilon

    def _event(self, fault: Fault) -> DPEvent:
        return SampledGaussian(self.sample_rate, self.noise, 1 if fault is Fault.FORGETFUL else self.rounds)

    def run(self, fault: Fault, seed: int, share: float = 0.5) -> Guesses:
        """Train, then guess about this share of the canaries by how far their features' weights have moved."""
        generator = np.random.default_rng(seed)
        inserted = torch.from_numpy(generator.random(self.canaries) < 0.5)
        inputs, answers, patients = self._data(inserted, torch.Generator().manual_seed(seed))
        owners = torch.arange(len(patients)) if fault is Fault.ROWS else patients
        randomness: Randomness = _Silent(seed) if fault is Fault.SILENT else RepeatableRandomness(seed)
        layer = nn.Linear(inputs.shape[1], 2)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        keys = [str(number) for number in range(int(owners.max()) + 1)]
        sampler = PatientSampler(owners, keys, self.sample_rate, self.rows, randomness)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        for _ in range(self.rounds):
            step = PrivateStep(layer.parameters(), CLIP)
            if drawn := sampler.sample():
                rows = torch.cat(drawn)
                whose = torch.arange(len(drawn)).repeat_interleave(torch.tensor([len(each) for each in drawn]))
                recorder = Recorder(list(layer.parameters()))
                with owned(whose), recorder:
                    loss = F.cross_entropy(layer(inputs[rows]), answers[rows], reduction="sum")
                step.add(*recorder.contributions(loss, len(drawn), {}))
            step.finish(self.noise, OTHERS, randomness)
            optimizer.step()
        moved = (layer.weight[1] - layer.weight[0])[: self.canaries]
        return guess(moved.tolist(), inserted.tolist(), share)

    def _data(
        self, inserted: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inputs [rows, canaries + OTHERS], answers and patients [rows]: the canaries that are in, then the others."""
        chosen = torch.where(inserted)[0].repeat_interleave(self.rows)
        canaries = LOUD * F.one_hot(chosen, self.canaries + OTHERS).float()
        others = torch.zeros(OTHERS * self.rows, self.canaries + OTHERS)
        others[:, self.canaries :] = torch.randn(len(others), OTHERS, generator=generator)
        answers = torch.randint(2, (len(others),), generator=generator)
        patients = self.canaries + torch.arange(OTHERS).repeat_interleave(self.rows)
        return (
            torch.cat([canaries, others]),
            torch.cat([torch.ones_like(chosen), answers]),
            torch.cat([chosen, patients]),
        )


class _Silent(RepeatableRandomness):
    """A broken source of noise; sampling is as it should be."""

    def normal(self, shape: Sequence[int], std: float) -> torch.Tensor:
        return torch.zeros(tuple(shape))
