"""Local steps are what they say, plain and private."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from medfedvqa.data import batches
from medfedvqa.errors import ConfigError
from medfedvqa.models import HeadConfig, TunedModel, TuningConfig, Values
from medfedvqa.training import Part, Privacy, Site, Trainer, TrainingConfig, answer_losses
from privacy import (
    DPSettings,
    NoiseLevels,
    PatientChance,
    PatientSampler,
    PatientStreams,
    SeededChance,
    SettingsError,
    owned,
)
from privacy.mechanisms.sampled_gaussian import grid_step

PLAIN = TrainingConfig(2, "epochs", 6, 1, "adamw", 0.01, 0.1, 1, 0.01)
DP = DPSettings(noise=0.5, count_noise=1.0, clip=0.3, sample_rate=0.7, expected_patients=2, patient_rows=4)

Make = Callable[..., Site]


def trainer(
    site: Site,
    config: TrainingConfig = PLAIN,
    answers: tuple[str, ...] | None = None,
    dropout: float = 0.2,
    dp: DPSettings | None = None,
) -> Trainer:
    """A trainer of adapters."""
    head = HeadConfig(len(answers or site.data.answers), 8, dropout)
    model = TunedModel(site.backbone, TuningConfig("adapter", reduction=4), head)
    return Trainer(site, model, config, answers, dp and Privacy(dp, NoiseLevels(dp.noise)))


def start_of(made: Trainer) -> Values:
    return made.model.initial(torch.Generator().manual_seed(1), torch.Generator().manual_seed(2))


def same(one: Values, other: Values) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_plain_steps_are_those_of_a_loop_written_by_hand(site: Make, kind: str) -> None:
    """Bit for bit, dropout and the decay of the learning rate included."""
    made = trainer(site(), replace(PLAIN, optimizer=kind))
    found = made.train(start_of(made), answer_losses(made.model), 2, 5).trained()

    values = {name: value.requires_grad_() for name, value in start_of(made).items()}
    parameters = list(values.values())
    optimizer = {
        "sgd": torch.optim.SGD(parameters, 0.001, momentum=0.9, weight_decay=0.01),
        "adam": torch.optim.Adam(parameters, 0.001, weight_decay=0.01),
        "adamw": torch.optim.AdamW(parameters, 0.001, weight_decay=0.01),
    }[kind]
    chance = SeededChance(5)
    for _ in range(2):
        for chosen in batches(made.train_rows, 6, chance.generator):
            rows = made._rows.rows(made.train_rows, chosen)
            optimizer.zero_grad()
            F.cross_entropy(made.model.logits(values, rows.batch, chance), rows.answers).backward()
            optimizer.step()
    assert same(found, {name: value.detach() for name, value in values.items()})


def test_the_start_of_a_round_is_left_as_it_is(site: Make) -> None:
    """And what a round gives is a copy that later steps leave as it is."""
    made = trainer(site())
    start = start_of(made)
    part = made.train(start, answer_losses(made.model), 1, 5)
    assert same(start, start_of(made))
    first = part.trained()
    with torch.no_grad():
        for value in part.values.values():
            value.zero_()
    assert not same(first, part.trained())


def test_an_optimiser_may_keep_its_memory_over_rounds(site: Make) -> None:
    """A second round goes on where the first one stopped; its rate is its own, and what it was given stays as it is."""
    made = trainer(site(), replace(PLAIN, local_epochs=1, decay_every=2, optimizer="adam"))
    loss = answer_losses(made.model)
    first = made.train(start_of(made), loss, 1, 5)
    memory = first.optimizer.state_dict()
    kept, fresh = (made.train(first.trained(), loss, 2, 6, memory=each) for each in (memory, None))
    for value in first.values.values():
        value.grad = None
    for (draw,) in made.draws(6):
        made.step([first], loss, draw)
    assert same(kept.trained(), first.trained()) and not same(kept.trained(), fresh.trained())
    assert made.part(first.trained(), 3, memory).optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_batches_can_be_counted_in_the_place_of_epochs(site: Make) -> None:
    """More of them than an epoch has begin another one."""
    counted = trainer(site(), replace(PLAIN, local_unit="batches", local_epochs=3))
    assert len(list(counted.draws(1))) == 3
    assert len(list(trainer(site()).draws(1))) == 4


def test_a_round_that_draws_in_parts_draws_what_it_would_draw_at_once(site: Make) -> None:
    """An epoch at a time from one chance: the same rows as two epochs from its seed."""
    once, parts = trainer(site()), trainer(site(), replace(PLAIN, local_epochs=1))
    chance = SeededChance(1)
    drawn = [draw.chosen for _ in range(2) for (draw,) in parts.draws(chance)]
    assert all(torch.equal(one, draw.chosen) for one, (draw,) in zip(drawn, once.draws(1), strict=True))


def test_a_view_of_each_picture_is_drawn_for_training_alone(site: Make) -> None:
    """With views, training rows show other pictures than the stored ones; tests and probes never do."""
    there = site()
    several, single = trainer(there, replace(PLAIN, views=3)), trainer(there)
    rows = torch.arange(len(there.data.train))
    pictures = [made._rows.rows(made.train_rows, rows).batch.rows.pictures.start for made in (several, single)]
    assert torch.allclose(*pictures)
    shown = several._rows.rows(several.train_rows, rows, SeededChance(1)).batch.rows.pictures
    assert not torch.allclose(shown.start, pictures[0])


def test_private_steps_are_clipped_patient_by_patient_before_noise(site: Make) -> None:
    """DP-SGD written by hand: draw, clip, sum, noise, divide by a public figure."""
    made = trainer(site(), replace(PLAIN, optimizer="sgd"), dp=DP)
    found = made.train(start_of(made), answer_losses(made.model), 1, 5).trained()

    there = site()
    randomness, names = there.randomness, there.data.patients
    values = {name: value.requires_grad_() for name, value in start_of(made).items()}
    optimizer = torch.optim.SGD(values.values(), 0.01, momentum=0.9, weight_decay=0.01)
    sampler = PatientSampler(made.train_rows.patients, names, 0.7, 4, randomness)
    for _ in range(3):  # 2 epochs of patients that each take part in 7 of 10 steps
        total = {name: torch.zeros_like(value).double() for name, value in values.items()}
        drawn, streams = sampler.sample(), PatientStreams(randomness.secret())
        for chosen in drawn:
            chance = PatientChance(streams, [names[int(made.train_rows.patients[chosen[0]])]])
            with owned(torch.zeros(len(chosen), dtype=torch.int64)):
                rows = made._rows.rows(made.train_rows, chosen, chance)
                logits = made.model.logits(values, rows.batch, chance)
            loss = F.cross_entropy(logits, rows.answers, reduction="sum")
            gradients = dict(zip(values, torch.autograd.grad(loss, list(values.values())), strict=True))
            norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
            for name, gradient in gradients.items():
                total[name] += gradient * min(1.0, 0.3 / float(norm))
        count = sum(value.numel() for value in values.values())
        step = grid_step(0.3, count)
        noise = step * randomness.rounded_normal(count, 0.5 * 0.3 / step)
        for (name, value), part in zip(values.items(), noise.split([v.numel() for v in values.values()]), strict=True):
            value.grad = ((total[name] + part.view_as(value)) / 2).float()
        optimizer.step()
    for name, value in values.items():
        assert torch.allclose(found[name], value, rtol=0, atol=1e-5), name


def whole(made: Trainer) -> tuple[Any, Part]:
    """A sample of all patients, and a part whose step is the gradient itself."""
    (draw,) = next(iter(made.draws(0)))
    part = made.part(start_of(made), 1)
    return draw, replace(part, optimizer=torch.optim.SGD(part.values.values(), 1.0))


def step_of(made: Trainer, patients: tuple[torch.Tensor, ...], loss: Any, draw: Any, part: Part) -> torch.Tensor:
    """How far a step on these patients goes, flat."""
    made.step([part], loss, replace(draw, patients=patients))
    return torch.cat([(start_of(made)[name] - v.detach()).flatten() for name, v in part.values.items()])


QUIET = replace(DP, noise=1e-6, sample_rate=1.0, expected_patients=1)


def test_no_patient_moves_a_step_by_more_than_the_clip(site: Make) -> None:
    """With or without one patient, under the same secret, the sum before noise differs by at most C, dropout or not."""
    for dropout in (0.2, 0.0):
        made = trainer(site(), dropout=dropout, dp=QUIET)
        draw, _ = whole(made)
        loss, sums = answer_losses(made.model), []
        for without in range(-1, len(draw.patients)):
            kept = tuple(rows for number, rows in enumerate(draw.patients) if number != without)
            sums.append(step_of(made, kept, loss, draw, whole(made)[1]))
        assert len(sums) == 4
        for less in sums[1:]:
            assert 1e-4 < (sums[0] - less).norm() <= 0.3 + 1e-4


def test_a_patient_whose_gradient_is_not_finite_contributes_nothing(site: Make, caplog) -> None:
    """The others contribute what they do without it, and the site's log counts the patient."""
    made = trainer(site(), dp=QUIET)
    draw, part = whole(made)
    first = len(draw.patients[0])
    plain = answer_losses(made.model)

    def sometimes(values, rows):
        losses = plain(values, rows)
        return losses * torch.tensor([float("nan")] * first + [1.0] * (len(losses) - first))

    with caplog.at_level(logging.WARNING, "medfedvqa.training.private"):
        moved = step_of(made, draw.patients, sometimes, draw, part)
    assert [record.getMessage()[:10] for record in caplog.records] == ["1 patients"]
    others = step_of(made, draw.patients[1:], plain, draw, whole(made)[1])
    assert moved.norm() > 1e-2 and torch.allclose(moved, others, rtol=0, atol=1e-5)


