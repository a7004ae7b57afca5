"""With `engine: opacus` Opacus' own optimiser clips, adds, scales and counts, patient by patient. The noise stays."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from tuned_kinds import SMALL, TUNING, loss_of, method_fields, perturbed

from medfedvqa.core import create
from medfedvqa.errors import MedfedvqaError
from medfedvqa.federation.job import JobSpec
from medfedvqa.models import Values
from medfedvqa.training import Site, Trainer
from medfedvqa.training.private import Sample
from privacy import Cost, DPSettings, PatientStreams, RepeatableRandomness, SettingsError, spent
from privacy.clipping import Separate
from privacy.mechanisms.sampled_gaussian import grid_step
from privacy.opacus_step import OpacusStep, StepCount

KINDS = [
    ("fedavg", {"tuning": kind, "weighting": "uniform", "blocks": None if kind == "full" else 1}) for kind in TUNING
]
KINDS.append(("prompt_pfl", {}))
RESERVE = 1 - 2.0**-10
"""The share of the clipping norm that the product uses."""


class Silent(RepeatableRandomness):
    """No noise, so that sums are compared."""

    def rounded_normal(self, count: int, deviation: float) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.float64)


def made(site: Site, name: str, options: dict[str, Any], engine: str, clip: float) -> tuple[Trainer, Values, Any]:
    """A trainer of this engine, values to train and their loss."""
    dp = DPSettings(
        noise=1.0, count_noise=1.0, sample_rate=1.0, patient_rows=99, expected_patients=4, clip=clip,
        physical_patients=2, engine=engine,
    )  # fmt: skip
    fields = method_fields(name)
    off = {"dropout": 0.0}
    method: Any = create(name, {key: v for key, v in {**SMALL, **off, **options}.items() if key in fields}, dp)
    state = method.setup(site)
    trainer = method.trainer(site)
    start = perturbed(state["values"])
    return trainer, trainer.part(start, 2).values, loss_of(method, trainer, state, start)


def all_patients(trainer: Trainer) -> Sample:
    patients = trainer.train_rows.patients
    rows = tuple((patients == patient).nonzero().flatten() for patient in patients.unique())
    return Sample(rows, PatientStreams(b"0" * 32))


def opacus_alone(trainer: Trainer, values: Values, loss: Any, clip: float) -> Values:
    """The gradients of Opacus' optimiser as published, given plain back-propagation of one patient at a time."""
    parameters = {name: torch.nn.Parameter(value.detach().clone()) for name, value in values.items()}
    each: dict[str, list[torch.Tensor]] = {name: [] for name in parameters}
    for rows in all_patients(trainer).patients:
        summed = loss(dict(parameters), trainer._rows.rows(trainer.train_rows, rows, None)).sum()
        parts = torch.autograd.grad(summed, list(parameters.values()), allow_unused=True)
        for (name, value), part in zip(parameters.items(), parts, strict=True):
            each[name].append(torch.zeros_like(value) if part is None else part)
    inner = torch.optim.SGD(parameters.values(), 1.0)
    optimizer = DPOptimizer(inner, noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=4)
    for name, parameter in parameters.items():
        parameter.grad_sample = torch.stack(each[name])
    optimizer.pre_step()
    return {name: parameter.grad for name, parameter in parameters.items()}


def flat(values: Values) -> torch.Tensor:
    return torch.cat([value.flatten() for value in values.values()]).double()


@pytest.mark.parametrize(("name", "options"), KINDS, ids=lambda case: case if isinstance(case, str) else None)
@pytest.mark.parametrize("clip", [1e-2, 30.0])
@pytest.mark.usefixtures("sharp_relu")
def test_every_kind_of_tuning_has_the_gradient_of_opacus_by_patient(
    site: Callable[..., Site], name: str, options: dict[str, Any], clip: float
) -> None:
    """Prompts, adapters, low-rank updates, biases, blocks, heads: both engines against Opacus' optimiser."""
    here = replace(site("here"), randomness=Silent(1))
    for engine in ("own", "opacus"):
        trainer, values, loss = made(here, name, options, engine, clip)
        expected = flat(opacus_alone(trainer, values, loss, clip * RESERVE))
        trainer._gradients.fill(values, loss, all_patients(trainer))
        difference = flat({key: value.grad for key, value in values.items()}) - expected
        rounded = 2.0**-12 * clip / 4  # to the grid of the noise
        assert 0 < float(difference.norm()) <= 2e-4 * float(expected.norm()) + rounded, engine


def test_the_noise_is_the_site_s_on_the_product_s_grid(site: Callable[..., Site]) -> None:
    """Same generator, same gradient as the own engine up to the rounding of sums, and each number a whole number of
    grid steps, as no float32 number of Opacus' own generator is."""
    grads = {}
    for engine in ("own", "opacus"):
        trainer, values, loss = made(replace(site("here"), randomness=RepeatableRandomness(3)), *KINDS[0], engine, 30.0)
        trainer._gradients.fill(values, loss, all_patients(trainer))
        grads[engine] = flat({key: value.grad for key, value in values.items()})
    step = grid_step(30.0, len(grads["own"])) / 4
    assert float((grads["own"] - grads["opacus"]).abs().max()) <= 2 * step
    assert torch.equal((grads["opacus"] / step).round() * step, grads["opacus"])
    assert float(grads["opacus"].norm()) > 30 / 4, "there is noise"


