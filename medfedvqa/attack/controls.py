"""Controls of an audit: known faults, and mechanisms of papers and libraries with their true epsilons. An audit that
misses a known fault proves nothing when it finds no fault.

Sampler, clipping, noise and accountants are those of real training. The model is a linear layer in which every canary
has its own feature, so that the attack loses no information and a trial is fast.

For each: the epsilon that its accountant claims, that of this project's accountants for its actual steps, and a lower
bound by a distinguisher, who knows all other rows, as in the definition. The sums with and without the patient are
computed with the mechanism's own clipping, on the worst rows; noise is drawn for each trial.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from audits.epsilon_lower_bound import Guesses, guess, rate_interval
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

Floats = NDArray[np.float64]
DELTA = 1e-5
WIDTH = 4
"""The numbers in one gradient; `FLOATS` in a release in floating point, so that low bits decide each trial."""
FLOATS, FLOAT_TRIALS = 1024, 2000


@dataclass(frozen=True)
class Published:
    """One mechanism with Gaussian noise, in which one patient takes part."""

    name: str
    source: str
    claimed: float
    """The published epsilon, or that of the published accountant."""
    actual: DPEvent | None
    """The mechanism's privacy event for the patient. None: no noise hides the patient, so epsilon is infinite."""
    sums: Floats
    """The sum before noise without the patient and with it, [2, numbers]."""
    deviation: float
    """The standard deviation of the noise on each number."""
    unit: Literal["row", "patient", "site"] = "patient"

    @property
    def accounted(self) -> float:
        """The epsilon of the mechanism's actual steps at `DELTA`, by numerical composition."""
        return math.inf if self.actual is None else spent([self.actual], DELTA).epsilon

    @property
    def by_rdp(self) -> float:
        """Like `accounted`, but by Renyi DP, as in most publications: an epsilon that is never smaller."""
        return math.inf if self.actual is None else spent([self.actual], DELTA).rdp

    def measured(self, trials: int, confidence: float, seed: int = 0) -> float:
        """The lower bound of epsilon at `DELTA` by `trials` releases with the patient and as many without."""
        generator = np.random.default_rng(seed)
        if self.actual is None:
            trials = min(trials, FLOAT_TRIALS)
        outside, inside = (self._scores(present, trials, generator) for present in (False, True))
        return proved(outside, inside, confidence)

    def _scores(self, present: bool, trials: int, generator: np.random.Generator) -> Floats:
        """The log-likelihood ratio of each trial, with the patient against without."""
        if self.actual is None:
            return np.array([self._low_bits(present, generator) for _ in range(trials)])
        move, rate, scores = self.sums[1] - self.sums[0], self.actual.parameters["rate"], np.zeros(trials)
        for _ in range(self.actual.steps):
            drawn = present & (generator.random(trials) < rate)
            released = self.sums[drawn.astype(int)] + generator.normal(0, self.deviation, (trials, WIDTH))
            evidence = (released - self.sums.mean(0)) @ move / self.deviation**2
            scores += np.logaddexp(math.log1p(-rate), math.log(rate) + evidence) if rate < 1 else evidence
        return scores

    def _low_bits(self, present: bool, generator: np.random.Generator) -> float:
        """A score from low bits: all noise is float32, so the release minus the right sum is exactly float32."""
        noise = self.deviation * generator.standard_normal(self.sums.shape[1:], np.float32)
        left = self.sums[int(present)] + noise.astype(np.float64) - self.sums
        impossible = (left.astype(np.float32) != left).sum(1)
        return float(impossible[0] - impossible[1])


def proved(outside: Floats, inside: Floats, confidence: float) -> float:
    """A lower bound of epsilon at `DELTA` from scores without the patient and with it, [trials] each.

    A threshold is chosen by the first half of the trials and tried on the second half; both rates are bounded together
    with `confidence` (Nasr et al., "Adversary Instantiation", 2021). 0 where nothing is proved.
    """
    half = len(inside) // 2
    thresholds = np.unique(np.concatenate([outside[:half], inside[:half]]))
    few, many = (half - np.searchsorted(np.sort(scores[:half]), thresholds, "right") for scores in (outside, inside))
    # Two deviations either way, and three trials where there are none: any choice of threshold is valid.
    best = thresholds[np.argmax((many - 2 * np.sqrt(many) - DELTA * half) / (few + 2 * np.sqrt(few) + 3))]
    _, wrong = rate_interval(int((outside[half:] > best).sum()), len(outside) - half, confidence)
    right, _ = rate_interval(int((inside[half:] > best).sum()), len(inside) - half, confidence)
    return max(0.0, math.log((right - DELTA) / wrong)) if right > DELTA else 0.0


