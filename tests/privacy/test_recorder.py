"""Uses of trained values that the recorder has a rule for give each patient's gradient, and others are refused."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from privacy import PrivateStep, Recorder, SettingsError, owned

WIDTH = 6
Items = torch.Tensor
"""[items, ...], numbers of the patients' data."""
Forward = Callable[[dict[str, torch.Tensor], Items], torch.Tensor]
"""Values and items to outputs, [items, ...]."""

FLAT, TOKENS, MAPS, WORDS = (WIDTH,), (4, WIDTH), (2, 6, 6), (5,)


def twice(values: dict[str, torch.Tensor], items: Items) -> torch.Tensor:
    """One weight in two layers."""
    return F.linear(F.linear(items, values["w"]).tanh(), values["w"], values["b"])


def halves(values: dict[str, torch.Tensor], items: Items) -> torch.Tensor:
    """Rows of one weight in layers of their own."""
    w, b = values["w"], values["b"]
    return torch.cat([F.linear(items, w[:2], b[:2]).tanh(), F.linear(items, w[2:], b[2:])], dim=-1)


def overlapping(values: dict[str, torch.Tensor], items: Items) -> torch.Tensor:
    """Ranges that share rows, and all rows once more."""
    w = values["w"]
    return F.linear(items, w[:4]).sum(-1) + F.linear(items, w[2:]).square().sum(-1) + F.linear(items, w).tanh().sum(-1)


def last_row(values: dict[str, torch.Tensor], items: Items) -> torch.Tensor:
    """A row by a number that counts from the end, beside another range."""
    return items + values["w"][-1] + F.linear(items, values["w"][:3]).sum(-1, keepdim=True)


