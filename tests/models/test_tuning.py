"""Every kind of tuning is what it is called: it equals a copy of open_clip's own model that is changed by hand."""

import copy
import math
from itertools import product

import open_clip
import pytest
import torch
from fused_models import EXACT, PICTURES, pictures, put, values_of
from torch.nn.functional import linear

from medfedvqa.errors import ConfigError
from medfedvqa.models import TowerShape, TuningConfig, load_backbone, shape_of
from medfedvqa.models.backbone import BackboneShape, Depth

QUESTIONS = ("is it", "is it so", "why", "is it a lung", "what is this thing", "why", "is it so")
CONFIGS = [
    TuningConfig("classifier"),
    *(TuningConfig(kind, rank=3, reduction=4) for kind in ("lora", "prompt", "bias", "adapter", "blocks", "full")),
    *(TuningConfig(kind, blocks=1, rank=3) for kind in ("lora", "prompt", "bias", "adapter", "blocks")),
]
each_kind = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.kind}-{config.blocks}")


def features(backbone, config: TuningConfig, values: dict[str, torch.Tensor], depth: Depth | None = None):
    cache = backbone.cache(depth or config.depth(backbone.shape), pictures(), QUESTIONS)
    batch = cache.batch(PICTURES, cache.question_ids(QUESTIONS), torch.zeros(7, dtype=torch.int64))
    return backbone.features(batch, config.applied(backbone, values))


def frozen(backbone) -> torch.Tensor:
    return features(backbone, TuningConfig("classifier"), {})


def blocks_of(clip: torch.nn.Module) -> dict[str, torch.nn.ModuleList]:
    return {"image": clip.visual.transformer.resblocks, "text": clip.transformer.resblocks}


def low_rank(clip: torch.nn.Module, values: dict[str, torch.Tensor]) -> None:
    for tower, blocks in blocks_of(clip).items():
        for number, block in enumerate(blocks):
            name, width = f"lora.{tower}.{number}.attn.in_proj_weight", block.attn.embed_dim
            if f"{name}.0.up" not in values:
                continue
            query, key, value = block.attn.in_proj_weight.split(width)
            query = query + values[f"{name}.0.up"] @ values[f"{name}.0.down"]
            value = value + values[f"{name}.{2 * width}.up"] @ values[f"{name}.{2 * width}.down"]
            put(block.attn, "in_proj_weight", torch.cat([query, key, value]))


def bottlenecks(clip: torch.nn.Module, values: dict[str, torch.Tensor]) -> None:
    def adapted(name: str):
        def hook(block, inputs, hidden):
            narrow = linear(hidden, values[f"{name}.down.weight"], values[f"{name}.down.bias"]).relu()
            return hidden + linear(narrow, values[f"{name}.up.weight"], values[f"{name}.up.bias"])

        return hook

    for tower, blocks in blocks_of(clip).items():
        for number, block in enumerate(blocks):
            if f"adapter.{tower}.{number}.up.bias" in values:
                block.register_forward_hook(adapted(f"adapter.{tower}.{number}"))


def plain(backbone, config: TuningConfig, values: dict[str, torch.Tensor], reference) -> torch.Tensor:
    """Features by open_clip's own forward pass, of every row for itself."""
    clip = copy.deepcopy(backbone.clip)
    mean, std = (torch.tensor(each).double().view(3, 1, 1) for each in (backbone.mean, backbone.std))
    images, tokens = (pictures()[PICTURES].expand(-1, 3, -1, -1) - mean) / std, backbone.tokenize(list(QUESTIONS))
    if config.kind == "prompt":
        nothing = {name: value[:, :0] for name, value in values.items()}
        seen = reference().image(clip, images, values["prompt.image"], nothing["prompt.image"])
        return torch.cat([seen, reference().text(clip, tokens, values["prompt.text"], nothing["prompt.text"])], dim=1)
    for name, value in values.items():
        if name.startswith("weight."):
            put(clip, name.removeprefix("weight."), value)
    low_rank(clip, values)
    bottlenecks(clip, values)
    clip.visual.proj = clip.text_projection = None
    return torch.cat([clip.encode_image(images), clip.encode_text(tokens)], dim=1)


