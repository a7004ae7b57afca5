"""All patients of a step go through the model in one pass, and each contributes what it contributes alone."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tuned_kinds import SMALL, TUNING, loss_of, method_fields, perturbed

from medfedvqa.core import create
from medfedvqa.models import Backbone, Values
from medfedvqa.papers.networks.trunks import TRUNKS
from medfedvqa.training import Privacy, Site, Trainer
from medfedvqa.training.private import PrivateGradients, Sample
from privacy import DPSettings, PatientChance, PatientSampler, PatientStreams, PrivateStep, owned
from privacy.clipping import clip_weights

SETTINGS = DPSettings(noise=1.0, count_noise=1.0, sample_rate=1.0, patient_rows=3, expected_patients=4)
CASES = [
    *(("fedavg", {"tuning": kind, "weighting": "uniform", "blocks": None if kind == "full" else 1}) for kind in TUNING),
    ("fedavg", {"tuning": "adapter", "weighting": "uniform", "views": 3}),
    ("fedavg", {"weighting": "uniform", "fusion": "concat", "question_input": "tower"}),
    ("fedavg", {"weighting": "uniform", "fusion": "attend"}),
    ("fedavg", {"weighting": "uniform", "heads": 2}),
    ("fedavg", {"weighting": "uniform", "head_rank": 2, "tuning": "classifier", "hidden": 24}),
    *(("fedavg", {"weighting": "uniform", "tuning": "prompt", "prompt_form": f}) for f in ("same", "low_rank")),
    ("fedavg", {"weighting": "uniform", "fusion": "text", "tuning": "classifier"}),
    *(("fedavg", {"trunk": n, "trunk_width": 8, "tuning": "full", "weighting": "uniform"}) for n in TRUNKS),
    ("prompt_pfl", {}),
    ("prompt_pfl", {"features": "product", "fusion": "concat", "joining": "add", "placing": "after"}),
    ("fedp3", {"filter": "random", "weighting": "uniform", "start_round": 1, "top": 5}),
    ("fedkd", {"weighting": "uniform", "mentor_blocks": 1}),
    ("moon", {"weighting": "uniform"}),
    ("dkd", {"weighting": "uniform", "start_round": 1}),
    ("san", {}),
    ("mevf", {"pixels": 32}),
    ("pubmedclip", {"pixels": 32}),
]


def sums_of(step: PrivateStep, values: Values) -> torch.Tensor:
    """The sum before noise, flat, in the order of `values`."""
    return torch.cat([step._sums[value].flatten() for value in values.values()])


def by_patient(
    trainer: Trainer, gradients: PrivateGradients, values: Values, loss: Any, sample: Sample, clip: float
) -> torch.Tensor:
    """The same sum, a patient at a time by ordinary back-propagation."""
    total = torch.zeros(sum(value.numel() for value in values.values()), dtype=torch.float64)
    for rows in sample.patients:
        owners = torch.zeros(len(rows), dtype=torch.int64)
        key = trainer.site.data.patients[int(trainer.train_rows.patients[rows[0]])]
        with owned(owners):
            chance = PatientChance(sample.streams, [key])
            summed = loss(values, gradients.rows.rows(trainer.train_rows, rows, chance, owners)).sum()
        found = torch.autograd.grad(summed, list(values.values()), allow_unused=True)
        flat = torch.cat(
            [
                torch.zeros(value.numel()) if part is None else part.flatten()
                for value, part in zip(values.values(), found, strict=True)
            ]
        ).double()
        total += flat * clip_weights(flat.norm()[None], clip)
    return total


@pytest.fixture(params=["towers", "joint", "vault", "albef", "places"])
def trunk(request: pytest.FixtureRequest) -> Backbone:
    """A tiny CLIP, a tiny ViLT where a case can run on it, and for `fedavg` its kin and a CLIP that keeps place."""
    if request.param in ("vault", "albef"):
        if request.getfixturevalue("name") not in ("fedavg", "feddat"):
            pytest.skip("what is tuned in a BERT is told by the cases of fedavg and feddat")
        return request.getfixturevalue(request.param)
    if request.param == "places":
        if request.getfixturevalue("name") != "fedavg":
            pytest.skip("what is tuned in a tower of places is told by fedavg's cases")
        whole = request.getfixturevalue("places_backbone")
        return replace(whole, clip=copy.deepcopy(whole.clip).float())
    return request.getfixturevalue("single" if request.param == "towers" else "vilt")


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda case: case if isinstance(case, str) else None)
@pytest.mark.parametrize("clip", [1e-2, 1e3])
@pytest.mark.usefixtures("sharp_relu")
def test_one_pass_gives_each_patient_the_contribution_that_it_has_alone(
    site: Callable[..., Site], trunk: Backbone, name: str, options: dict[str, Any], clip: float
) -> None:
    """With dropout, views and random filters; clipped and not; in chunks and at once; for every kind of tuning."""
    apart = name == "pubmedclip" or options.get("features") == "product" or options.get("fusion") == "attend"
    apart = apart or "trunk" in options
    if "joint" in trunk.shape.towers and apart:
        pytest.skip("the case needs a tower for pictures alone")
    fields = method_fields(name)
    method: Any = create(name, {key: v for key, v in {**SMALL, **options}.items() if key in fields}, SETTINGS)
    here = site("here", trunk)
    state = method.setup(here)
    trainer = method.trainer(here)
    start = perturbed(state["values"])
    for chunk in (64, 2):
        privacy = Privacy(DPSettings(**{**vars(SETTINGS), "clip": clip, "physical_patients": chunk}), method.noise)
        gradients = PrivateGradients(here, trainer._rows, trainer.train_rows, trainer.config, privacy)
        loss = loss_of(method, trainer, state, start)
        part = trainer.part(start, 2)
        sampler = PatientSampler(
            trainer.train_rows.patients, here.data.patients, 1.0, SETTINGS.patient_rows, here.randomness
        )
        sample = Sample(tuple(sampler.sample()), PatientStreams(here.randomness.secret()))
        step = PrivateStep(part.values.values(), clip)
        for first in range(0, len(sample.patients), chunk):
            gradients._add(step, part.values, loss, sample.patients[first : first + chunk], sample.streams)
        expected = by_patient(trainer, gradients, part.values, loss, sample, clip)
        assert len(sample.patients) == 3 and step.unbounded == 0
        found = sums_of(step, part.values)
        # Clipping is by a bound on norms that allows for rounding: of the many places of a stem, more than of tokens.
        most = 5e-4 if trunk.shape.image_size == 64 else 2e-4
        assert float((found - expected).norm()) <= most * float(expected.norm())
        assert 0 < float(found.norm()) <= (1 + 2e-4) * float(expected.norm())
