"""Outputs of the frozen backbone on disk: the same bits, for this account only, bounded."""

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from medfedvqa.core import Site, create
from medfedvqa.errors import ConfigError
from medfedvqa.models import FeatureStore

OPTIONS = {"rounds": 2, "local_epochs": 1, "batch_rows": 6, "hidden": 8, "own": "head"}


def values_of(site: Site, store: FeatureStore | None, **options: object) -> dict[str, torch.Tensor]:
    """What a site alone trains on a backbone with this store."""
    method = create("local", {**OPTIONS, **options})
    there = Site("here", site.data, site.backbone.storing(store), "cpu", 0)
    return method.trained_alone(there, 2)["values"]


@pytest.mark.parametrize(
    ("options", "files"),
    [({"tuning": "classifier"}, 2), ({"tuning": "prompt", "blocks": 1}, 2), ({"tuning": "full"}, 0)],
)
def test_a_run_gives_the_same_bits_without_a_store_with_a_new_one_and_with_a_full_one(
    site: Callable[..., Site], tmp_path: Path, options: dict[str, object], files: int
) -> None:
    """And the second run computes nothing that is stored. Where the embedding is tuned, nothing is kept."""
    here, store = site(), FeatureStore(tmp_path / "cache")
    plain, first, second = values_of(here, None, **options), *(values_of(here, store, **options) for _ in range(2))
    for name, value in plain.items():
        assert torch.equal(value, first[name]) and torch.equal(value, second[name])
    written = list(store.folder.iterdir())
    assert len(written) == files
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in written)


def test_a_grid_of_places_is_stored_apart_and_another_architecture_s_outputs_are_not_taken(
    site: Callable[..., Site], tmp_path: Path
) -> None:
    """The same weights under another name may have another activation."""
    here, store = site(), FeatureStore(tmp_path / "cache")
    backbone, pictures = here.backbone, here.data.pictures.load(here.backbone.shape.image_size)
    plain = backbone.places(pictures)
    for _ in range(2):
        assert torch.equal(backbone.storing(store).places(pictures), plain)
    assert len(list(store.folder.iterdir())) == 1
    replace(backbone, name="other", store=store).places(pictures)
    assert len(list(store.folder.iterdir())) == 2


def test_what_is_stored_is_not_computed_again_and_belongs_to_its_inputs_and_part(tmp_path: Path) -> None:
    """Other inputs, another shape of the same numbers, another dtype or another part are not mixed up."""
    store, made = FeatureStore(tmp_path / "cache"), []
    inputs = torch.arange(6.0)

    def make() -> torch.Tensor:
        made.append(1)
        return torch.tensor([float(len(made)), torch.pi])

    first = store.recall("tower 1", inputs, make)
    assert torch.equal(store.recall("tower 1", inputs.clone(), make), first) and len(made) == 1
    for part, others in (
        ("tower 2", inputs), ("tower 1", inputs + 1), ("tower 1", inputs.view(2, 3)), ("tower 1", inputs.double()),
    ):  # fmt: skip
        assert not torch.equal(store.recall(part, others, make), first)
    assert len(made) == 5


def test_the_folder_is_bounded_and_the_longest_unused_file_goes_first(tmp_path: Path) -> None:
    """Three tensors where two fit: the one that was read last stays. One that is larger than all is not kept."""
    store = FeatureStore(tmp_path / "cache", most_bytes=2 * (400 + 128 + 32))
    made = []

    def recall(part: str) -> None:
        store.recall(part, torch.zeros(1), lambda: made.append(part) or torch.ones(100))

    for age, part in enumerate(("a", "b")):
        recall(part)
        for path in store.folder.iterdir():
            os.utime(path, ns=(age, min(age, path.stat().st_mtime_ns)))
    recall("a")
    recall("c")
    recall("a")
    assert made == ["a", "b", "c"] and len(list(store.folder.iterdir())) == 2
    recall("b")
    assert made[-1] == "b"
    store.recall("large", torch.zeros(1), lambda: torch.ones(1000))
    assert sum(path.stat().st_size for path in store.folder.iterdir()) <= store.most_bytes


def test_a_damaged_file_and_an_open_folder_are_refused(tmp_path: Path) -> None:
    """In one sentence each that names no path; a damaged file gives no features."""
    store = FeatureStore(tmp_path / "cache")
    store.recall("a", torch.zeros(1), lambda: torch.ones(3))
    path = next(store.folder.iterdir())
    for content in (path.read_bytes()[:-1] + b"\0", b""):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="^a file in the folder of the cache is damaged"):
            store.recall("a", torch.zeros(1), lambda: torch.ones(3))
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    with pytest.raises(ConfigError, match="^the folder of the cache is open to other accounts"):
        FeatureStore(shared)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file: name a folder"):
        FeatureStore(tmp_path / "file")
