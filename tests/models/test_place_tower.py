"""The tower that keeps place: open_clip's blocks between another stem and another pooling."""

import copy

import pytest
import torch
from fused_models import EXACT, values_of

from medfedvqa.models import TuningConfig
from medfedvqa.models.backbone import Tuning
from medfedvqa.models.place_tower import PLACES
from medfedvqa.models.towers import ImageTower

QUESTIONS = ("is it", "is there a mass", "what")
ROWS = torch.tensor([0, 1, 2, 1])
PICTURES = torch.tensor([0, 0, 1, 2])
KINDS = ("prompt", "lora", "adapter", "bias", "blocks", "full")


def pictures(backbone) -> torch.Tensor:
    size = backbone.shape.image_size
    return torch.rand(3, 1, size, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def batch_of(backbone, depth):
    cache = backbone.cache(depth, pictures(backbone), QUESTIONS)
    return cache.batch(PICTURES, cache.question_ids([QUESTIONS[row] for row in ROWS]), torch.zeros(4).long())


@pytest.mark.parametrize("tuned", [1, 2])
def test_without_tuning_the_features_are_what_the_model_itself_gives(places_backbone, tuned: int) -> None:
    """Wherever the tower is cut, it ends in the output of its own forward pass before the projection."""
    tower = ImageTower(places_backbone.clip.visual, tuned)
    pixels = places_backbone.normalised(pictures(places_backbone))
    whole = copy.deepcopy(places_backbone.clip)
    whole.visual.proj = None
    assert torch.allclose(tower.features(tower.trunk(pixels)), whole.encode_image(pixels), **EXACT)


def test_each_place_has_its_own_part_of_the_features(places_backbone) -> None:
    """A part is its place's cells, averaged and narrowed, and no other place's: computed by hand, place by place."""
    visual = places_backbone.clip.visual
    rows, _ = visual.grid_size
    hidden = torch.randn(2, 1 + rows * rows, 32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    pooled = visual._pool(hidden)[0].unflatten(1, (PLACES, PLACES, -1))
    cells = visual.ln_post(hidden)[:, 1:].unflatten(1, (rows, rows))
    step = rows // PLACES
    for row in range(PLACES):
        for column in range(PLACES):
            part = cells[:, row * step : (row + 1) * step, column * step : (column + 1) * step].mean(dim=(1, 2))
            assert torch.allclose(pooled[:, row, column], visual.narrow(part), **EXACT)


def test_the_grid_is_what_is_pooled(places_backbone) -> None:
    """`places` gives the normalised cells line by line, of which the features are the narrowed means."""
    visual = places_backbone.clip.visual
    grid = places_backbone.places(pictures(places_backbone))
    rows, _ = visual.grid_size
    assert grid.shape == (3, rows * rows, 32)
    means = grid.unflatten(1, (PLACES, rows // PLACES, PLACES, rows // PLACES)).mean(dim=(2, 4)).flatten(1, 2)
    whole = copy.deepcopy(visual)
    whole.proj = None
    expected = whole(places_backbone.normalised(pictures(places_backbone)))
    assert torch.allclose(visual.narrow(means).flatten(1), expected, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tuning_changes_the_features_and_has_a_gradient(places_backbone, kind: str) -> None:
    """Of each tuned tensor, in stem and pooling too where the whole backbone is tuned."""
    config = TuningConfig(kind, blocks=None if kind == "full" else 2, rank=2, reduction=4)
    values = {name: v.requires_grad_() for name, v in values_of(config, places_backbone).items()}
    batch = batch_of(places_backbone, config.depth(places_backbone.shape))
    features = places_backbone.features(batch, config.applied(places_backbone, values))
    plain = places_backbone.features(batch, Tuning())
    assert features.shape == (4, 56) and not torch.allclose(features[:, :32], plain[:, :32])
    found = torch.autograd.grad(features.square().sum(), list(values.values()))
    assert all(bool(gradient.any()) for gradient in found)
    assert kind != "full" or {"weight.visual.conv1.0.weight", "weight.visual.narrow.weight"} <= values.keys()


def test_prompts_are_those_of_the_paper(places_backbone, reference) -> None:
    """Features with own and shared prompts equal the equations, written out plainly."""
    config = TuningConfig("prompt", blocks=2)
    own, other = values_of(config, places_backbone), values_of(config, places_backbone)
    other = {name: value.flip(0) for name, value in other.items()}
    batch = batch_of(places_backbone, config.depth(places_backbone.shape))
    found = places_backbone.features(batch, config.applied(places_backbone, own, other))[:, :32]
    pixels = places_backbone.normalised(pictures(places_backbone))
    expected = reference().image(places_backbone.clip, pixels, own["prompt.image"], other["prompt.image"])
    assert torch.allclose(found, expected[PICTURES], **EXACT)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_map_is_the_mean_of_what_all_cells_look_at(places_backbone, depth: int) -> None:
    """By torch's attention, asked for its weights, of every cell but the class token; a row sums to 1."""
    visual = places_backbone.clip.visual
    hidden = visual._embeds(places_backbone.normalised(pictures(places_backbone)))
    *below, last = visual.transformer.resblocks
    for block in below:
        hidden = block(hidden)
    normed = last.ln_1(hidden)
    weights = last.attn(normed, normed, normed, need_weights=True)[1][:, 1:, 1:].mean(dim=1)
    found = places_backbone.attention(batch_of(places_backbone, {"image": depth, "text": depth}), Tuning())
    assert torch.allclose(found, (weights / weights.sum(dim=1, keepdim=True))[PICTURES], **EXACT)


def test_a_picture_s_features_do_not_depend_on_the_others(places_backbone) -> None:
    """Normalisation stays within a picture: alone it has the features that it has beside others."""
    tower = ImageTower(places_backbone.clip.visual, 1)
    pixels = places_backbone.normalised(pictures(places_backbone))
    together, alone = tower.features(tower.trunk(pixels)), tower.features(tower.trunk(pixels[1:2]))
    assert torch.allclose(together[1:2], alone, **EXACT)