CASES: dict[str, tuple[dict[str, Sequence[int]], Sequence[int], Forward]] = {
    "linear": ({"w": (6, 6), "b": (6,)}, FLAT, lambda v, x: F.linear(x, v["w"], v["b"])),
    "linear on tokens": ({"w": (3, 6), "b": (3,)}, TOKENS, lambda v, x: F.linear(x, v["w"], v["b"])),
    "linear, weight alone": ({"w": (3, 6)}, TOKENS, lambda v, x: F.linear(x, v["w"])),
    "wide linear": ({"w": (40, 6), "b": (40,)}, FLAT, lambda v, x: F.linear(x, v["w"], v["b"])),
    "linear, reshaped": ({"w": (4, 9)}, FLAT, lambda v, x: F.linear(x, v["w"].view(6, 6))),
    "twice": ({"w": (6, 6), "b": (6,)}, TOKENS, twice),
    "halves": ({"w": (6, 6), "b": (6,)}, TOKENS, halves),
    "overlapping": ({"w": (6, 6)}, TOKENS, overlapping),
    "last row": ({"w": (6, 6)}, FLAT, last_row),
    "layer norm": ({"w": (6,), "b": (6,)}, TOKENS, lambda v, x: F.layer_norm(x, (6,), v["w"], v["b"])),
    "layer norm of two": ({"w": (4, 6), "b": (4, 6)}, TOKENS, lambda v, x: F.layer_norm(x, (4, 6), v["w"], v["b"])),
    "convolution": (
        {"w": (3, 2, 3, 3), "b": (3,)},
        MAPS,
        lambda v, x: F.conv2d(x, v["w"], v["b"], stride=2, padding=1),
    ),
    "convolution, valid": ({"w": (3, 2, 3, 3)}, MAPS, lambda v, x: F.conv2d(x, v["w"], padding="valid")),
    "convolution, oblong": ({"w": (3, 2, 3, 2)}, MAPS, lambda v, x: F.conv2d(x, v["w"], None, (1, 2), (1, 0))),
    "transposed convolution": (
        {"w": (2, 3, 4, 4), "b": (3,)},
        MAPS,
        lambda v, x: F.conv_transpose2d(x, v["w"], v["b"], stride=2, padding=1),
    ),
    "embedding": ({"w": (9, 6)}, WORDS, lambda v, x: F.embedding(x, v["w"])),
    "embedding with padding": ({"w": (9, 6)}, WORDS, lambda v, x: F.embedding(x, v["w"], padding_idx=3)),
    "embedding, padding at the end": ({"w": (9, 6)}, WORDS, lambda v, x: F.embedding(x, v["w"], padding_idx=-1)),
    "embedding in a range": ({"w": (12, 6)}, WORDS, lambda v, x: F.embedding(x, v["w"][2:11])),
    "look-up by index": ({"w": (9, 6)}, WORDS, lambda v, x: v["w"][x]),
    "expanded": ({"w": (4, 6)}, TOKENS, lambda v, x: torch.cat([v["w"].expand(len(x), 4, 6), x], dim=1)),
    "expanded from one": ({"w": (1, 6)}, FLAT, lambda v, x: v["w"].expand(len(x), -1) * x),
    "unsqueezed and expanded": ({"w": (6,)}, TOKENS, lambda v, x: v["w"].unsqueeze(0).expand(len(x), -1) * x[:, 0]),
    "sum": ({"w": (6,)}, TOKENS, lambda v, x: x + v["w"]),
    "sum from the left": ({"w": (4, 6)}, TOKENS, lambda v, x: v["w"] + x),
    "sum of a column": ({"w": (4, 1)}, TOKENS, lambda v, x: x + v["w"]),
    "sum of a row": ({"w": (5, 6)}, TOKENS, lambda v, x: x + v["w"][3]),
    "sum twice, once reshaped": ({"w": (4, 6)}, TOKENS, lambda v, x: (x + v["w"]).flatten(1) + v["w"].view(1, 24)),
    "layer scale": ({"w": (6,)}, TOKENS, lambda v, x: x * v["w"]),
    "layer scale from the left": ({"w": (6,)}, TOKENS, lambda v, x: v["w"] * x.tanh()),
    "channel scale": ({"w": (2,)}, MAPS, lambda v, x: x.mul(v["w"].reshape(1, -1, 1, 1))),
    "batch norm, fixed": (
        {"w": (2,), "b": (2,)},
        MAPS,
        lambda v, x: F.batch_norm(x, torch.tensor([0.2, -1.0]).to(x), torch.tensor([2.0, 0.5]).to(x), v["w"], v["b"]),
    ),
    "batch norm, then in place": (
        {"b": (2,)},
        MAPS,
        lambda v, x: F.batch_norm(x, torch.zeros(2).to(x), torch.ones(2).to(x), None, v["b"]).add_(x).relu_(),
    ),
    "group norm, then in place": (
        {"w": (2,), "b": (2,)},
        MAPS,
        lambda v, x: F.group_norm(x, 1, v["w"], v["b"]).add_(x).relu_(),
    ),
    "groups": (
        {"w": (4, 2, 3, 3), "b": (4,)},
        MAPS,
        lambda v, x: F.conv2d(torch.cat([x, x.tanh()], dim=1), v["w"], v["b"], (2, 1), (1, 0), 1, 2),
    ),
    "depthwise": ({"w": (2, 1, 3, 3), "b": (2,)}, MAPS, lambda v, x: F.conv2d(x, v["w"], v["b"], 1, 1, 1, 2)),
    "groups, bias alone": (
        {"b": (2,)},
        MAPS,
        lambda v, x: F.conv2d(x, torch.ones(2, 1, 3, 3).to(x), v["b"], padding=1, groups=2),
    ),
    "layer and sum": ({"w": (6, 6)}, (6, 6), lambda v, x: F.linear(x, v["w"]) + v["w"]),
}


def items_of(shape: Sequence[int], count: int, generator: torch.Generator) -> Items:
    """Numbers, or words of a vocabulary of 9 in which 3 and 8 are frequent."""
    if shape == WORDS:
        words = torch.randint(9, (count, *shape), generator=generator)
        return words.where(torch.rand(words.shape, generator=generator) < 0.7, torch.tensor(3) + 5 * (words % 2))
    return torch.randn(count, *shape, generator=generator)