def test_terms_that_see_no_data_are_added_after_clipping(site: Make) -> None:
    """A penalty far above the clip has its whole gradient."""
    made = trainer(site(), dp=replace(DP, noise=1e-6))
    draw, part = whole(made)
    made.step(
        [part], answer_losses(made.model), replace(draw, patients=()), lambda v: 100 * v["head.hidden.bias"].sum()
    )
    moved = start_of(made)["head.hidden.bias"] - part.values["head.hidden.bias"].detach()
    assert torch.allclose(moved, torch.full_like(moved, 100.0), atol=1e-3)


@pytest.mark.parametrize(("dp", "error"), [(None, ConfigError), (replace(DP, sample_rate=1.0), SettingsError)])
def test_a_parameter_that_takes_no_part_is_refused(site: Make, dp: DPSettings | None, error: type[Exception]) -> None:
    """It would travel for nothing, and under differential privacy be noise alone."""
    made = trainer(site(), dp=dp)
    with pytest.raises(error, match="took no part"):
        made.train({**start_of(made), "idle": torch.ones(2)}, answer_losses(made.model), 1, 5)


def test_passes_share_a_batch_and_private_ones_share_nothing(site: Make) -> None:
    """The accountant takes every private step for a sample of its own."""
    for first, second in trainer(site()).draws(0, passes=2):
        assert first is second
    private = trainer(site(), replace(PLAIN, local_epochs=20), dp=DP)
    pairs = list(private.draws(0, passes=2))
    assert any(len(first.patients) != len(second.patients) for first, second in pairs)
    assert all(first.streams is not second.streams for first, second in pairs)


