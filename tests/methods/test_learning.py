"""Local steps are what they say, plain and private; and training really learns."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from medfedvqa.methods.learning import Learner, LearningConfig, answer_losses

from medfedvqa.data import batches
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, run
from medfedvqa.models import HeadConfig, TunedModel, TuningConfig
from privacy import DPSettings, NoiseLevels, PatientSampler

OPTIONS = {"rounds": 5, "local_epochs": 2, "learning_rate": 0.002, "decay": 0.3, "decay_every": 2}


@pytest.mark.slow
def test_prompt_pfl_beats_the_question_only_prior_by_20_points_at_every_site(tmp_path: Path) -> None:
    """With the bundled backbone, each phantom site's model is at least 20 points above what the words alone tell."""
    options = {**OPTIONS, "local_baseline": False}
    job = JobSpec.from_dict({"method": "prompt_pfl", "data": "phantom", "options": options})
    results = run(plan(job, None, tmp_path / "run"), "local", lambda event: None)
    for facts in results["sites"].values():
        assert facts["accuracy"] >= facts["baselines"]["question_prior"]["accuracy"] + 0.20


PLAIN = LearningConfig(2, "epochs", 6, "adamw", 0.01, 0.1, 1, 0.01)
DP = DPSettings(noise=0.5, count_noise=1.0, clip=0.3, sample_rate=0.7, expected_patients=2, patient_rows=4)


def learner(site, config=PLAIN, answers=None, dropout=0.2, dp=None, kind="adapter") -> Learner:
    model = TunedModel(
        site.backbone, TuningConfig(kind, reduction=4), HeadConfig(len(answers or site.data.answers), 8, dropout)
    )
    return Learner(site, model, config, answers, dp and (dp, NoiseLevels(dp.noise)))


def start_of(learner: Learner) -> dict[str, torch.Tensor]:
    return learner.model.initial(torch.Generator().manual_seed(1), torch.Generator().manual_seed(2))


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_plain_steps_are_those_of_a_loop_written_by_hand(site, kind):
    """Bit for bit, dropout and the decay of the learning rate included."""
    config = replace(PLAIN, optimizer=kind)
    trained = learner(site(), config)
    found = trained.train(start_of(trained), answer_losses(trained.model), 2, 5)

    values = {name: value.requires_grad_() for name, value in start_of(trained).items()}
    parameters = list(values.values())
    optimizer = {
        "sgd": torch.optim.SGD(parameters, 0.001, momentum=0.9, weight_decay=0.01),
        "adam": torch.optim.Adam(parameters, 0.001, weight_decay=0.01),
        "adamw": torch.optim.AdamW(parameters, 0.001, weight_decay=0.01),
    }[kind]
    generator = torch.Generator().manual_seed(5)
    for _ in range(2):
        for chosen in batches(trained.train_rows, 6, generator):
            rows = trained.rows(trained.train_rows, chosen)
            optimizer.zero_grad()
            F.cross_entropy(trained.model.logits(values, rows.batch, generator), rows.answers).backward()
            optimizer.step()
    assert same(found, {name: value.detach() for name, value in values.items()})


def test_the_start_of_a_round_is_left_as_it_is(site):
    trained = learner(site())
    start = start_of(trained)
    trained.train(start, answer_losses(trained.model), 1, 5)
    assert same(start, start_of(trained))


def test_batches_can_be_counted_in_the_place_of_epochs(site):
    """More of them than an epoch has begin another one."""
    counted = learner(site(), replace(PLAIN, local_unit="batches", local_epochs=3))
    assert len(list(counted.draws(torch.Generator().manual_seed(1)))) == 3
    whole = learner(site())
    assert len(list(whole.draws(torch.Generator().manual_seed(1)))) == 4


def test_private_steps_are_clipped_patient_by_patient_before_noise(site):
    """DP-SGD written by hand: draw, clip, sum, noise, divide by a public figure."""
    trained = learner(site(), replace(PLAIN, optimizer="sgd"), dp=DP)
    found = trained.train(start_of(trained), answer_losses(trained.model), 1, 5)

    there = site()
    randomness, generator = there.randomness, torch.Generator().manual_seed(5)
    values = {name: value.requires_grad_() for name, value in start_of(trained).items()}
    optimizer = torch.optim.SGD(values.values(), 0.01, momentum=0.9, weight_decay=0.01)
    sampler = PatientSampler(trained.train_rows.patients, 0.7, 4, randomness)
    for _ in range(3):  # 2 epochs of patients that each take part in 7 of 10 steps
        total = {name: torch.zeros_like(value).double() for name, value in values.items()}
        for chosen in sampler.sample():
            rows = trained.rows(trained.train_rows, chosen)
            loss = F.cross_entropy(trained.model.logits(values, rows.batch, generator), rows.answers, reduction="sum")
            gradients = dict(zip(values, torch.autograd.grad(loss, list(values.values())), strict=True))
            norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
            for name, gradient in gradients.items():
                total[name] += gradient * min(1.0, 0.3 / float(norm))
        noise = randomness.normal((sum(value.numel() for value in values.values()),), 0.5 * 0.3)
        for (name, value), part in zip(values.items(), noise.split([v.numel() for v in values.values()]), strict=True):
            value.grad = ((total[name] + part.view_as(value)) / 2).float()
        optimizer.step()
    for name, value in values.items():
        assert torch.allclose(found[name], value, rtol=0, atol=1e-5), name


