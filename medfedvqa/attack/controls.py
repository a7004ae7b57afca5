"""Known faults, as controls: if an audit does not catch them, its finding no fault proves nothing.

Sampler, clipping, noise and accountants are those of real training. The model is a linear layer in which every canary
has its own feature, so that the attack loses no information and a trial is fast.
"""

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
"""The number of patients other than canaries, and of their features."""
CLIP, CANARY_FEATURE = 1.0, 10.0
"""The feature of a canary is so large that its gradient is always clipped."""


class Fault(StrEnum):
    """A fault of a mechanism. The claim comes from an accountant that ignores the fault."""

    NONE = "none"
    SILENT = "noise off"
    FORGETFUL = "rounds forgotten"
    """Only the last round is claimed, as if engine and accountant were new in each round."""
    ROWS = "rows for patients"
    """Rows are sampled and clipped, but epsilon is claimed for patients."""


@dataclass(frozen=True)
class ControlRun:
    """One training run."""

    noise: float
    """The noise multiplier."""
    delta: float = 1e-5
    canaries: int = 256
    rows: int = 8
    """The rows of each patient."""
    rounds: int = 40
    """The rounds, of one step each."""
    sample_rate: float = 0.5

    @classmethod
    def claiming(cls, epsilon: float, fault: Fault, canaries: int) -> "ControlRun":
        """The run with the noise at which the claim under this fault is this epsilon. Raises `AccountingError`."""

        def trial(noise: float) -> "ControlRun":
            return cls(noise, canaries=canaries)

        return trial(calibrate(epsilon, cls.delta, lambda noise: [trial(noise)._event(fault)]))

    def claimed(self, fault: Fault) -> float:
        """The epsilon that the accountants claim with this fault."""
        return spent([self._event(fault)], self.delta).epsilon

    def _event(self, fault: Fault) -> DPEvent:
        return SampledGaussian(self.sample_rate, self.noise, 1 if fault is Fault.FORGETFUL else self.rounds)

    def run(self, fault: Fault, seed: int, share: float = 0.5) -> Guesses:
        """Trains, then guesses about this share of the canaries from the change of their features' weights."""
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
            if sampled := sampler.sample():
                rows = torch.cat(sampled)
                owner_of_row = torch.arange(len(sampled)).repeat_interleave(
                    torch.tensor([len(each) for each in sampled])
                )
                recorder = Recorder(list(layer.parameters()))
                with owned(owner_of_row), recorder:
                    loss = F.cross_entropy(layer(inputs[rows]), answers[rows], reduction="sum")
                step.add(*recorder.contributions(loss, len(sampled), {}))
            step.finish(self.noise, OTHERS, randomness)
            optimizer.step()
        change = (layer.weight[1] - layer.weight[0])[: self.canaries]
        return guess(change.tolist(), inserted.tolist(), share)

    def _data(
        self, inserted: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inputs [rows, canaries + OTHERS], answers and patients [rows]: inserted canaries first, then the others."""
        present = torch.where(inserted)[0].repeat_interleave(self.rows)
        canaries = CANARY_FEATURE * F.one_hot(present, self.canaries + OTHERS).float()
        others = torch.zeros(OTHERS * self.rows, self.canaries + OTHERS)
        others[:, self.canaries :] = torch.randn(len(others), OTHERS, generator=generator)
        answers = torch.randint(2, (len(others),), generator=generator)
        patients = self.canaries + torch.arange(OTHERS).repeat_interleave(self.rows)
        return (
            torch.cat([canaries, others]),
            torch.cat([torch.ones_like(present), answers]),
            torch.cat([present, patients]),
        )


class _Silent(RepeatableRandomness):
    """A source without noise, but with correct sampling."""

    def rounded_normal(self, count: int, deviation: float) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.float64)
