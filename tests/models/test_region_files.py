"""Regions from a site's own files: what a trunk reads, whole jobs on them, and files that are refused."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_clip import TINY

from audits import read, verify
from medfedvqa.backbone_names import parse
from medfedvqa.core import Site, create
from medfedvqa.data import Split, load_site
from medfedvqa.errors import BackboneError, ConfigError, DataError
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.models import Stacked, load_backbone, seen_by, shape_of
from medfedvqa.papers.networks.trunks import TrunkConfig
from medfedvqa.research.benchmark.grid import Grid, results, run
from medfedvqa.research.benchmark.systems import BUDGET, systems_named

Sites = Callable[..., dict[str, SiteConfig]]
NAME = f"{TINY}+regions-4x5@rois"
SECRET = "SECRET"
SPLIT = {
    **{"trunk": "butd", "trunk_width": 16, "tuning": "full", "rounds": 2, "steps": 2, "batch_rows": 4},
    **{"width": 16, "space": 8, "aggregate": "none"},
}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Three pictures in VQA-RAD's layout, each with two questions to train on and one to test."""
    root = tmp_path / f"{SECRET}-folder"
    (root / "VQA_RAD Image Folder").mkdir(parents=True)
    rows = []
    for picture in range(3):
        name = f"{SECRET}-{picture}.png"
        Image.fromarray(np.full((40, 40), 60 * picture, np.uint8)).save(root / "VQA_RAD Image Folder" / name)
        rows += [
            {
                **{"image_organ": "CHEST", "phrase_type": phrase, "answer_type": "CLOSED", "image_name": name},
                **{"question": f"{SECRET} {phrase}?", "answer": answer, "image_case_url": f"{SECRET}/{picture}"},
            }
            for phrase, answer in (("freeform", "yes"), ("para", "no"), ("test_freeform", "yes"))
        ]
    (root / "VQA_RAD Dataset Public.json").write_text(json.dumps(rows), encoding="utf-8")
    return root


def digests(root: Path) -> list[str]:
    pictures = sorted((root / "VQA_RAD Image Folder").iterdir())
    return [hashlib.sha256(picture.read_bytes()).hexdigest() for picture in pictures]


def write(folder: Path, digest: str, count: int, **changes: Any) -> Path:
    """A sound region file; `changes` replace arrays, and take away those that are None."""
    folder.mkdir(exist_ok=True)
    features = np.random.default_rng(count).normal(size=(count, 5)).astype(np.float16)
    boxes = np.arange(count)[:, None] + np.array([0.0, 0.0, 2.0, 3.0])
    arrays = {"picture": np.array(digest), "features": features, "boxes": boxes, **changes}
    path = folder / f"{digest}.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.fixture
def regions(published: Path, tmp_path: Path) -> Path:
    """A region file for each picture, with one, two and three regions."""
    for count, digest in enumerate(digests(published), 1):
        write(tmp_path / "regions", digest, count)
    return tmp_path / "regions"


@pytest.fixture
def site(published: Path, regions: Path, tiny_backbone: Path) -> Site:
    backbone = load_backbone(NAME, {NAME: regions, TINY: tiny_backbone})
    return Site("one", load_site("vqa-rad", published, "chest", Split()), backbone, "cpu", 0)


def cached_regions(site: Site, trunk: str = "butd") -> Any:
    """The regions of a batch of all three pictures, in their order."""
    method = create("unicon", {**SPLIT, "trunk": trunk})
    batch = method.batch(site, site.data.test, torch.arange(len(site.data.test)))
    return batch.regions


def test_a_trunk_reads_the_files_of_its_pictures(site: Site, published: Path) -> None:
    """As written but float32, padded to the name's number of regions, and each picture by its own file."""
    assert site.backbone.shape.regions == shape_of(NAME).regions == (4, 5)
    read_regions = cached_regions(site)
    picture_digests = [site.data.pictures.file(picture)[1] for picture in site.data.test.pictures.tolist()]
    order = [1 + digests(published).index(digest) for digest in picture_digests]
    for row, count in enumerate(order):
        expected = np.random.default_rng(count).normal(size=(count, 5)).astype(np.float16)
        assert torch.equal(read_regions.values[row, :count], torch.from_numpy(expected).float())
        assert not read_regions.values[row, count:].any()
        assert read_regions.present[row].tolist() == [place < count for place in range(4)]
        assert read_regions.boxes[row, :count, 2].tolist() == [place + 2.0 for place in range(count)]
    assert read_regions.values.shape == (3, 4, 5)


