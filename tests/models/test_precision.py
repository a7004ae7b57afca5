"""The frozen part of a backbone in bfloat16: what it changes, and where it is not used."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from medfedvqa.errors import BackboneError
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, plan, write_sites
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.models import Backbone, ClipBackbone, FeatureStore

QUESTIONS = ("is there a fracture", "is the heart large")
PRIVATE = {"noise": 1.5, "count_noise": 10.0}


def starts(backbone: Backbone, depth: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """What a batch begins with when the last `depth` blocks of each tower are tuned; None: the embedding as well."""
    size = backbone.shape.image_size
    pictures = torch.rand(3, 1, size, size, generator=torch.Generator().manual_seed(5))
    depths = {name: tower.layers + 1 if depth is None else depth for name, tower in backbone.shape.towers.items()}
    cache: Any = backbone.cache(depths, pictures, QUESTIONS)
    return cache._pictures[torch.arange(3)], cache._questions


@pytest.mark.parametrize("depth", [0, 1])
def test_outputs_are_float32_and_close_but_rounded(single: ClipBackbone, depth: int) -> None:
    """bfloat16 has 8 bits: outputs differ from float32's, and by less than 3 % of their norm."""
    for whole, rounded in zip(starts(single, depth), starts(single.computing("bfloat16"), depth), strict=True):
        assert rounded.dtype == torch.float32 and not rounded.requires_grad
        assert 0 < (whole - rounded).norm() < 0.03 * whole.norm()


def test_what_is_tuned_as_a_whole_is_computed_in_float32(single: ClipBackbone) -> None:
    """Pixels and token ids, where even the embedding is tuned, stay as they are."""
    for whole, rounded in zip(starts(single, None), starts(single.computing("bfloat16"), None), strict=True):
        assert whole.dtype == rounded.dtype and torch.equal(whole, rounded)


def test_a_store_keeps_both_apart(single: ClipBackbone, tmp_path: Path) -> None:
    """A run in float32 takes nothing that another has computed in bfloat16, nor the other way round."""
    stored = single.storing(FeatureStore(tmp_path / "cache"))
    for precision in ("bfloat16", "float32", "bfloat16"):
        for kept, plain in zip(
            starts(stored.computing(precision), 1), starts(single.computing(precision), 1), strict=True
        ):
            assert torch.equal(kept, plain)
    assert len(list((tmp_path / "cache").iterdir())) == 4


def test_a_backbone_without_it_refuses(vilt: Backbone, vilt_folder: Path, tmp_path: Path) -> None:
    """ViLT runs all blocks for every row, so that nothing is frozen but embeddings."""
    assert vilt.computing("float32") is vilt
    with pytest.raises(BackboneError, match="float32 alone"):
        vilt.computing("bfloat16")
    job = JobSpec.from_dict({"method": "fedavg", "options": {}, "data": "phantom", "backbone": vilt.name})
    with pytest.raises(BackboneError, match="float32 alone"):
        plan(job, None, tmp_path / "run", backbone_files={vilt.name: vilt_folder}, precision="bfloat16")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("dp", "expected"), [(None, "bfloat16"), (PRIVATE, "float32")])
def test_a_site_decides_and_a_private_job_computes_in_float32(
    sites: Callable[..., dict[str, SiteConfig]],
    quick_job: Callable[..., JobSpec],
    dp: dict[str, float] | None,
    expected: str,
) -> None:
    """`precision` of `site.yml`. Under privacy no coarse rounding may depend on which pictures share a chunk."""
    job = JobSpec.from_dict(quick_job(answers="closed").to_dict() | {"dp": dp})
    with closing(SiteRuntime(sites("chest", precision="bfloat16")["chest"], job, "job")) as runtime:
        assert runtime.site.backbone.precision == expected


def test_a_run_writes_it_into_its_sites_and_continues_with_it(tmp_path: Path) -> None:
    """The option of `medfedvqa run`; a run that was begun by a version without it is one in float32."""
    job = JobSpec.from_dict({"method": "fedavg", "options": {}, "data": "phantom", "backbone": "medclip2-slake"})
    launch = Launch(job, None, tmp_path, ("a",), precision="bfloat16")
    assert yaml.safe_load(write_sites(launch)["a"].read_text())["precision"] == "bfloat16"
    launch.write()
    assert Launch.read(tmp_path).precision == "bfloat16"
    file = tmp_path / "launch.json"
    file.write_text(file.read_text().replace('"precision"', '"unknown"'))
    assert Launch.read(tmp_path).precision == "float32"