def total(outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """A loss that is a sum over items and linear in none of them."""
    return (outputs.flatten(1).sin().sum(1) * weights + outputs.flatten(1).square().sum(1)).sum()


def values_of(shapes: dict[str, Sequence[int]], generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Random values that require gradients."""
    return {name: torch.randn(*shape, generator=generator).requires_grad_() for name, shape in shapes.items()}


def each_of(parts: list[Any], value: torch.Tensor, patients: int) -> torch.Tensor:
    """Every patient's gradient of a value, from sums in which it has weight 1 and others 0, [patients, *shape]."""
    sums = torch.zeros(patients, *value.shape, dtype=torch.float64)
    for patient in range(patients):
        weights = torch.zeros(patients, dtype=torch.float64)
        weights[patient] = 1
        for part in parts:
            if part.value is value:
                part.add(sums[patient], weights)
    return sums


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=examples(12))
@given(counts=st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any), seed=st.integers(0, 1000))
@pytest.mark.usefixtures("sharp_relu")
def test_each_patients_gradient_is_that_of_its_own_items(name: str, counts: list[int], seed: int) -> None:
    """As ordinary back-propagation in double precision gives it patient by patient, to 1e-5, and its norm is bounded.

    Some patients have no items of the kind at all.
    """
    shapes, shape, forward = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    values = values_of(shapes, generator)
    owners = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    items, weights = items_of(shape, len(owners), generator), torch.randn(len(owners), generator=generator)
    recorder = Recorder(list(values.values()))
    with owned(owners), recorder:
        loss = total(forward(values, items), weights)
    parts, sound = recorder.contributions(loss, len(counts), {})
    assert bool(sound.all())
    bounds = torch.stack([part.squared_norms() for part in parts]).sum(0).sqrt()
    exact = {key: value.detach().double().requires_grad_() for key, value in values.items()}
    squares = torch.zeros(len(counts), dtype=torch.float64)
    result = {key: each_of(parts, value, len(counts)) for key, value in values.items()}
    for patient in range(len(counts)):
        mine = owners == patient
        data = items[mine] if shape == WORDS else items[mine].double()
        alone = total(forward(exact, data), weights[mine].double())
        for key, gradient in zip(exact, torch.autograd.grad(alone, list(exact.values())), strict=True):
            scale = max(1.0, float(gradient.abs().max()))
            torch.testing.assert_close(result[key][patient], gradient, rtol=0, atol=1e-5 * scale)
            squares[patient] += gradient.square().sum()
    assert bool((bounds >= squares.sqrt() * (1 - 1e-5)).all())
    assert bool((bounds <= squares.sqrt() * 1.02 + 1e-4).all())


def recorded(values: dict[str, torch.Tensor], forward: Forward, items: Items, owners: torch.Tensor | None) -> Any:
    """What the patients contribute."""
    recorder = Recorder(list(values.values()))
    with owned(owners), recorder:
        loss = total(forward(values, items), torch.ones(len(items)))
    return recorder.contributions(loss, 2, {})