def test_one_patient_more_moves_a_sum_by_that_patient_alone() -> None:
    """Of 4,000 others: in Opacus' single precision rounding would move it by more than the clipping leaves free."""
    value = torch.zeros(1, requires_grad=True)
    each = 1 + torch.rand(4000, 1, generator=torch.Generator().manual_seed(1))
    sums = []
    for gradients in (each, each[1:]):
        step = OpacusStep([value], 1.3)
        step.add([Separate(value, gradients)], torch.ones(len(gradients), dtype=torch.bool))
        sums.append(float(step._sums[value]))
    assert sums[0] - sums[1] == pytest.approx(min(float(each[0]), 1.3 * RESERVE), abs=1e-6)


def test_a_patient_who_is_not_sound_contributes_nothing() -> None:
    """Whatever its gradients are, also of values with two dimensions; it is counted."""
    values = [torch.zeros(2, 3, requires_grad=True), torch.zeros(4, requires_grad=True)]
    each = [torch.ones(3, *value.shape) for value in values]
    step = OpacusStep(values, 100.0)
    step.add([Separate(v, e) for v, e in zip(values, each, strict=True)], torch.tensor([True, False, True]))
    assert all(torch.equal(total, torch.full_like(total, 2)) for total in step._sums.values())
    assert step.unbounded == 1 and step.clipped.tolist() == [False, True, False]
    shorter = OpacusStep(values, 3.0)  # of ten numbers that are 1
    shorter.add([Separate(v, e * 0.9) for v, e in zip(values, each, strict=True)], torch.tensor([True, True, True]))
    assert not shorter.clipped.any()
    shorter.add([Separate(v, e) for v, e in zip(values, each, strict=True)], torch.tensor([True, True, True]))
    assert shorter.clipped.all()


def test_nobody_drawn_is_noise_alone(site: Callable[..., Site]) -> None:
    """An empty sample still releases a step, so that it shows nobody's absence."""
    trainer, values, loss = made(replace(site("here"), randomness=RepeatableRandomness(3)), *KINDS[0], "opacus", 0.5)
    trainer._gradients.fill(values, loss, Sample((), PatientStreams(b"0" * 32)))
    assert all(float(value.grad.norm()) > 0 for value in values.values())


def test_opacus_accountant_counts_what_the_ledger_charges(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hook fires once a step; its epsilon of a round is the ledger's by the same analysis; more is an error."""
    here, seen = site("here"), []
    trainer, values, loss = made(here, *KINDS[0], "opacus", 0.5)
    check = StepCount.check
    monkeypatch.setattr(
        StepCount, "check", lambda self, charged: (seen.append(list(self.history)), check(self, charged))
    )
    trainer.train({name: value.detach() for name, value in values.items()}, loss, 1, 0)
    settings = trainer._gradients.privacy
    ((counted,),) = seen
    assert counted == (settings.noise.gradients, 1.0, trainer.config.private_steps(settings.settings))
    accountant = RDPAccountant()
    accountant.history = [counted]
    ledger = spent(settings.settings.events(Cost(steps=counted[2]), settings.noise), 1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(ledger.rdp, rel=1e-6)
    step = partial(OpacusStep, list(values.values()), 0.5, rate=0.25, accountant=(count := StepCount()))
    for _ in range(3):
        step().finish(1.0, 4, here.randomness)
    with pytest.raises(SettingsError, match="counts 3 private steps where 2 were charged"):
        count.check(2)


def test_a_use_without_a_rule_is_refused(site: Callable[..., Site]) -> None:
    """Opacus' optimiser would take whatever it is given; the gradient of a patient has to exist first."""
    trainer, values, loss = made(site("here"), *KINDS[0], "opacus", 0.5)

    def odd(values: Values, rows: Any) -> torch.Tensor:
        return loss(values, rows) * next(iter(values.values())).sin().sum()

    with pytest.raises(SettingsError, match="used in a way that gives no gradient per patient"):
        trainer._gradients.fill(values, odd, all_patients(trainer))


def test_a_job_names_the_engine_only_where_it_is_another() -> None:
    """Earlier versions read jobs of the own engine; an engine that nobody has is refused."""
    job = {"method": "fedavg", "dp": {"epsilon": 3.0}, "options": {"answers": "closed", "weighting": "uniform"}}
    assert "engine" not in JobSpec.from_dict(job).to_dict()["dp"]
    opacus = JobSpec.from_dict({**job, "dp": {"epsilon": 3.0, "engine": "opacus"}})
    assert opacus.to_dict()["dp"]["engine"] == "opacus" and JobSpec.from_dict(opacus.to_dict()) == opacus
    with pytest.raises(MedfedvqaError, match="engine"):
        JobSpec.from_dict({**job, "dp": {"epsilon": 3.0, "engine": "jax"}})