def test_the_digest_tells_the_form_of_the_files_and_not_whose_they_are(
    site: Site, regions: Path, tiny_backbone: Path
) -> None:
    """It is in logs that others read: with the files of other patients it is the same, with another width another."""
    for path in regions.iterdir():
        path.unlink()
    empty = load_backbone(NAME, {NAME: regions, TINY: tiny_backbone})
    wider = f"{TINY}+regions-4x6@rois"
    other = load_backbone(wider, {wider: regions, TINY: tiny_backbone})
    assert empty.digest == site.backbone.digest and len({empty.digest, other.digest, other.below.digest}) == 3


def test_a_federation_trains_on_region_files_and_its_log_verifies(
    sites: Sites, published: Path, regions: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    """Two rounds of UniCon at a site. What leaves is as wide as without region files, and names no picture."""
    (config,) = sites("chest", methods=["unicon"], kinds=["parameters", "statistic", "public", "activations"]).values()
    data = config.data.model_copy(update={"reader": "vqa-rad", "root": published})
    config = config.model_copy(update={"data": data, "backbones": {**config.backbones, NAME: regions}})
    job = {"method": "unicon", "options": SPLIT, "data": "vqa-rad", "backbone": NAME}
    spec = JobSpec.from_dict(job)
    results = serve_job(spec, ("chest",), LocalEngine({"chest": config}, spec, "test").call, tmp_path / "out", "local")
    assert results["status"] == "finished" and results["sites"]["chest"]["n"] == 3
    assert verify(config.audit).ok and read(config.audit)
    left = (config.audit / "log.jsonl").read_text() + json.dumps(results)
    assert not any(word in left for word in (SECRET, str(regions), *digests(published)))


@pytest.mark.slow
def test_a_benchmark_takes_the_folder(published: Path, regions: Path, tmp_path: Path) -> None:
    """In a process of its own, where a run loads backbone and files anew."""
    name = "medclip2-slake+regions-4x5@rois"
    few = {"rounds": 1, "steps": 2, "batch_rows": 4, "trunk_width": 16, "width": 16, "space": 8}
    systems, files = systems_named(["centralised contrastive butd"]), {name: regions}
    grid = Grid("vqa-rad", published, tmp_path / "out", systems, 1, BUDGET | few, ("chest",), name, files=files)
    assert len(list(run(grid, 1))) == 1
    (result,) = [each for each in results(grid) if each.method == "unicon"]
    assert result.backbone == name and result.parameters > 0 and len(result.sites["chest"].right) == 3
    with pytest.raises(BackboneError, match="name its folder of region files"):
        list(run(replace(grid, files={}, out=tmp_path / "without"), 1))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another picture": ({"picture": np.array("0" * 64)}, "is of another picture"),
    "no picture": ({"picture": None}, "cannot be read"),
    "a number for the picture": ({"picture": np.array([1, 2])}, "is of another picture"),
    "another width": ({"features": np.zeros((2, 6), np.float32)}, "are not 1 to 4 regions of 5 numbers"),
    "too many regions": ({"features": np.zeros((5, 5), np.float32)}, "are not 1 to 4 regions of 5 numbers"),
    "no region": ({"features": np.zeros((0, 5), np.float32)}, "are not 1 to 4 regions of 5 numbers"),
    "one vector": ({"features": np.zeros(5, np.float32)}, "are not 1 to 4 regions of 5 numbers"),
    "far too large": ({"features": np.zeros((5000, 5))}, "cannot be read"),
    "objects": ({"features": np.array([{SECRET: 1}], dtype=object)}, "cannot be read"),
    "texts": ({"features": np.full((2, 5), SECRET)}, "cannot be read"),
    "not finite": ({"features": np.full((2, 5), np.nan)}, "not finite"),
    "beyond float32": ({"features": np.full((2, 5), 1e300)}, "not finite"),
    "fewer boxes": ({"boxes": np.ones((1, 4))}, "are not the left, top, right and bottom"),
    "boxes inside out": ({"boxes": np.array([[0.0, 0, 1, 1], [2, 0, 1, 1]])}, "are not the left, top, right"),
    "boxes in some files": ({"boxes": None}, "in some region files and not in others"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_by_the_row_alone(site: Site, published: Path, regions: Path, case: str) -> None:
    """Nothing of file, folder, picture or content is in the sentence."""
    changes, sentence = BAD[case]
    write(regions, digests(published)[1], 2, **changes)
    with pytest.raises(DataError, match=rf"^row \d+: .*{sentence}") as error:
        cached_regions(site)
    assert not any(word in str(error.value) for word in (SECRET, str(regions), *digests(published)))


@pytest.mark.parametrize(("content", "sentence"), [(None, "no region file"), (b"PK", "cannot be read")])
def test_a_file_that_is_missing_or_cut_is_refused(
    site: Site, published: Path, regions: Path, content: bytes | None, sentence: str
) -> None:
    """One picture without regions stops the job: training on some pictures only would bias it silently."""
    path = regions / f"{digests(published)[2]}.npz"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        cached_regions(site)


def test_a_file_that_was_renamed_to_another_picture_s_is_refused(site: Site, published: Path, regions: Path) -> None:
    first, second, _ = digests(published)
    (regions / f"{first}.npz").write_bytes((regions / f"{second}.npz").read_bytes())
    with pytest.raises(DataError, match="its region file is of another picture"):
        cached_regions(site)


def test_trunks_that_weigh_places_need_boxes_and_others_do_not(site: Site, published: Path, regions: Path) -> None:
    for count, digest in enumerate(digests(published), 1):
        write(regions, digest, count, boxes=None)
    assert cached_regions(site).boxes is None
    method = create("unicon", {**SPLIT, "trunk": "mmnas-small"})
    values = method.setup(site)["values"]
    with pytest.raises(ConfigError, match="write 'boxes' into the region files"):
        method.activations(site, values, 1, 1)


def test_pictures_that_are_not_as_in_their_file_have_no_regions(site: Site, regions: Path, tiny_backbone: Path) -> None:
    """Black ones, drawn ones, tensors and augmented views: regions of the true picture would answer for them."""
    backbone = site.backbone
    blank = Site("one", replace(site.data, pictures=site.data.pictures.blank()), backbone, "cpu", 0)
    drawn = Site("two", load_site("phantom", None, "site-001", Split()), backbone, "cpu", 0)
    for other in (blank, drawn):
        with pytest.raises(DataError, match="not as in a file of this site"):
            cached_regions(other)
    with pytest.raises(ConfigError, match="no region files belong to them"):
        backbone.regions_of(Stacked(torch.zeros(1, 1, 8, 8)))
    views = create("fedavg", {"trunk": "butd", "trunk_width": 16, "tuning": "full", "views": 2, "fusion": "concat"})
    with pytest.raises(ConfigError, match="set 'views' to 1"):
        views.handle(views.exchange(backbone.shape).task("start"), site, views.setup(site), {}, 1)


def test_names_of_region_files() -> None:
    """Number, width and label, alone or with word vectors in either order; twice, or on a folder, is refused."""
    both = "medclip2-slake+regions-36x2048@rois+words-300@glove"
    parsed = parse(both)
    assert (parsed.adds, parsed.words, parsed.regions, parsed.label) == ("words", 300, (36, 2048), "glove")
    swapped = parse("medclip2-slake+words-300@glove+regions-36x2048@rois")
    assert (swapped.adds, swapped.words, swapped.regions) == ("regions", 300, (36, 2048))
    assert swapped.below == "medclip2-slake+words-300@glove"
    shape = shape_of(both)
    assert shape.regions == (36, 2048) and shape.words == 300 and seen_by(both) == seen_by("medclip2-slake")
    assert TrunkConfig("butd").shape(shape).parameters["picture.value.weight"] == (512, 2048)
    # A backbone without a grid serves a trunk that has region files.
    assert TrunkConfig("butd").shape(shape_of("RN50@here+regions-36x2048@rois")).width == 512
    for name in ("medclip2-slake+regions-0x5@a", "medclip2-slake+regions-36@a", "medclip2-slake+regions-36x5@/etc/x"):
        with pytest.raises(BackboneError, match="unknown backbone"):
            parse(name)
    with pytest.raises(BackboneError, match="names region files twice"):
        parse("medclip2-slake+regions-3x5@a+regions-3x5@b")
    with pytest.raises(BackboneError, match="region files cannot be combined with a local folder"):
        parse("local-dir:model@mine+regions-3x5@a")
    with pytest.raises(BackboneError, match="name its folder of region files in site.yml"):
        load_backbone("medclip2-slake+regions-3x5@a")
    with pytest.raises(BackboneError, match="folder of region files is missing"):
        load_backbone("medclip2-slake+regions-3x5@a", {"medclip2-slake+regions-3x5@a": Path("nowhere")})
