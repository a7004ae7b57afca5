"""What one patient can change in a step: clipping, sums over passes, and noise."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from privacy import (
    PatientChance,
    PatientStreams,
    PrivateStep,
    Recorder,
    RepeatableRandomness,
    SecureRandomness,
    expanded,
    owned,
)
from privacy.clipping import GradientContribution
from privacy.mechanisms.sampled_gaussian import grid_step

WIDTH = 5
SECRET = RepeatableRandomness(0).secret()
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=8)
Added = tuple[list[GradientContribution], torch.Tensor]
Patients = Sequence[tuple[str, torch.Tensor, torch.Tensor]]
"""Of each patient the key, rows [n, WIDTH] and answers [n]."""


def random_values(seed: int, size: float = 1.0) -> dict[str, torch.Tensor]:
    """A prompt that shifts and gates rows, which is expanded; layers, a sum and a table, which are recorded."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "prompt": (2, WIDTH),
        "wide.weight": (40, WIDTH),
        "wide.bias": (40,),
        "norm.weight": (40,),
        "norm.bias": (40,),
        "shift": (40,),
        "words": (3, 40),
        "head.weight": (3, 40),
        "head.bias": (3,),
    }
    return {name: (size * torch.randn(shape, generator=generator)).requires_grad_() for name, shape in shapes.items()}


def losses(
    values: dict[str, torch.Tensor],
    rows: torch.Tensor,
    answers: torch.Tensor,
    owners: torch.Tensor,
    chance: PatientChance,
) -> torch.Tensor:
    """Cross-entropy of each row, with dropout."""
    prompts = values["prompt"][owners]
    hidden = F.linear((rows + prompts[:, 0]).tanh() * prompts[:, 1], values["wide.weight"], values["wide.bias"]).relu()
    hidden = hidden * (chance.uniform(hidden.shape) >= 0.3)
    hidden = F.layer_norm(hidden, (40,), values["norm.weight"], values["norm.bias"]) + values["shift"]
    hidden = hidden + F.embedding(answers, values["words"])
    return F.cross_entropy(F.linear(hidden, values["head.weight"], values["head.bias"]), answers, reduction="none")


def contributions(values: dict[str, torch.Tensor], patients: Patients) -> Added:
    """What these patients contribute in one pass."""
    owners = torch.arange(len(patients)).repeat_interleave(torch.tensor([len(rows) for _, rows, _ in patients]))
    rows, answers = (torch.cat([each[place] for each in patients]) for place in (1, 2))
    leaves = expanded({"prompt": values["prompt"]}, len(patients))
    recorder = Recorder([value for name, value in values.items() if name != "prompt"])
    chance = PatientChance(PatientStreams(SECRET), [key for key, _, _ in patients])
    with owned(owners), recorder:
        summed = losses({**values, **leaves}, rows, answers, owners, chance).sum()
    return recorder.contributions(summed, len(patients), {values["prompt"]: leaves["prompt"]})


def step_of(values: dict[str, torch.Tensor], patients: Patients, clip: float, chunk: int = 64) -> PrivateStep:
    """A step over passes of at most `chunk` patients."""
    step = PrivateStep(values.values(), clip)
    for first in range(0, len(patients), chunk):
        step.add(*contributions(values, patients[first : first + chunk]))
    return step


def sum_of(step: PrivateStep) -> torch.Tensor:
    """The sum of clipped gradients, flat, as the noise meets it."""
    return torch.cat([total.flatten() for total in step._sums.values()])


def drawn_patients(sizes: Sequence[int], seed: int, scale: float = 1.0) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Patients with so many rows."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            f"patient {number}",
            torch.randn(size, WIDTH, generator=generator) * 3 * scale,
            torch.randint(3, (size,), generator=generator),
        )
        for number, size in enumerate(sizes)
    ]


@settings(max_examples=examples(30))
@given(SIZES, st.floats(1e-3, 100), st.integers(0, 1000))
@pytest.mark.usefixtures("sharp_relu")
def test_a_clipped_patient_is_its_gradient_cut_to_the_bound(sizes: list[int], clip: float, seed: int) -> None:
    """The gradient of all its rows together by ordinary back-propagation, shortened to C, and left alone below."""
    values = random_values(seed)
    for patient in drawn_patients(sizes, seed):
        key, rows, answers = patient
        owners = torch.zeros(len(rows), dtype=torch.int64)
        with owned(owners):
            chance = PatientChance(PatientStreams(SECRET), [key])
            whole = {**values, "prompt": values["prompt"][None]}
            result = torch.autograd.grad(losses(whole, rows, answers, owners, chance).sum(), list(values.values()))
        flat = torch.cat([gradient.flatten() for gradient in result]).double()
        step = step_of(values, [patient], clip)
        clipped = sum_of(step)
        assert float(clipped.norm()) <= clip
        expected = flat * min(1.0, clip / float(flat.norm()))
        assert float((clipped - expected).norm()) <= 2e-3 * float(expected.norm())
        if abs(float(flat.norm()) / clip - 1) > 0.01:
            assert step.clipped.tolist() == [float(flat.norm()) > clip]
        if float(flat.norm()) < 0.99 * clip:
            assert float((clipped - flat).norm()) <= 1e-5 * float(flat.norm())


