"""Per-patient gradients, their clipping, and what one patient can change in a step."""

import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from privacy import PrivateStep, Recorder, RepeatableRandomness, SecureRandomness, SettingsError

WIDTH = 5


class Model(nn.Module):
    """A prompt that every row's features are shifted and gated by, and two linear layers; one more is frozen."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.prompt = nn.Parameter(torch.randn(2, WIDTH))
            self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
            self.head = nn.Sequential(nn.Linear(WIDTH, 7), nn.ReLU(), nn.LayerNorm(7), nn.Linear(7, 3))

    def forward(self, rows: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
        """`rows` [n, WIDTH]; `prompts` [n, 2, WIDTH], each row's own."""
        return self.head(self.frozen(rows + prompts[:, 0]).tanh() * prompts[:, 1])


def rows_of(sizes: Sequence[int], seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, answers and owners of patients with so many rows, in mixed order."""
    generator = torch.Generator().manual_seed(seed)
    owners = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    owners = owners[torch.randperm(len(owners), generator=generator)]
    rows = torch.randn(len(owners), WIDTH, generator=generator) * 3
    return rows, torch.randint(3, (len(owners),), generator=generator), owners


def contributions(model: Model, rows: torch.Tensor, answers: torch.Tensor, owners: torch.Tensor, patients: int) -> list:
    """What the patients contribute to the summed cross-entropy."""
    leaf = model.prompt.detach().expand(patients, *model.prompt.shape).clone().requires_grad_()
    with Recorder(model, [model.prompt]) as recorder:
        loss = F.cross_entropy(model(rows, leaf[owners]), answers, reduction="sum")
    return recorder.contributions(loss, owners, patients, {model.prompt: leaf})


def one_by_one(model: Model, rows: torch.Tensor, answers: torch.Tensor) -> dict[nn.Parameter, torch.Tensor]:
    """The sum over rows of ordinary gradients, each row by itself."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = {parameter: torch.zeros_like(parameter) for parameter in trained}
    for row, answer in zip(rows, answers, strict=True):
        loss = F.cross_entropy(model(row[None], model.prompt[None]), answer[None])
        for parameter, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            total[parameter] += gradient
    return total


def step_sum(model: Model, parts: Sequence[list], clip: float) -> torch.Tensor:
    """The sum of clipped gradients of some passes, flat, as the noise meets it."""
    step = PrivateStep([parameter for parameter in model.parameters() if parameter.requires_grad], clip)
    for part in parts:
        step.add(part)
    return torch.cat([total.flatten() for total in step._sums.values()])


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=8)


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(0, 1000))
def test_a_patients_gradient_is_the_sum_over_its_rows_computed_one_by_one(sizes: list[int], seed: int) -> None:
    """For expanded prompts, linear layers and a layer with Opacus' general rule alike, to 1e-6."""
    model, (rows, answers, owners) = Model(), rows_of(sizes, seed)
    found: dict[nn.Parameter, torch.Tensor] = {}
    for part in contributions(model, rows, answers, owners, len(sizes)):
        found |= part.each()
        separate = torch.stack([each.flatten(1).square().sum(1) for each in part.each().values()]).sum(0)
        torch.testing.assert_close(part.squared_norms(), separate, rtol=1e-5, atol=1e-6)
    for patient in range(len(sizes)):
        expected = one_by_one(model, rows[owners == patient], answers[owners == patient])
        assert found.keys() == expected.keys()
        for parameter, gradient in expected.items():
            torch.testing.assert_close(found[parameter][patient], gradient, rtol=1e-5, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(SIZES, st.floats(1e-3, 100), st.integers(0, 1000))
def test_the_norm_of_a_clipped_patient_never_exceeds_the_bound(sizes: list[int], clip: float, seed: int) -> None:
    """And one whose gradient is smaller is not changed."""
    model, (rows, answers, owners) = Model(), rows_of(sizes, seed)
    for patient in range(len(sizes)):
        mine = owners == patient
        part = contributions(model, rows[mine], answers[mine], torch.zeros_like(owners[mine]), 1)
        norm = math.sqrt(sum(float(p.squared_norms()) for p in part))
        clipped = float(step_sum(model, [part], clip).norm())
        assert clipped <= clip
        assert clipped == pytest.approx(min(norm, clip), rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(1, 5), st.floats(1e-2, 10), st.floats(0, 1e4), st.integers(0, 1000))
def test_adding_or_removing_a_patient_moves_the_whole_steps_sum_by_at_most_the_bound(
    sizes: list[int], more: int, clip: float, scale: float, seed: int
) -> None:
    """The sensitivity of a step over every trained parameter together, also for a patient with extreme rows."""
    model, (rows, answers, owners) = Model(), rows_of([*sizes, more], seed)
    last = owners == len(sizes)
    rows[last] *= scale
    with_all = step_sum(model, [contributions(model, rows, answers, owners, len(sizes) + 1)], clip)
    without = step_sum(model, [contributions(model, rows[~last], answers[~last], owners[~last], len(sizes))], clip)
    assert float((with_all - without).norm()) <= clip * (1 + 1e-5) + 1e-5 * len(sizes) * clip


def test_passes_accumulate_to_the_step_of_all_patients_at_once() -> None:
    """A sample that does not fit into memory gives the same step."""
    model, (rows, answers, owners) = Model(), rows_of([2, 1, 3, 2], 5)
    first, second = owners < 2, owners >= 2
    parts = [
        contributions(model, rows[first], answers[first], owners[first], 2),
        contributions(model, rows[second], answers[second], owners[second] - 2, 2),
    ]
    whole = step_sum(model, [contributions(model, rows, answers, owners, 4)], 0.5)
    torch.testing.assert_close(step_sum(model, parts, 0.5), whole, rtol=1e-6, atol=1e-7)


def test_a_patient_whose_gradient_is_not_finite_contributes_nothing() -> None:
    """The others' sum is as if it had not been there: a bad picture cannot void the bound."""
    model, (rows, answers, owners) = Model(), rows_of([2, 3], 5)
    first = owners == 0
    alone = step_sum(model, [contributions(model, rows[first], answers[first], owners[first], 1)], 1.0)
    rows[owners == 1] = torch.inf
    both = step_sum(model, [contributions(model, rows, answers, owners, 2)], 1.0)
    torch.testing.assert_close(both, alone, rtol=1e-6, atol=1e-7)


def test_a_layer_that_is_used_twice_has_one_clipped_gradient() -> None:
    """Its norm is that of the sum, not the sum of two bounds."""
    layer = nn.Linear(3, 3)
    rows, owners = torch.randn(4, 3), torch.tensor([0, 0, 1, 1])
    with Recorder(layer) as recorder:
        loss = layer(layer(rows).tanh()).square().sum()
    (part,) = recorder.contributions(loss, owners, 2, {})
    for patient in range(2):
        own = layer(layer(rows[owners == patient]).tanh()).square().sum()
        for parameter, gradient in zip(layer.parameters(), torch.autograd.grad(own, layer.parameters()), strict=True):
            torch.testing.assert_close(part.each()[parameter][patient], gradient, rtol=1e-5, atol=1e-6)


def test_a_layer_without_a_rule_is_refused() -> None:
    """Rather than trained without a bound."""
    with pytest.raises(SettingsError, match="BatchNorm1d"):
        Recorder(nn.BatchNorm1d(3))


def test_a_parameter_that_the_loss_leaves_out_is_refused() -> None:
    """Its noise would be charged and its bound never checked."""
    model, (rows, answers, owners) = Model(), rows_of([1, 1], 0)
    step = PrivateStep(model.parameters(), 1.0)  # with the frozen layer's
    with pytest.raises(SettingsError, match="took no part"):
        step.add(contributions(model, rows, answers, owners, 2))


def test_a_step_without_patients_is_noise_alone_of_the_stated_deviation() -> None:
    """Nobody was drawn: the release looks like any other."""
    parameter = nn.Parameter(torch.zeros(200_000))
    PrivateStep([parameter], clip=2.0).finish(noise=3.0, divisor=10.0, randomness=SecureRandomness())
    assert parameter.grad is not None
    assert float(parameter.grad.std()) == pytest.approx(2.0 * 3.0 / 10.0, rel=0.01)
    assert abs(float(parameter.grad.mean())) < 0.01


def test_the_gradient_is_the_sum_and_the_noise_over_the_public_divisor() -> None:
    """Not over the number of patients drawn, which nobody may learn."""
    model, (rows, answers, owners) = Model(), rows_of([2, 1, 3], 2)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    part = contributions(model, rows, answers, owners, 3)
    total = step_sum(model, [part], 1.0)
    step = PrivateStep(trained, 1.0)
    step.add(part)
    step.finish(noise=0.5, divisor=4.0, randomness=RepeatableRandomness(3))
    noise = RepeatableRandomness(3).normal((len(total),), 0.5)
    found = torch.cat([parameter.grad.flatten() for parameter in trained if parameter.grad is not None])
    torch.testing.assert_close(found, ((total + noise) / 4.0).float())


def test_terms_without_data_add_to_the_noisy_gradient() -> None:
    """They are outside of the clip: back-propagating them afterwards adds their exact gradient."""
    parameter = nn.Parameter(torch.ones(4))
    PrivateStep([parameter], 1.0).finish(1.0, 1.0, RepeatableRandomness(0))
    assert parameter.grad is not None
    before = parameter.grad.clone()
    (3 * parameter.square().sum()).backward()
    torch.testing.assert_close(parameter.grad, before + 6)
