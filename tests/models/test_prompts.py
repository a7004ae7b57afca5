"""Prompts: their shapes, how they split, and how local and shared join."""

import pytest
import torch

from medfedvqa.errors import ConfigError
from medfedvqa.models import TuningConfig, shape_of
from medfedvqa.models.prompts import join


def prompt(start: float, items: tuple[int, ...] = ()) -> torch.Tensor:
    """Two blocks, four tokens, width 3, all entries different."""
    return start + torch.arange(24.0).view(2, 4, 3).expand(*items, 2, 4, 3)


def prompts_of(backbone: str, **options: object) -> dict[str, tuple[int, ...]]:
    """Shapes of the prompts that a model trains on this backbone."""
    return TuningConfig("prompt", **options).shapes(shape_of(backbone))


def test_a_site_with_vit_b_32_shares_61440_floats():
    """The paper's figure: 12 blocks, 4 tokens, both towers."""
    shapes = prompts_of("ViT-B-32/openai", blocks=12, length=4)
    assert shapes == {"prompt.image": (12, 4, 768), "prompt.text": (12, 4, 512)}
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 61_440


def test_all_blocks_of_each_tower_are_the_default():
    """The bundled backbone's towers have 4 each, the first edition's 6 and 4."""
    for name, blocks in (("medclip2-slake", (4, 4)), ("medclip@mine", (6, 4))):
        shapes = prompts_of(name)
        assert (shapes["prompt.image"][0], shapes["prompt.text"][0]) == blocks


@pytest.mark.parametrize("without", [("text",), ("image",), ("image", "text")])
def test_an_ablated_prompt_is_not_shared(without):
    """Neither is it trained: no name stands for it."""
    assert prompts_of("medclip2-slake", without=without).keys() == {
        f"prompt.{tower}" for tower in ("image", "text") if tower not in without
    }


@pytest.mark.parametrize("options", [{"length": 3}, {"length": 0}, {"blocks": 0}, {"blocks": 5}])
def test_impossible_prompts_are_refused(options):
    """Odd or no tokens, no blocks, or more than a tower has."""
    with pytest.raises(ConfigError):
        prompts_of("medclip2-slake", **options)


def test_new_prompts_have_the_spread_of_their_option_and_come_from_the_generator_alone():
    """0.02 by default, or what `std` says."""
    for std, options in ((0.02, {}), (0.3, {"std": 0.3})):
        tuning, shape = TuningConfig("prompt", **options), shape_of("ViT-B-32/openai")
        first, second = (tuning.initial(shape, None, torch.Generator().manual_seed(5)) for _ in range(2))
        for name, value in first.items():
            assert torch.equal(value, second[name])
            assert value.std().item() == pytest.approx(std, rel=0.02)


def test_each_prompt_is_split_before_the_halves_join():
    """Joining first would make all keys local and all values shared."""
    local, shared = prompt(0), prompt(100)
    joined = join(local, shared, "concatenate", "before")
    assert torch.equal(joined.keys, torch.cat([local[:, :2], shared[:, :2]], dim=1))
    assert torch.equal(joined.values, torch.cat([local[:, 2:], shared[:, 2:]], dim=1))


def test_add_sums_the_halves():
    joined = join(prompt(0), prompt(100), "add", "before")
    assert torch.equal(joined.keys, (prompt(0) + prompt(100))[:, :2])
    assert torch.equal(joined.values, (prompt(0) + prompt(100))[:, 2:])


@pytest.mark.parametrize("joining", ["concatenate", "add"])
def test_before_the_first_exchange_only_the_local_prompt_joins(joining):
    joined = join(prompt(0), None, joining, "before")
    assert torch.equal(joined.keys, prompt(0)[:, :2])
    assert torch.equal(joined.values, prompt(0)[:, 2:])


@pytest.mark.parametrize("joining", ["concatenate", "add"])
def test_prompts_of_several_items_join_as_each_would_alone(joining):
    local = prompt(0) * torch.arange(1.0, 6.0).view(5, 1, 1, 1)
    joined = join(local, prompt(100), joining, "before")
    for item in range(5):
        alone = join(local[item], prompt(100), joining, "before")
        assert torch.equal(joined.keys[item], alone.keys)
        assert torch.equal(joined.values[item], alone.values)


@pytest.mark.parametrize("joining", ["concatenate", "add"])
def test_no_gradient_reaches_the_shared_prompt(joining):
    local, shared = prompt(0).requires_grad_(), prompt(100).requires_grad_()
    joined = join(local, shared, joining, "before")
    (joined.keys.sum() + joined.values.sum()).backward()
    assert shared.grad is None
    assert torch.equal(local.grad, torch.ones(2, 4, 3))


def test_a_shared_prompt_of_another_shape_is_refused():
    with pytest.raises(ConfigError, match="shared prompt"):
        join(prompt(0), prompt(0)[:1], "concatenate", "before")
