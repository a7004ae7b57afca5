"""A VQA model as a function of its values: the head is torch's layers, and a teacher is the same model with others."""

import copy
from itertools import product

import pytest
import torch
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models import HeadConfig, TunedModel, TuningConfig
from privacy import SeededChance

EXACT = {"rtol": 0, "atol": 1e-10}
HEAD = HeadConfig(answers=5, hidden=7, dropout=0.3)


@pytest.fixture
def model(backbone) -> TunedModel:
    return TunedModel(backbone, TuningConfig("adapter", reduction=4), HEAD)


def drawn(model: TunedModel, head: int = 2) -> dict[str, torch.Tensor]:
    values = model.initial(torch.Generator().manual_seed(1), torch.Generator().manual_seed(head))
    return {name: value.double() for name, value in values.items()}


def layers(values: dict[str, torch.Tensor]) -> nn.Sequential:
    """The head as torch has it."""
    found = nn.Sequential(nn.Linear(56, 7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, 5)).double()
    names = dict(zip(("0", "3"), ("hidden", "answers"), strict=True))
    found.load_state_dict(
        {
            f"{at}.{part}": values[f"head.{name}.{part}"]
            for (at, name), part in product(names.items(), ("weight", "bias"))
        }
    )
    return found


def batch_of(model: TunedModel):
    pictures = torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cache = model.cache(model.depth, pictures, ["is it", "why"])
    return cache.batch(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 0, 1, 0]), torch.zeros(4, dtype=torch.int64))


def test_logits_and_gradients_of_the_head_are_those_of_torch_s_layers(model):
    values = {name: value.requires_grad_() for name, value in drawn(model).items()}
    head = layers({name: value.detach() for name, value in values.items()}).eval()
    features = model.features(values, batch_of(model))
    found, expected = model.logits(values, batch_of(model)), head(features)
    assert found.shape == (4, 5) and torch.allclose(found, expected, **EXACT)
    own = [value for name, value in values.items() if name.startswith("head.")]
    gradients = torch.autograd.grad(found.sin().sum(), own)
    expected.sin().sum().backward()
    by_name = dict(zip([name for name in values if name.startswith("head.")], gradients, strict=True))
    assert torch.allclose(by_name["head.hidden.weight"], head[0].weight.grad, **EXACT)
    assert torch.allclose(by_name["head.answers.bias"], head[3].bias.grad, **EXACT)


def test_dropout_follows_its_chance_and_keeps_the_mean(model):
    """The same seed drops the same units; without a chance none is dropped."""
    values, features = drawn(model), torch.randn(4000, 56, dtype=torch.float64)
    once, again, other = (model.answer(values, features, None, SeededChance(s)) for s in (1, 1, 2))
    assert torch.equal(once, again) and not torch.equal(once, other)
    assert torch.allclose(once.mean(0), model.answer(values, features, None).mean(0), rtol=0, atol=0.05)


def test_the_head_begins_as_torch_s_layers_do(backbone):
    """Uniform within 1 / sqrt(inputs), and from its own generator alone."""
    model = TunedModel(backbone, TuningConfig("adapter"), HeadConfig(50, 200))
    values, others = drawn(model), drawn(model, head=3)
    for name, inputs in (("hidden", 56), ("answers", 200)):
        weight = values[f"head.{name}.weight"]
        assert 0.95 * inputs**-0.5 < weight.abs().max() <= inputs**-0.5 and abs(weight.mean()) < 0.1 * inputs**-0.5
    assert {name for name in values if not torch.equal(values[name], others[name])} == {
        name for name in values if name.startswith("head.")
    }


def test_a_model_trains_what_it_declares(model):
    shapes = model.tuning.shapes(model.shape) | model.head.shapes(model.shape)
    assert {name: tuple(value.shape) for name, value in drawn(model).items()} == shapes
    assert shapes["head.hidden.weight"] == (7, 32 + 24)


def test_values_are_arguments_so_that_a_teacher_is_the_same_model(model):
    """Other values, other logits; the first ones again, the first logits."""
    one, other, batch = drawn(model), drawn(model, head=3), batch_of(model)
    first = model.logits(one, batch)
    assert not torch.allclose(model.logits(other, batch), first)
    assert torch.equal(model.logits(copy.deepcopy(one), batch), first)


@pytest.mark.parametrize("options", [{"dropout": 1.0}, {"dropout": -0.1}, {"hidden": 0}])
def test_impossible_heads_are_refused(options):
    with pytest.raises(ConfigError, match="dropout must lie"):
        HeadConfig(3, **options)