@each_kind
def test_features_and_gradients_are_those_of_a_model_that_is_changed_by_hand(backbone, reference, config):
    """To 1e-10 in float64."""
    values = {name: value.requires_grad_() for name, value in values_of(config, backbone).items()}
    found, expected = features(backbone, config, values), plain(backbone, config, values, reference)
    assert torch.allclose(found, expected, **EXACT)
    if values:
        assert (found - frozen(backbone)).abs().max() > 1e-3
        gradients = (torch.autograd.grad(each.sin().sum(), list(values.values())) for each in (found, expected))
        for name, one, other in zip(values, *gradients, strict=True):
            assert torch.allclose(one, other, **EXACT), name


@each_kind
def test_exactly_what_is_declared_is_trained(backbone, config):
    """`shapes` are the names and shapes of the values; nothing of the backbone itself has a gradient."""
    values = {name: value.requires_grad_() for name, value in values_of(config, backbone).items()}
    assert {name: tuple(value.shape) for name, value in values.items()} == config.shapes(backbone.shape)
    if values:
        features(backbone, config, values).sin().sum().backward()
    assert all(value.grad is not None for value in values.values())
    assert all(weight.grad is None and not weight.requires_grad for weight in backbone.clip.parameters())


@each_kind
def test_the_cache_ends_below_what_is_tuned_wherever_that_is(backbone, config):
    """A cache that ends deeper, down to pixels and token ids, gives the same features."""
    values, depth, towers = values_of(config, backbone), config.depth(backbone.shape), backbone.shape.towers
    expected = features(backbone, config, values)
    for image, text in product(*(range(depth[tower], towers[tower].layers + 2) for tower in ("image", "text"))):
        found = features(backbone, config, values, {"image": image, "text": text})
        assert torch.allclose(found, expected, **EXACT), (image, text)


@pytest.mark.parametrize(
    ("kind", "blocks", "depth"),
    [
        ("classifier", None, {"image": 0, "text": 0}),
        *((kind, None, {"image": 3, "text": 2}) for kind in ("lora", "prompt", "bias", "adapter", "blocks")),
        ("adapter", 1, {"image": 1, "text": 1}),
        ("full", None, {"image": 4, "text": 3}),
    ],
)
def test_the_cache_keeps_as_much_as_it_can(backbone, kind, blocks, depth):
    assert TuningConfig(kind, blocks).depth(backbone.shape) == depth


def test_updates_begin_as_none_and_weights_as_they_are(backbone, generator):
    for config in CONFIGS:
        if config.kind not in ("prompt", "adapter"):
            initial = {k: v.double() for k, v in config.initial(backbone.shape, backbone, generator).items()}
            assert torch.allclose(features(backbone, config, initial), frozen(backbone), **EXACT)


def test_adapters_begin_small_and_not_as_none(backbone, generator):
    """FedDAT's code: projections drawn from N(0, 0.02), biases 0."""
    values = TuningConfig("adapter", reduction=2).initial(backbone.shape, backbone, generator)
    drawn = torch.cat([value.flatten() for name, value in values.items() if name.endswith("weight")])
    assert abs(float(drawn.std()) - 0.02) < 1e-3 and abs(float(drawn.mean())) < 1e-3
    assert all(not value.any() for name, value in values.items() if name.endswith("bias"))


def test_an_adapter_whose_way_up_is_zero_is_the_frozen_backbone(backbone):
    values = values_of(TuningConfig("adapter"), backbone)
    values |= {name: torch.zeros_like(value) for name, value in values.items() if ".up." in name}
    assert torch.equal(features(backbone, TuningConfig("adapter"), values), frozen(backbone))


