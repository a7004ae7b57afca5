"""Models of all families: without tuning they are their library's, and every kind of tuning trains them by patient."""

from functools import cache
from typing import Any

import pytest
import torch
from tiny_models import tiny, tiny_backbone, token_ids

from medfedvqa.backbone_names import architectures, configuration, refusal
from medfedvqa.errors import ConfigError
from medfedvqa.models import ClipBackbone, TuningConfig
from medfedvqa.models.families import image_tower, text_tower
from medfedvqa.models.layouts import Packed
from privacy import Recorder, SettingsError

FAMILIES = (
    "ViT-B-16-SigLIP", "EVA02-B-16", "PE-Core-B-16", "convnext_base", "RN50", "coca_ViT-B-32",
    "roberta-ViT-B-32", "clip", "siglip", "medclip3",
)  # fmt: skip
FURTHER = (
    "EVA02-E-14",
    "MobileCLIP2-S0",
    "MobileCLIP-B",
    "ViTamin-S",
    "coca_roberta-ViT-B-32",
    "vit_medium_patch16_gap_256",
)
EACH = [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)]
CONVOLUTIONS = ("convnext_base", "RN50", "MobileCLIP2-S0")

backbone_of = cache(tiny_backbone)


def differences(name: str) -> tuple[float, float]:
    """How far features of pictures and texts are from the library's own, after its projection and of length 1."""
    model, shape = tiny(name)
    pixels = torch.randn(2, 3, shape.image_size, shape.image_size, generator=torch.Generator().manual_seed(1))
    ids = token_ids(model, shape.context)
    images, texts = image_tower(model, 1), text_tower(model, 1)
    layout = Packed(texts.beginnings(ids), torch.arange(len(ids)))
    with torch.no_grad():
        seen, read = images.features(images.trunk(pixels)), texts.features(texts.trunk(ids, layout), layout)
        assert (seen.shape[1], read.shape[1]) == tuple(t.features or t.width for t in shape.towers.values())
        picture, text = library_embeddings(model, pixels, ids)
        return float((embedded(images, seen) - picture).abs().max()), float((embedded(texts, read) - text).abs().max())


def embedded(tower: Any, features: torch.Tensor) -> torch.Tensor:
    """Features in the common space; where a tower has no projection, its library scales them alone."""
    try:
        return tower.embed(features)
    except ConfigError:
        return features / features.norm(dim=1, keepdim=True)


def library_embeddings(model: Any, pixels: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the library's own functions give."""
    if hasattr(model, "encode_image"):
        return model.encode_image(pixels, normalize=True), model.encode_text(ids, normalize=True)
    picture = model.get_image_features(pixel_values=pixels).pooler_output
    text = model.get_text_features(input_ids=ids).pooler_output
    return picture / picture.norm(dim=1, keepdim=True), text / text.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("name", EACH)
def test_without_tuning_a_family_is_its_librarys_own(name: str) -> None:
    """Both towers, to 1e-5 in single precision."""
    assert max(differences(name)) < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_at_least_130_of_open_clips_architectures_are_its_own() -> None:
    """Every architecture is either refused with a reason, or equal to open_clip's forward pass to 1e-5."""
    names = architectures()
    accepted = [name for name in names if refusal(configuration(name)) is None]
    wrong = {name: found for name in accepted if max(found := differences(name)) >= 1e-5}
    assert not wrong and len(accepted) >= 130 and len(names) >= 144


PICTURES, QUESTIONS = torch.tensor([0, 1, 1, 2]), ("0", "1", "2", "1")
OWNERS = torch.tensor([0, 0, 1, 1])


def batch_of(backbone: ClipBackbone, config: TuningConfig, rows: torch.Tensor, owners: torch.Tensor | None) -> Any:
    size = backbone.shape.image_size
    pictures = torch.rand(3, 1, size, size, generator=torch.Generator().manual_seed(2))
    cache_ = backbone.cache(config.depth(backbone.shape), pictures, QUESTIONS)
    questions = cache_.question_ids(QUESTIONS)
    return cache_.batch(PICTURES[rows], questions[rows], torch.zeros(len(rows), dtype=torch.int64), owners)


def loss_of(features: torch.Tensor) -> torch.Tensor:
    """A sum over rows that is linear in no feature."""
    return (features.sin() + 0.1 * features.square()).sum()


def values_of(backbone: ClipBackbone, config: TuningConfig) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(7)
    initial = config.initial(backbone.shape, backbone, draw)
    return {k: (v + 0.05 * torch.randn(v.shape, generator=draw)).requires_grad_() for k, v in initial.items()}


def each_alone(backbone: ClipBackbone, config: TuningConfig, values: dict[str, torch.Tensor], patient: int) -> Any:
    """The gradient of one patient's rows by ordinary back-propagation."""
    batch = batch_of(backbone, config, torch.nonzero(patient == OWNERS).flatten(), None)
    loss = loss_of(backbone.features(batch, config.applied(backbone, values)))
    return torch.autograd.grad(loss, list(values.values()), allow_unused=True)


def recorded(backbone: ClipBackbone, config: TuningConfig, values: Any, expanded: Any, batch: Any) -> Any:
    """What two patients contribute; `expanded`: what stands for prompts, once for each patient."""
    recorder = Recorder([value for value in values.values() if value not in expanded])
    with recorder:
        used = {name: expanded.get(value, value) for name, value in values.items()}
        loss = loss_of(backbone.features(batch, config.applied(backbone, used, None, batch.owners)))
    return recorder.contributions(loss, 2, expanded)


NOT_AS_A_WHOLE = ("RN50", "coca_ViT-B-32", "siglip", "MobileCLIP2-S0")
"""Their pictures are pooled by `F.multi_head_attention_forward`, whose weights have no rule; FastViT gates in place."""

KINDS = ("prompt", "adapter", "lora", "bias", "blocks", "full")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EACH)
@pytest.mark.usefixtures("sharp_relu")
def test_each_patients_gradient_is_that_of_its_rows_alone(name: str, kind: str) -> None:
    """For every kind of tuning of every family, to 1e-4 of the largest number.

    Prompts of convolutions are refused, and so is privacy for whole models with a layer that has no rule.
    """
    backbone = backbone_of(name)
    config = TuningConfig(kind, blocks=1 if kind == "blocks" else None, rank=2, reduction=8)
    if kind == "prompt" and name in CONVOLUTIONS:
        with pytest.raises(ConfigError, match="convolutions"):
            config.shapes(backbone.shape)
        return
    values = values_of(backbone, config)
    assert values
    batch = batch_of(backbone, config, torch.arange(4), OWNERS)
    expanded = {
        v: v.detach().expand(2, *v.shape).clone().requires_grad_() for n, v in values.items() if kind == "prompt"
    }
    if kind == "full" and name in NOT_AS_A_WHOLE:
        with pytest.raises(SettingsError, match="gradient per patient|owned|in place"):
            recorded(backbone, config, values, expanded, batch)
        return
    parts, sound = recorded(backbone, config, values, expanded, batch)
    assert bool(sound.all())
    for patient in range(2):
        weights = torch.zeros(2, dtype=torch.float64)
        weights[patient] = 1
        for value, gradient in zip(values.values(), each_alone(backbone, config, values, patient), strict=True):
            total = torch.zeros(value.shape, dtype=torch.float64)
            for part in parts:
                if part.value is value:
                    part.add(total, weights)
            expected = torch.zeros_like(value) if gradient is None else gradient
            scale = max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(total.float(), expected, rtol=0, atol=1e-4 * scale)