UNKNOWN: dict[str, Forward] = {
    "matmul": lambda v, x: x @ v["w"],
    "chunk": lambda v, x: F.linear(x, v["w"].chunk(2)[0]),
    "multiplication": lambda v, x: x * v["w"].sum(0),
    "transposed": lambda v, x: F.linear(x, v["w"].T),
    "layer of a layer": lambda v, x: F.linear(x, F.linear(v["w"], v["w"])),
    "every other row": lambda v, x: F.linear(x, v["w"][::2]),
    "part of a range": lambda v, x: F.linear(x, v["w"][1:][:2]),
    "row of a reshaped value": lambda v, x: F.linear(x, v["w"].view(18, 2)[:6].view(2, 6)),
    "known, and unknown": lambda v, x: F.linear(x, v["w"]) + (x @ v["w"]),
    "expanded columns": lambda v, x: x + v["w"][:, :1].expand(6, 6)[0],
    "expanded within": lambda v, x: v["w"].unsqueeze(1).expand(6, 2, 6).sum((0, 1)) + x,
    "own numbers for each item": lambda v, x: x + v["w"],
    "written in place": lambda v, x: F.linear(x.clone().requires_grad_(), v["w"]).relu_(),
    "input written in place": lambda v, x: (F.linear(y := x.clone(), v["w"]), y.zero_())[0],
    "sum in place": lambda v, x: x.clone().add_(v["w"][0]),
    "scaled look-up": lambda v, x: F.embedding(x.abs().long() % 6, v["w"], scale_grad_by_freq=True),
    "reshaped table": lambda v, x: F.embedding(x.abs().long() % 2, v["w"].view(6, 2, 3)),
    "look-up, and layer": lambda v, x: v["w"][x.abs().long() % 6].sum(1) + F.linear(x, v["w"]),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_use_without_a_rule_is_refused(name: str) -> None:
    """Rather than trained without a bound, or with a gradient that is not the patient's."""
    values = values_of({"w": (6, 6)}, torch.Generator().manual_seed(0))
    with pytest.raises(SettingsError):
        recorded(values, UNKNOWN[name], torch.randn(6, 6), torch.tensor([0, 0, 0, 1, 1, 1]))


CONVOLUTIONS: dict[str, Forward] = {
    "dilation": lambda v, x: F.conv2d(x, v["w"], dilation=2),
    "groups with dilation": lambda v, x: F.conv2d(torch.cat([x, x], dim=1), v["w"], None, 1, 0, 2, 2),
    "named padding": lambda v, x: F.conv2d(x, v["w"], padding="same"),
    "output padding": lambda v, x: F.conv_transpose2d(x, v["w"], None, 2, 0, 1),
    "transposed dilation": lambda v, x: F.conv_transpose2d(x, v["w"], dilation=2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_without_a_rule_is_refused(name: str) -> None:
    """Its patches are not those that the rule takes."""
    values = values_of({"w": (2, 2, 3, 3)}, torch.Generator().manual_seed(0))
    with pytest.raises(SettingsError, match="convolution"):
        recorded(values, CONVOLUTIONS[name], torch.randn(2, 2, 6, 6), torch.tensor([0, 1]))


@pytest.mark.parametrize("statistics", [None, torch.zeros(2)])
def test_batch_norm_by_the_statistics_of_the_batch_is_refused(statistics: torch.Tensor | None) -> None:
    """They would make each patient's gradient depend on who else is in the batch."""
    values = values_of({"w": (2,)}, torch.Generator().manual_seed(0))

    def normalised(v: dict[str, torch.Tensor], x: Items) -> torch.Tensor:
        spread = None if statistics is None else torch.ones(2)
        return F.batch_norm(x, statistics, spread, v["w"], training=True)

    with pytest.raises(SettingsError, match="mixes patients"):
        recorded(values, normalised, torch.randn(2, 2, 6, 6), torch.tensor([0, 1]))


def test_instance_norm_is_group_norm_of_single_channels() -> None:
    """Of which the gradients by patient are tested above."""
    values, items = values_of({"w": (2,), "b": (2,)}, torch.Generator().manual_seed(0)), torch.randn(4, 2, 6, 6)
    owners = torch.tensor([0, 0, 1, 1])
    instance, _ = recorded(values, lambda v, x: F.instance_norm(x, weight=v["w"], bias=v["b"]), items, owners)
    group, _ = recorded(values, lambda v, x: F.group_norm(x, 2, v["w"], v["b"]), items, owners)
    for value in values.values():
        torch.testing.assert_close(each_of(instance, value, 2), each_of(group, value, 2))


def test_instance_norm_by_tracked_statistics_is_refused() -> None:
    """They are of items that came before, of whatever patients."""
    values = values_of({"w": (2,)}, torch.Generator().manual_seed(0))
    tracked = torch.zeros(2), torch.ones(2)
    with pytest.raises(SettingsError, match="do not track"):
        recorded(
            values,
            lambda v, x: F.instance_norm(x, *tracked, v["w"], use_input_stats=False),
            torch.randn(2, 2, 6, 6),
            torch.tensor([0, 1]),
        )


@pytest.mark.parametrize("owners", [None, torch.tensor([0, 1])])
def test_items_whose_patients_nobody_names_are_refused(owners: torch.Tensor | None) -> None:
    """Neither guessed where `owned` is missing, nor where it names another number of items."""
    values = values_of({"w": (6, 6)}, torch.Generator().manual_seed(0))
    with pytest.raises(SettingsError, match="owned"):
        recorded(values, lambda v, x: F.linear(x, v["w"]), torch.randn(4, 6), owners)


def test_a_value_that_the_loss_leaves_out_is_refused() -> None:
    """Its noise would be charged, and its bound never checked; no patient was added before."""
    values = values_of({"w": (6, 6), "unused": (3,)}, torch.Generator().manual_seed(0))
    step = PrivateStep(values.values(), 1.0)
    parts, sound = recorded(values, lambda v, x: F.linear(x, v["w"]), torch.randn(4, 6), torch.tensor([0, 0, 1, 1]))
    with pytest.raises(SettingsError, match="took no part"):
        step.add(parts, sound)
    assert not any(bool(total.any()) for total in step._sums.values())
    with pytest.raises(SettingsError, match="took part"):
        recorded(values, lambda v, x: x, torch.randn(4, 6), torch.tensor([0, 0, 1, 1]))


def test_what_a_teacher_computes_without_gradients_is_not_recorded() -> None:
    """Neither its items need owners, nor does it count as a use."""
    values = values_of({"w": (6, 6)}, torch.Generator().manual_seed(0))
    items, owners = torch.randn(4, 6), torch.tensor([0, 0, 1, 1])
    recorder = Recorder(list(values.values()))
    with owned(owners), recorder:
        with torch.no_grad(), owned(None):
            target = F.linear(items, values["w"]).tanh()
        loss = (F.linear(items, values["w"]) - target).square().sum()
    parts, _ = recorder.contributions(loss, 2, {})
    for patient in range(2):
        mine = owners == patient
        alone = (F.linear(items[mine], values["w"]) - target[mine]).square().sum()
        (gradient,) = torch.autograd.grad(alone, [values["w"]])
        torch.testing.assert_close(each_of(parts, values["w"], 2)[patient].float(), gradient, rtol=1e-4, atol=1e-5)


def test_layers_of_frozen_values_run_as_they_are() -> None:
    """The recorder changes no number that the model computes, and needs owners for trained layers only."""
    values, frozen = values_of({"w": (6, 6)}, torch.Generator().manual_seed(0)), torch.randn(6, 6)
    items = torch.randn(4, 6)
    recorder = Recorder(list(values.values()))
    with recorder:
        hidden = F.linear(items, frozen)
        with owned(torch.tensor([0, 0, 1, 1])):
            result = F.linear(hidden, values["w"])
    assert torch.equal(result, F.linear(F.linear(items, frozen), values["w"]))


RELU_FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "function": torch.relu,
    "method": torch.Tensor.relu,
    "functional": F.relu,
    "module": torch.nn.ReLU(),
    "in place": lambda x: x.clone().relu_(),
    "module in place": lambda x: torch.nn.ReLU(inplace=True)(x.clone()),
}


@pytest.mark.parametrize("form", RELU_FORMS)
def test_rounding_switches_no_relu_of_a_private_step_on_or_off(form: str) -> None:
    """A patient more in the pass changes others' numbers by rounding, here 1e-8: their gradients move as little.

    The derivative rises linearly; ReLU itself is exact.
    """
    values, ramp = {"b": torch.zeros(1, requires_grad=True)}, 2.0**-7
    inputs = torch.tensor([[-1.0], [-1e-8], [0.0], [1e-8], [ramp / 2], [ramp], [2.0]])
    recorder = Recorder(list(values.values()))
    with owned(torch.arange(len(inputs))), recorder:
        outputs = RELU_FORMS[form](F.linear(inputs, torch.ones(1, 1), values["b"]))
        parts, _ = recorder.contributions(outputs.sum(), len(inputs), {})
    assert torch.equal(outputs, inputs.clamp(min=0))
    slopes = each_of(parts, values["b"], len(inputs)).flatten().float()
    torch.testing.assert_close(slopes, torch.tensor([0.0, 0.0, 0.0, 1e-8 / ramp, 0.5, 1.0, 1.0]), rtol=1e-6, atol=0)