def test_no_patient_moves_a_step_by_more_than_the_clip(site):
    """With or without one patient, the sum before noise differs by at most C."""
    trained = learner(site(), dp=replace(DP, noise=1e-6, sample_rate=1.0, expected_patients=1))
    patients = trained.train_rows.patients.unique()
    drawn = tuple((trained.train_rows.patients == patient).nonzero().flatten() for patient in patients)
    sums = []
    for without in range(-1, len(drawn)):
        values = {name: value.requires_grad_() for name, value in start_of(trained).items()}
        part = learner_part(trained, values)
        draw = next(iter(trained.draws(torch.Generator().manual_seed(0))))[0]
        rows = tuple(rows for number, rows in enumerate(drawn) if number != without)
        trained.step([part], answer_losses(trained.model), replace(draw, rows=rows, generator=None))
        sums.append(torch.cat([(start_of(trained)[n] - v.detach()).flatten() for n, v in part.values.items()]))
    for less in sums[1:]:
        assert 1e-4 < (sums[0] - less).norm() <= 0.3 + 1e-4


def learner_part(trained: Learner, values):
    """A part whose step is the gradient itself."""
    part = trained.part(values, 1)
    return replace(part, optimizer=torch.optim.SGD(part.values.values(), 1.0))


def test_a_patient_whose_gradient_is_not_finite_contributes_nothing(site):
    """And the others' steps go on."""
    trained = learner(site(), dp=replace(DP, sample_rate=1.0))

    def sometimes(values, rows):
        losses = answer_losses(trained.model)(values, rows)
        return losses * (float("nan") if len(rows.answers) == 4 else 1.0)

    found = trained.train(start_of(trained), sometimes, 1, 5)
    assert all(value.isfinite().all() for value in found.values())


def test_terms_that_see_no_data_are_added_after_clipping(site):
    """A penalty far above the clip has its whole gradient."""
    trained = learner(site(), dp=replace(DP, noise=1e-6))
    part = learner_part(trained, start_of(trained))
    (draw,) = next(iter(trained.draws(torch.Generator().manual_seed(0))))
    trained.step(
        [part], answer_losses(trained.model), replace(draw, rows=()), lambda v: 100 * v["head.hidden.bias"].sum()
    )
    moved = start_of(trained)["head.hidden.bias"] - part.values["head.hidden.bias"].detach()
    assert torch.allclose(moved, torch.full_like(moved, 100.0), atol=1e-3)


@pytest.mark.parametrize("dp", [None, replace(DP, sample_rate=1.0)])
def test_a_parameter_that_takes_no_part_is_refused(site, dp):
    """It would travel for nothing, and under differential privacy be noise alone."""
    trained = learner(site(), dp=dp)
    with pytest.raises(ConfigError, match="took no part"):
        trained.train({**start_of(trained), "idle": torch.ones(2)}, answer_losses(trained.model), 1, 5)


def test_passes_share_a_batch_and_private_ones_share_nothing(site):
    """The accountant takes every private step for a sample of its own."""
    for first, second in learner(site()).draws(torch.Generator().manual_seed(0), passes=2):
        assert first is second
    private = learner(site(), replace(PLAIN, local_epochs=20), dp=DP)
    pairs = list(private.draws(torch.Generator().manual_seed(0), passes=2))
    assert any(len(first.rows) != len(second.rows) for first, second in pairs)


def test_answers_outside_of_the_list_are_not_trained_on_and_never_right(site):
    """They stay in the test rows: the model cannot know them, and that counts."""
    there = site(questions=4)
    trained = learner(there, answers=("yes", "no", "left"))
    assert len(trained.train_rows) == len(there.data.train) * 3 // 4
    assert set(trained.train_rows.answers.tolist()) == {0, 1, 2}
    odd = torch.tensor([question == "what is this" for question in there.data.test.questions])
    right = trained.right(start_of(trained), there.data.test)
    assert odd.any() and not right[odd].any()


def test_rows_are_right_where_the_model_s_best_answer_is_theirs(site):
    there = site()
    trained = learner(there)
    rows = trained.rows(there.data.test, torch.arange(len(there.data.test)))
    best = trained.model.logits(start_of(trained), rows.batch).argmax(dim=1)
    assert torch.equal(trained.right(start_of(trained), there.data.test), best == there.data.test.answers)


def test_a_site_whose_answers_the_job_does_not_know_does_not_train(site):
    """It can test, and is right nowhere."""
    trained = learner(site(), answers=("ct", "mri"))
    with pytest.raises(ConfigError, match="'answers'"):
        trained.train(start_of(trained), answer_losses(trained.model), 1, 5)
    assert not trained.right(start_of(trained), trained.site.data.test).any()
