"""ALBEF as a backbone: timm's ViT and transformers' BERT with cross-attention, from its authors' kind of checkpoint."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fused_models import (
    EXACT,
    PICTURES,
    QUESTIONS,
    ROWS,
    adapted,
    assert_cache_may_end_anywhere,
    assert_rows_alone_are_the_same,
    assert_same_as,
    batch_of,
    pfeiffer,
    pictures,
    prompt_for,
    prompted,
    put_weights,
    refused,
)

from medfedvqa.models import TuningConfig, load_backbone, shape_of
from medfedvqa.models.backbone import Tuning

pytest.importorskip("transformers")

NAME = "albef-tiny@random"
KINDS = ("lora", "prompt", "bias", "adapter", "blocks")
CONFIGS = [
    TuningConfig("classifier"),
    TuningConfig("full"),
    *(TuningConfig(kind, blocks=blocks, rank=3, reduction=4) for kind in KINDS for blocks in (None, 4, 3, 1)),
]
each_kind = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.kind}-{config.blocks}")
BLOCKS = 5
"""Two of the ViT, one for the question alone, two that see both."""


@pytest.fixture(scope="module")
def exact(albef):
    """In float64."""
    return replace(albef, network=copy.deepcopy(albef.network).double())


def prompted_vit(attention, keys, values):
    """timm's attention with tokens before keys and values, by an explicit softmax over apart projections."""

    def forward(hidden, *_, **__):
        rows, positions, width = hidden.shape
        longer = [torch.cat([part.expand(rows, -1, -1), hidden], dim=1) for part in (keys, values)]
        weights, biases = attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3)
        sources = hidden, *longer
        query, key, value = (
            (source @ weight.T + bias).view(rows, -1, attention.num_heads, width // attention.num_heads).transpose(1, 2)
            for source, weight, bias in zip(sources, weights, biases, strict=True)
        )
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        return attention.proj((scores.softmax(-1) @ value).transpose(1, 2).reshape(rows, positions, width))

    return forward


def plain(backbone, values: dict[str, torch.Tensor], *, maps: bool = False) -> torch.Tensor:
    """Features by timm's own `forward_features` and transformers' own `BertLayer`s, the last ones as decoder blocks.

    With `maps` the last block's attention to each position of the picture, by explicit products.
    """
    network = copy.deepcopy(backbone.network)
    vit, bert = list(network.visual_encoder.blocks), list(network.text_encoder.encoder.layer)
    put_weights(network, vit + bert, values)
    for number, block in enumerate(vit + bert):
        name, prompt = f"adapter.joint.{number}", prompt_for(values, number, BLOCKS)
        if number < len(vit):
            if prompt is not None:
                block.attn.forward = prompted_vit(block.attn, *prompt.chunk(2))
            if f"{name}.up.bias" in values:
                block.register_forward_hook(adapted(values, name))
            continue
        block.is_decoder = number > len(vit)
        if prompt is not None:
            block.attention.self.forward = prompted(block.attention.self, *prompt.chunk(2))
        if f"{name}.up.bias" in values:
            block.output.forward = pfeiffer(block.output, values, name)
    mean, std = (torch.tensor(each).double()[:, None, None] for each in (backbone.mean, backbone.std))
    seen = network.visual_encoder.forward_features((pictures()[PICTURES].expand(-1, 3, -1, -1) - mean) / std)
    tokens = backbone.tokenize([QUESTIONS[row] for row in ROWS])
    hidden, mask = network.text_encoder.embeddings(input_ids=tokens.clamp(min=0)), (tokens >= 0)[:, None, None]
    for block in bert:
        before, hidden = hidden, block(hidden, mask, seen)
    if not maps:
        return hidden[:, 0]
    cross, (asking, _) = bert[-1].crossattention.self, bert[-1].attention(before, mask)
    size = asking.shape[-1] // cross.num_attention_heads
    query, key = (part.unflatten(-1, (-1, size)).transpose(1, 2) for part in (cross.query(asking), cross.key(seen)))
    weights = (query @ key.transpose(-1, -2) / size**0.5).softmax(-1).mean(dim=1)
    return (weights * (tokens >= 0)[..., None]).sum(dim=1)[:, 1:]


@each_kind
def test_features_and_gradients_are_those_of_the_libraries_own_blocks(exact, config):
    """To 1e-10 in float64; every declared value has a gradient, and no frozen weight has one."""
    assert_same_as(plain, exact, config)


@each_kind
def test_the_cache_may_end_anywhere_below_what_is_tuned(exact, config):
    """Within each third, between them, and below the embeddings."""
    assert_cache_may_end_anywhere(exact, config)


def test_a_row_is_the_same_whatever_stands_beside_it(exact):
    """A longer question in the batch pads the others, and padding is not looked at."""
    assert_rows_alone_are_the_same(exact, BLOCKS)


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_the_map_is_the_last_block_s_attention_to_the_picture(exact, depth):
    """A mean over heads and the question's tokens, without the picture's own first position; a row sums to 1."""
    found, expected = exact.attention(batch_of(exact, depth), Tuning()), plain(exact, {}, maps=True)
    assert found.shape == (7, 16)
    assert torch.allclose(found, expected / expected.sum(dim=1, keepdim=True), **EXACT)


def test_the_shape_of_the_published_albef_is_known_without_its_files():
    """12 blocks of the ViT, 6 of text, 6 of both: 24 adapters. FedDAT's 30 count a decoder of 6, which is not built."""
    shape = shape_of("albef-b16@anywhere")
    assert [(tower.layers, tower.width, tower.heads) for tower in shape.towers.values()] == [(24, 768, 12)]
    assert (shape.width, shape.image_size, shape.context) == (768, 384, 40)
    sizes = TuningConfig("adapter").shapes(shape)
    assert sum(torch.Size(size).numel() for size in sizes.values()) == 1_789_056 == 24 * 74_544
    assert 1_789_056 + 6 * 74_544 == 2_236_320
    whole = sum(torch.Size(size).numel() for size in shape.parameters.values())
    # ViT-B/16 at 384 pixels, BERT without its pooler, and six times cross-attention with its normalisation.
    assert whole == 86_090_496 + 108_891_648 + 6 * (4 * 768 * 769 + 2 * 768)


@pytest.fixture
def folder(albef_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(albef_folder, tmp_path / "hospital-folder"))


def saved(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "ALBEF.pth", weights_only=True)["model"]


def test_checkpoints_of_pre_training_and_of_vqa_load_alike(folder, albef):
    """The second names BERT without `bert.`, has a decoder, and is not within `model`."""
    weights = {key.replace("text_encoder.bert.", "text_encoder."): value for key, value in saved(folder).items()}
    torch.save({**weights, "text_decoder.bert.encoder.layer.0.output.dense.bias": torch.ones(16)}, folder / "ALBEF.pth")
    backbone = load_backbone(NAME, {NAME: folder})
    assert backbone.digest == albef.digest and backbone.seen is None
    assert not backbone.network.training and backbone.shape == shape_of(NAME)


def test_positions_of_another_size_of_pictures_are_resized(folder, albef):
    """As the authors do before VQA: what is linear along a side stays so in the middle, and the first one stays."""
    weights = saved(folder)
    places = torch.linspace(0, 1, 8)[:, None].expand(8, 8).reshape(1, 64, 1).expand(-1, -1, 16)
    weights["visual_encoder.pos_embed"] = torch.cat([torch.full((1, 1, 16), 7.0), places], dim=1)
    torch.save({"model": weights}, folder / "ALBEF.pth")
    found = load_backbone(NAME, {NAME: folder}).parameter("visual_encoder.pos_embed")[0, :, 0]
    assert found.shape == (17,) and found[0] == 7
    rows = found[1:].view(4, 4)
    assert torch.allclose(rows[1:3, 0], torch.tensor([2.5, 4.5]) / 7, atol=1e-6)
    assert torch.allclose(rows, rows[:, :1].expand(4, 4))


@pytest.mark.parametrize("file", ["ALBEF.pth", "vocab.txt"])
def test_missing_files_are_named(folder, file):
    (folder / file).unlink()
    assert "one .pth file, and vocab.txt" in refused(folder, NAME)


def test_two_checkpoints_are_refused(folder):
    shutil.copy(folder / "ALBEF.pth", folder / "vqa.pth")
    assert "one .pth file" in refused(folder, NAME)


def test_files_of_something_else_are_refused(folder):
    """Weights of another shape, of another model, code in a pickle, and no weights at all."""
    weights = saved(folder)
    for wrong, message in (
        ({key: value for key, value in weights.items() if "layer.2." not in key}, "not of architecture albef-tiny"),
        ({"visual.conv1.weight": torch.ones(3)}, "not of architecture albef-tiny"),
        ({"model": weights, "hook": Path}, "as a checkpoint of albef-tiny"),
    ):
        torch.save(wrong, folder / "ALBEF.pth")
        assert message in refused(folder, NAME)
    (folder / "ALBEF.pth").write_text("no weights")
    assert "as a checkpoint of albef-tiny" in refused(folder, NAME)
