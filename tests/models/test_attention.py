"""Attention maps are the shares that the model's own attention gives to patches, with all that is tuned."""

import copy
from dataclasses import replace

import pytest
import torch
from fused_models import EXACT, pictures

from medfedvqa.errors import ConfigError
from medfedvqa.models import TuningConfig
from medfedvqa.models.backbone import Tuning

QUESTIONS = ("is it", "is there a mass", "what")
ROWS = torch.tensor([0, 1, 2, 1])
PICTURES = torch.tensor([0, 0, 1, 2])


def batch_of(backbone, depth: int):
    cache = backbone.cache(dict.fromkeys(backbone.shape.towers, depth), pictures(), QUESTIONS)
    return cache.batch(PICTURES, cache.question_ids([QUESTIONS[row] for row in ROWS]), torch.zeros(4).long())


def shares(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("depth", [1, 2])
def test_clip_s_map_is_its_last_block_s_own_softmax(backbone, depth: int) -> None:
    """By torch's attention, asked for its weights: of the class token, to patches, mean over heads."""
    hidden = backbone.clip.visual._embeds(backbone.normalised(pictures()))
    *below, last = backbone.clip.visual.transformer.resblocks
    for block in below:
        hidden = block(hidden)
    normed = last.ln_1(hidden)
    weights = last.attn(normed, normed, normed, need_weights=True)[1]
    found = backbone.attention(batch_of(backbone, depth), Tuning())
    assert torch.allclose(found, shares(weights[:, 0, 1:])[PICTURES], **EXACT)


@pytest.mark.parametrize("kind", ["prompt", "lora", "adapter", "blocks", "bias", "full"])
@pytest.mark.parametrize("name", ["backbone", "exact"])
def test_weights_sum_to_one_and_what_is_tuned_changes_them(request, name: str, kind: str) -> None:
    """Prompts, low-rank updates, adapters below the last block, and weights."""
    trunk = request.getfixturevalue(name)
    config = TuningConfig(kind, blocks=None if kind == "full" else 2, rank=2, reduction=4)
    draw = torch.Generator().manual_seed(7)
    values = config.initial(trunk.shape, trunk, draw)
    values = {n: v.double() + 0.1 * torch.randn(v.shape, generator=draw) for n, v in values.items()}
    depth = next(iter(config.depth(trunk.shape).values()))
    cache = trunk.cache(config.depth(trunk.shape), pictures(), QUESTIONS)
    batch = cache.batch(PICTURES, cache.question_ids([QUESTIONS[row] for row in ROWS]), torch.zeros(4).long())
    found, plain = trunk.attention(batch, config.applied(trunk, values)), trunk.attention(batch, Tuning())
    assert found.shape == (4, 16) and torch.allclose(found.sum(dim=1), torch.ones(4).double())
    assert depth and not torch.allclose(found, plain)


@pytest.fixture
def exact(vilt):
    """The small ViLT in float64."""
    return replace(vilt, network=copy.deepcopy(vilt.network).double())


def test_vilt_s_map_is_what_the_question_s_tokens_look_at(exact) -> None:
    """By transformers' own weights of the last block, each token of a question counting the same.

    transformers shuffles the patches of every picture before its first block, so that they are compared in order of
    their weights.
    """
    tokens = exact.tokenize([QUESTIONS[row] for row in ROWS])
    tokens = tokens[:, : int((tokens >= 0).sum(dim=1).max())]
    model = copy.deepcopy(exact.network)
    model.set_attn_implementation("eager")
    images = (pictures()[PICTURES].expand(-1, 3, -1, -1) - 0.5) / 0.5
    said = model(
        input_ids=tokens.clamp(min=0), attention_mask=(tokens >= 0).long(), pixel_values=images, output_attentions=True
    )
    weights = said.attentions[-1].mean(dim=1)
    asked = weights[:, : tokens.shape[1]] * (tokens >= 0)[..., None]
    found = exact.attention(batch_of(exact, 1), Tuning())
    expected = shares(asked.sum(dim=1)[:, tokens.shape[1] + 1 :])
    assert torch.allclose(found.sort().values, expected.sort().values, **EXACT)


@pytest.mark.parametrize("name", ["backbone", "exact"])
def test_finished_features_have_no_attention_left(request, name: str) -> None:
    trunk = request.getfixturevalue(name)
    with pytest.raises(ConfigError, match="at least one block"):
        trunk.attention(batch_of(trunk, 0), Tuning())


def test_a_tower_that_takes_a_mean_of_its_patches_is_refused(backbone, make_clip) -> None:
    mean = replace(backbone, clip=make_clip(vision={"pool_type": "avg"}))
    with pytest.raises(ConfigError, match="pools pictures by a mean"):
        mean.attention(batch_of(mean, 1), Tuning())
