"""Prompts in a library's own blocks are tokens that stand before its keys and values, as the paper's equations say."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat
from tiny_models import tiny, token_ids
from torch import nn

from medfedvqa.errors import BackboneError
from medfedvqa.models.backbone import TowerTuning, Update
from medfedvqa.models.block_readers import TunedBlock, attention_of
from medfedvqa.models.families import image_tower, text_tower
from medfedvqa.models.layouts import Packed
from medfedvqa.models.prompts import JoinedPrompts, join

FAMILIES = ("ViT-B-16-SigLIP", "EVA02-B-16", "PE-Core-B-16", "roberta-ViT-B-32", "clip", "siglip")
LAYERS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"))


def weights_of(attention: Any) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Weight and bias of queries, keys and values, read from the module by hand."""
    if getattr(attention, "qkv", None) is None:
        names = next(names for names in LAYERS if hasattr(attention, names[0]))
        return [(getattr(attention, name).weight, getattr(attention, name).bias) for name in names]
    bias = attention.qkv.bias
    if getattr(attention, "q_bias", None) is not None:
        bias = torch.cat([attention.q_bias, torch.zeros_like(attention.q_bias), attention.v_bias])
    return list(zip(attention.qkv.weight.chunk(3), bias.chunk(3), strict=True))


def turned(attention: Any, heads: torch.Tensor, rope: torch.Tensor | None, prompts: int) -> torch.Tensor:
    """Rotary positions on patches; none on prompts and on tokens that stand for no patch."""
    if rope is None:
        return heads
    first = attention.num_prefix_tokens + prompts
    patches = apply_rot_embed_cat(heads[:, :, first:], rope, half=attention.rotate_half)
    return torch.cat([heads[:, :, :first], patches], dim=2)


def plain(attention: Any, keys: torch.Tensor, values: torch.Tensor, placing: str) -> Any:
    """A forward pass with prompts of one block, [tokens, width] each: one long sequence and an explicit softmax."""
    count = getattr(attention, "num_heads", None) or attention.num_attention_heads

    def forward(hidden_states: torch.Tensor, attention_mask: Any = None, rope: Any = None, **_: Any) -> Any:
        n, length, _ = hidden_states.shape
        sequences, tokens = [hidden_states] * 3, [part.expand(n, -1, -1) for part in (keys, values)]
        if placing == "before":
            sequences[1:] = [torch.cat([part, hidden_states], dim=1) for part in tokens]
        q, k, v = (F.linear(s, *w) for s, w in zip(sequences, weights_of(attention), strict=True))
        if placing == "after":
            k, v = torch.cat([tokens[0], k], dim=1), torch.cat([tokens[1], v], dim=1)
        q, k, v = (part.view(n, part.shape[1], count, -1).transpose(1, 2) for part in (q, k, v))
        q, k = turned(attention, q, rope, 0), turned(attention, k, rope, len(keys))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if attention_mask is not None:
            seen = F.pad(attention_mask.expand(n, 1, -1, length), (len(keys), 0), value=True)
            scores = scores.masked_fill(~seen, -math.inf)
        attended = (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
        if hasattr(attention, "proj"):
            return attention.proj(attention.norm(attended))
        return (attention.out_proj(attended) if hasattr(attention, "out_proj") else attended), None

    return forward


def prompt(width: int, seed: int) -> torch.Tensor:
    """Prompts of both blocks, [2, 4, width]."""
    return torch.randn(2, 4, width, generator=torch.Generator().manual_seed(seed))


def by_hand(tower: Any, joined: JoinedPrompts, patch: pytest.MonkeyPatch) -> None:
    """Have a tower's blocks attend to prompts by the plain forward pass."""
    for index, block in enumerate(tower.encoder.blocks.values()):
        attention = attention_of(block).module
        patch.setattr(attention, "forward", plain(attention, joined.keys[index], joined.values[index], joined.placing))


def started(name: str) -> dict[str, tuple[Any, tuple[Any, ...], int]]:
    """The towers of a family that run its library's blocks: each with what its features take, and its width."""
    model, shape = tiny(name)
    size, ids = shape.image_size, token_ids(model, shape.context)
    pixels = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    images, texts = image_tower(model, 2), text_tower(model, 2)
    layout = Packed(texts.beginnings(ids), torch.arange(len(ids)))
    towers = {"image": (images, (images.trunk(pixels),)), "text": (texts, (texts.trunk(ids, layout), layout))}
    return {
        key: (tower, start, shape.towers[key].width)
        for key, (tower, start) in towers.items()
        if hasattr(tower, "encoder")
    }


@pytest.mark.parametrize("placing", ["before", "after"])
@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_join_keys_and_values(name: str, placing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pictures and texts of every family, to 2e-5; and they change what the tower gives."""
    towers = started(name)
    assert towers
    for tower, start, width in towers.values():
        joined = join(prompt(width, 1), prompt(width, 2), "concatenate", placing)
        unprompted, result = tower.features(*start), tower.features(*start, TowerTuning(joined))
        with monkeypatch.context() as patch:
            by_hand(tower, joined, patch)
            expected = tower.features(*start)
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)
        assert float((result - unprompted).abs().max()) > 1e-3


def test_a_block_that_computes_attention_in_another_way_is_an_error_and_not_untuned() -> None:
    """A new version of a library cannot leave out prompts or updates in silence."""
    model, _ = tiny("clip")
    block: Any = model.get_submodule("vision_model.encoder.layers.0")
    attention, hidden = attention_of(block), torch.zeros(1, 3, 32)
    tokens = torch.zeros(1, 2, 32), torch.zeros(1, 2, 32)
    with pytest.raises(BackboneError, match="tested version"), TunedBlock(block, attention, tokens, None):
        block.mlp(hidden)
    update = Update(lambda states: states, lambda states: states)
    with pytest.raises(BackboneError, match="tested version"), TunedBlock(block, attention, None, update):
        block.mlp(hidden)


def test_a_block_of_an_unknown_class_is_refused_by_its_name() -> None:
    """Prompts are only joined where a reader says how."""
    with pytest.raises(BackboneError, match="Bilinear"):
        attention_of(nn.Bilinear(2, 2, 2))
