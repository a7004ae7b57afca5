"""What is trained does not depend on where pictures lie; colour reaches backbones that were trained on it."""

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from medfedvqa.core import Site, create
from medfedvqa.data import Pictures, Source
from medfedvqa.data.schema import load_coloured_file, load_file
from medfedvqa.models import ClipBackbone, PictureSpace
from medfedvqa.models.picture_space import FileRows
from medfedvqa.training.rows import cached

SMALL = {"rounds": 2, "local_epochs": 1, "batch_rows": 6}
KINDS = {
    "features": ("local", {"hidden": 8, "tuning": "classifier"}),
    "hidden states": ("local", {"hidden": 8, "tuning": "prompt", "blocks": 1}),
    "pixels": ("local", {"hidden": 8, "tuning": "full"}),
    "views": ("local", {"hidden": 8, "tuning": "adapter", "blocks": 1, "views": 3}),
    "network": ("san", {"width": 8, "pixels": 32}),
}


def trained(site: Site, kind: str) -> dict[str, torch.Tensor]:
    """What the site alone trains."""
    name, options = KINDS[kind]
    return create(name, {**SMALL, **options}).trained_alone(replace(site, _derived={}), 2)["values"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_trains_the_same_bits_from_memory_and_from_a_file(
    site: Callable[..., Site], tmp_path: Path, kind: str
) -> None:
    """And the file is used: nothing of the pictures is kept in memory."""
    space = PictureSpace(0, 2**30, tmp_path)
    before, bounded = trained(site(), kind), replace(site(), space=space)
    for name, value in trained(bounded, kind).items():
        assert torch.equal(value, before[name])
    assert space.memory_used == 0


def test_a_batch_is_read_while_the_one_before_it_is_trained_on(
    site: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an epoch, the training thread reads the first batch alone."""
    space = PictureSpace(0, 2**30, tmp_path)
    method = create("local", {**SMALL, "hidden": 8, "tuning": "prompt", "blocks": 1, "batch_rows": 2})
    here = replace(site(), space=space)
    trainer, threads, read = method.trainer(here), list[str](), FileRows._read

    def noted(rows: FileRows, numbers: list[int]) -> torch.Tensor:
        threads.append(threading.current_thread().name)
        return read(rows, numbers)

    monkeypatch.setattr(FileRows, "_read", noted)
    method.trained_alone(here, 1)
    steps = sum(1 for _ in trainer.draws(0))
    ahead = [name for name in threads if name.startswith("rows ahead")]
    assert steps > 2 and len(ahead) == steps - 1


def test_a_grid_of_places_from_a_file_gives_the_same_bits(
    site: Callable[..., Site], places_backbone: ClipBackbone, tmp_path: Path
) -> None:
    backbone = replace(places_backbone, clip=copy.deepcopy(places_backbone.clip).float())
    method = create("local", {**SMALL, "hidden": 8, "tuning": "classifier", "fusion": "attend"})
    spaces = PictureSpace(), PictureSpace(0, 2**30, tmp_path)
    first, second = (method.trained_alone(replace(site(backbone=backbone), space=each), 2) for each in spaces)
    for name, value in first["values"].items():
        assert torch.equal(value, second["values"][name])


def test_colour_changes_the_features_of_coloured_pictures_only(
    site: Callable[..., Site], single: ClipBackbone, tmp_path: Path
) -> None:
    """Grey pictures have the features that they have without colour, to the bit, also beside a coloured one."""
    here = site()
    for number in range(len(here.data.pictures)):
        Image.effect_noise((32, 32), 80).save(tmp_path / f"{number}.png")
    Image.new("RGB", (32, 32), (200, 40, 90)).save(tmp_path / "2.png")
    rows = [source.row for source in here.data.pictures._sources]
    sources = (
        Source(replace(row, image=tmp_path / f"{n}.png"), load_file, load_coloured_file) for n, row in enumerate(rows)
    )
    data = replace(here.data, pictures=Pictures(sources))

    def features(channels: int, kind: str) -> torch.Tensor:
        backbone = replace(single, channels=channels)
        model = create("local", {**SMALL, **KINDS[kind][1]}).model(replace(here, data=data, backbone=backbone))
        cache = cached(Site("here", data, backbone, "cpu", 0), model.depth, model.cache)
        numbers = torch.arange(len(data.pictures))
        batch = cache.batch(numbers, torch.zeros_like(numbers), torch.zeros_like(numbers))
        return batch.rows.pictures.start

    for kind in ("features", "hidden states", "pixels"):
        same = [torch.equal(a, b) for a, b in zip(features(1, kind), features(3, kind), strict=True)]
        assert same == [number != 2 for number in range(len(rows))]