def _clipped(rows: Floats, most: float = 1.0) -> Floats:
    """Rows [..., numbers], clipped to the norm `most`."""
    return np.asarray(rows / np.maximum(1, np.linalg.norm(rows, axis=-1, keepdims=True) / most))


def _pair(rows: Sequence[float]) -> Floats:
    """Gradients along one direction, by their signed lengths, [rows, numbers]."""
    return np.outer(rows, np.full(WIDTH, WIDTH**-0.5))


def _summed(own: Sequence[float], by_patient: bool = True) -> Floats:
    """The sums without and with a patient of these rows, who is clipped as a whole, or row by row."""
    rows = _pair(own)
    part = _clipped(rows.sum(0)) if by_patient else _clipped(rows).sum(0)
    others = _clipped(_pair([-3.0, 2.0, -5.0])).sum(0)
    return np.stack([others, others + part])


def _batch_mean(batch: int) -> Floats:
    """The mean over a batch, clipped as one vector, without and with a row that outweighs the others."""
    others = np.full(batch - 1, -10.0)
    return np.stack([_clipped(_pair([*others, length]).mean(0)) for length in (0.0, 20.0 * batch)])


@cache
def published() -> tuple[Published, ...]:
    """All mechanisms: first those whose claimed epsilon is wrong, then two whose claim holds."""
    calibrated = math.sqrt(100 * math.log(1 / DELTA)) / 0.4
    by_call = math.sqrt(2 * math.log(1.25 / DELTA))
    by_round = calibrate(2.19, DELTA, lambda noise: [SampledGaussian(0.25, noise, 20)])
    by_row = calibrate(1.0, DELTA, lambda noise: [SampledGaussian(1.0, noise, 20)])
    by_site = SampledGaussian(1.0, 2.4, 20)
    as_poisson = spent([SampledGaussian(0.01, 1.0, 1000)], DELTA).epsilon
    as_real = spent([SampledGaussian(1.0, 16.0)], DELTA).epsilon
    whole, batch = _summed([9.0]), _batch_mean(32)
    several = np.random.default_rng(0).standard_normal((2, FLOATS)) / math.sqrt(FLOATS)
    fpl = "Tran et al. (DP-FPL), ICLR 2025, and its code"
    return (
        Published("clipped means of batches of 32, noise for C / 32, 100 rounds; a row in one batch a round", fpl, 0.4,
                  SampledGaussian(1.0, calibrated / 64, 100), batch, calibrated / 32, "row"),
        Published("the same; a patient has rows in ten batches a round", fpl, 0.4,
                  SampledGaussian(1.0, calibrated / 64, 1000), batch, calibrated / 32, "patient"),
        Published("classical Gaussian calibrated for each of 20 replies", "Flower, LocalDpMod (in preview)", 1.0,
                  SampledGaussian(1.0, by_call, 20), whole, by_call, "site"),
        Published("accountant made anew in each of 30 rounds of 20 steps, rate 1/4", "Opacus, a PrivacyEngine a round",
                  2.19, SampledGaussian(0.25, by_round, 600), whole, by_round, "patient"),
        Published("rows clipped and patients of 8 rows claimed, 20 steps", "Opacus, whose unit is the row", 1.0,
                  SampledGaussian(1.0, by_row / 8, 20), _summed([9.0] * 8, by_patient=False), by_row, "patient"),
        Published("10 epochs of 100 batches in fixed order, accounted as Poisson", "Opacus, poisson_sampling=False",
                  as_poisson, SampledGaussian(1.0, 1.0, 10), whole, 1.0, "row"),
        Published("noise of 16 in single precision on a sum in double", "this project up to 0.2.0; Mironov, CCS 2012",
                  as_real, None, np.stack([several[0], several.sum(0)]), 16.0, "patient"),
        Published("patients of 8 rows clipped, 20 steps", "this project", 1.0,
                  SampledGaussian(1.0, by_row, 20), _summed([9.0] * 8), by_row, "patient"),
        Published("updates of sites clipped, noise 2.4, 20 rounds", "McMahan et al. (DP-FedAvg), ICLR 2018",
                  spent([by_site], DELTA).rdp, by_site, whole, 2.4, "site"),
    )  # fmt: skip


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
        """The run with noise calibrated so that, with this fault, the claim is `epsilon`. Raises `AccountingError`."""

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