@settings(max_examples=examples(80))
@given(
    st.lists(st.integers(1, 5), max_size=8),
    st.integers(1, 40),
    st.data(),
    st.floats(1e-2, 10),
    st.floats(0, 1e6),
    st.floats(0.1, 10),
    st.integers(0, 1000),
)
def test_adding_or_removing_a_patient_moves_a_whole_step_by_at_most_the_bound(
    others: list[int], rows: int, data: st.DataObject, clip: float, scale: float, size: float, seed: int
) -> None:
    """The sensitivity over every parameter together, rounding, dropout and chunks included, for extreme rows, too."""
    values = random_values(seed, size)
    without = drawn_patients(others, seed)
    more = ("one more", *drawn_patients([rows], seed + 1, scale)[0][1:])
    place, chunk = data.draw(st.integers(0, len(without))), data.draw(st.integers(1, 9))
    together = [*without[:place], more, *without[place:]]
    moved = sum_of(step_of(values, together, clip, chunk)) - sum_of(step_of(values, without, clip, chunk))
    assert float(moved.norm()) <= clip


@settings(max_examples=examples(30))
@given(SIZES, st.integers(1, 9), st.integers(0, 1000))
def test_passes_accumulate_to_the_step_of_all_patients_at_once(sizes: list[int], chunk: int, seed: int) -> None:
    """A sample that does not fit into memory gives the same step, dropout included, to 1e-5 of C for each patient."""
    values, patients = random_values(seed), drawn_patients(sizes, seed)
    whole, parts = step_of(values, patients, 0.5), step_of(values, patients, 0.5, chunk)
    assert float((sum_of(whole) - sum_of(parts)).norm()) <= 1e-5 * 0.5 * len(sizes)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_patient_whose_rows_are_not_finite_contributes_nothing_and_is_counted(place: int) -> None:
    """The others' sum is what it is without the patient: a bad picture cannot void the bound, nor the step."""
    values, patients = random_values(1), drawn_patients([2, 3], 5)
    spoilt = torch.randn(3, WIDTH)
    spoilt[1, 2] = torch.nan
    together = [*patients[:place], ("spoilt", spoilt, torch.zeros(3, dtype=torch.int64)), *patients[place:]]
    alone, step = step_of(values, patients, 1.0), step_of(values, together, 1.0)
    assert (alone.unbounded, step.unbounded) == (0, 1)
    assert float((sum_of(step) - sum_of(alone)).norm()) <= 1e-6


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_gradient_that_is_not_finite_contributes_nothing_and_is_counted(bad: float) -> None:
    """Finite rows whose loss is not: in recorded layers and in expanded values, bit for bit."""
    weight, prompt = torch.randn(4, 4, requires_grad=True), torch.randn(4, requires_grad=True)

    def summed(owners: torch.Tensor, rows: torch.Tensor, factors: torch.Tensor, patients: int) -> PrivateStep:
        leaves, recorder = expanded({"prompt": prompt}, patients), Recorder([weight])
        with owned(owners), recorder:
            loss = ((F.linear(rows, weight) + leaves["prompt"][owners]).sum(1) * factors).sum()
        step = PrivateStep([weight, prompt], 1.0)
        step.add(*recorder.contributions(loss, patients, {prompt: leaves["prompt"]}))
        return step

    rows = torch.randn(4, 4)
    alone = summed(torch.tensor([0, 0]), rows[:2], torch.ones(2), 1)
    both = summed(torch.tensor([0, 0, 1, 1]), rows, torch.tensor([1.0, 1.0, 1.0, bad]), 2)
    assert (alone.unbounded, both.unbounded) == (0, 1)
    assert torch.equal(sum_of(both), sum_of(alone)) and float(sum_of(both).norm()) > 0


def test_a_step_without_patients_is_noise_alone_of_the_stated_deviation() -> None:
    """Nobody was drawn: the release looks like any other."""
    parameter = torch.zeros(200_000, requires_grad=True)
    PrivateStep([parameter], clip=2.0).finish(noise=3.0, divisor=10.0, randomness=SecureRandomness())
    assert parameter.grad is not None
    assert float(parameter.grad.std()) == pytest.approx(2.0 * 3.0 / 10.0, rel=0.01)
    assert abs(float(parameter.grad.mean())) < 0.01


def test_the_gradient_is_the_sum_and_the_noise_over_the_public_divisor() -> None:
    """Not over the number of patients drawn, which nobody may learn; noise is in proportion to C."""
    values, patients = random_values(2), drawn_patients([2, 1, 3], 2)
    step = step_of(values, patients, 2.0)
    total = sum_of(step)
    step.finish(noise=0.5, divisor=4.0, randomness=RepeatableRandomness(3))
    grid = grid_step(2.0, len(total))
    noise = grid * RepeatableRandomness(3).rounded_normal(len(total), 0.5 * 2.0 / grid)
    result = torch.cat([value.grad.flatten() for value in values.values() if value.grad is not None])
    torch.testing.assert_close(result, ((total + noise) / 4.0).float(), rtol=1e-5, atol=grid / 4.0)


def test_terms_without_data_add_to_the_noisy_gradient() -> None:
    """They are outside of the clip: back-propagating them afterwards adds their exact gradient."""
    parameter = torch.ones(4, requires_grad=True)
    PrivateStep([parameter], 1.0).finish(1.0, 1.0, RepeatableRandomness(0))
    assert parameter.grad is not None
    before = parameter.grad.clone()
    (3 * parameter.square().sum()).backward()
    torch.testing.assert_close(parameter.grad, before + 6)