def test_initial_values_follow_from_the_seed_alone(backbone):
    draws = [
        TuningConfig("adapter").initial(backbone.shape, backbone, torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert all(torch.equal(value, draws[1][name]) for name, value in draws[0].items())
    assert any(not torch.equal(value, draws[2][name]) for name, value in draws[0].items())


def floats(config: TuningConfig, shape: BackboneShape, start: str = "") -> int:
    return sum(math.prod(size) for name, size in config.shapes(shape).items() if name.startswith(start))


def test_payloads_of_the_papers():
    """FedDAT: 74,544 floats per block of width 768 with reduction 16, 894,528 for twelve, 1,789,056 for twenty-four."""
    shape = shape_of("ViT-B-32/openai")
    assert floats(TuningConfig("adapter", blocks=1), shape, "adapter.image") == 74_544
    assert floats(TuningConfig("adapter"), shape, "adapter.image") == 894_528
    twins = {name: TowerShape(12, 768, 12) for name in ("one", "other")}
    assert floats(TuningConfig("adapter"), BackboneShape(twins, 0, 384, 40)) == 1_789_056
    assert floats(TuningConfig("prompt"), shape) == 61_440
    assert floats(TuningConfig("lora"), shape, "lora.image") == 12 * 2 * (16 * 768 + 768 * 16)


def test_the_whole_of_the_backbone_is_all_but_what_features_do_without(backbone):
    total = sum(weight.numel() for weight in backbone.clip.parameters())
    aside = sum(backbone.parameter(name).numel() for name in ("logit_scale", "visual.proj", "text_projection"))
    assert floats(TuningConfig("full"), backbone.shape) == total - aside


@pytest.mark.parametrize("text", [{}, {"proj_bias": True}])
@pytest.mark.parametrize("custom", [False, True])
def test_every_weight_that_full_tuning_trains_takes_part_in_features(monkeypatch, tmp_path, text, custom):
    """In all of open_clip's arrangements, so that none is sent in vain."""
    configuration = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "patch_size": 16, "width": 64, "layers": 1},
        "text_cfg": {"context_length": 9, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 1, **text},
    }
    kind = open_clip.model.CustomTextCLIP if custom else open_clip.model.CLIP
    torch.save(kind(**configuration).state_dict(), tmp_path / "tiny.pt")
    known = {**configuration, "custom_text": True} if custom else configuration
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny", known)
    backbone = load_backbone("tiny@here", {"tiny@here": tmp_path / "tiny.pt"})
    config = TuningConfig("full")
    values = config.initial(backbone.shape, backbone, torch.Generator())
    values = {name: value.requires_grad_() for name, value in values.items()}
    cache = backbone.cache(config.depth(backbone.shape), pictures().float(), QUESTIONS)
    batch = cache.batch(PICTURES, cache.question_ids(QUESTIONS), torch.zeros(7, dtype=torch.int64))
    backbone.features(batch, config.applied(backbone, values)).sum().backward()
    assert [name for name, value in values.items() if value.grad is None] == []


@pytest.mark.parametrize("form", ["same", "low_rank"])
def test_prompts_of_fewer_numbers_are_full_prompts_with_those_tokens(backbone, form):
    """The same tokens in all blocks, or products of two factors, in the spread of new full prompts."""
    config, full = TuningConfig("prompt", rank=2, length=8, prompt_form=form), TuningConfig("prompt", length=8)
    values = values_of(config, backbone)
    assert floats(config, backbone.shape) < floats(full, backbone.shape)
    tokens = {name: value for name, value in values.items() if not name.endswith(".basis")}
    if form == "low_rank":
        tokens = {name: value @ values[f"{name}.basis"] for name, value in tokens.items()}
    else:
        tokens = {name: value.repeat(full.shapes(backbone.shape)[name][0], 1, 1) for name, value in tokens.items()}
    assert {name: value.shape for name, value in tokens.items()} == full.shapes(backbone.shape)
    assert torch.allclose(features(backbone, config, values), features(backbone, full, tokens), **EXACT)
    wide = TuningConfig("prompt", rank=64, length=64, prompt_form=form)
    drawn = wide.initial(shape_of("ViT-B-32/openai"), None, torch.Generator().manual_seed(1))
    new = drawn["prompt.image"] @ drawn["prompt.image.basis"] if form == "low_rank" else drawn["prompt.image"]
    assert float(new.std()) == pytest.approx(0.02, rel=0.1)


def test_prompts_of_a_rank_that_saves_nothing_are_refused(backbone):
    with pytest.raises(ConfigError, match="lower 'rank'"):
        TuningConfig("prompt", rank=8, prompt_form="low_rank").shapes(backbone.shape)


@pytest.mark.parametrize("kind", ["lora", "prompt", "bias", "adapter", "blocks"])
def test_more_blocks_than_a_tower_has_are_refused(backbone, kind):
    config = TuningConfig(kind, blocks=3)
    with pytest.raises(ConfigError, match="'text' has 2"):
        config.shapes(backbone.shape)
    with pytest.raises(ConfigError, match="'text' has 2"):
        config.depth(backbone.shape)


@pytest.mark.parametrize("options", [{"blocks": 0}, {"rank": 0}, {"reduction": -1}])
def test_tuning_of_nothing_is_refused(options):
    with pytest.raises(ConfigError, match="positive"):
        TuningConfig("lora", **options)


def test_an_adapter_below_what_the_cache_was_built_for_is_refused(backbone):
    """It would be left out in silence."""
    config = TuningConfig("adapter")
    with pytest.raises(ConfigError, match="below"):
        features(backbone, config, values_of(config, backbone), {"image": 1, "text": 1})