def test_a_jobs_seed_does_not_reach_private_training(site: Make) -> None:
    """Who takes part and what is dropped follow from the site's own randomness alone."""
    found = []
    for seed in (5, 6):
        made = trainer(site(), dp=DP)
        found.append(made.train(start_of(made), answer_losses(made.model), 1, seed).trained())
    assert same(*found)


def test_answers_outside_of_the_list_are_not_trained_on_and_never_right(site: Make, caplog) -> None:
    """They stay in the test rows: the model cannot know them, and that counts. The site's log counts those left out."""
    there = site(questions=4)
    made = trainer(there, answers=("yes", "no", "left"))
    assert len(made.train_rows) == len(there.data.train) * 3 // 4
    assert set(made.train_rows.answers.tolist()) == {0, 1, 2}
    odd = torch.tensor([question == "what is this" for question in there.data.test.questions])
    right = made.right(start_of(made), there.data.test)
    assert odd.any() and not right[odd].any()
    with caplog.at_level(logging.INFO, "medfedvqa.training.trainer"):
        made.train(start_of(made), answer_losses(made.model), 1, 5)
    count = len(there.data.train) - len(made.train_rows)
    assert count and [record.getMessage().split()[0] for record in caplog.records] == [str(count)]
    assert not any("odd" in record.getMessage() for record in caplog.records)


def test_rows_are_right_where_the_model_s_best_answer_is_theirs(site: Make) -> None:
    """Counted by hand."""
    there = site()
    made = trainer(there)
    best = made.model.logits(start_of(made), made.all_rows(there.data.test).batch).argmax(dim=1)
    assert torch.equal(made.right(start_of(made), there.data.test), best == there.data.test.answers)


def test_a_site_whose_answers_the_job_does_not_know_does_not_train(site: Make) -> None:
    """It can test, and is right nowhere."""
    made = trainer(site(), answers=("ct", "mri"))
    start = start_of(made)
    trained = made.train(start, answer_losses(made.model), 1, 5).trained()
    assert all(torch.equal(trained[name], value) for name, value in start.items())
    assert not made.right(start_of(made), made.site.data.test).any()
