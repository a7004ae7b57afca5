"""Methods run on other trunks than CLIP without knowing it: ViLT and its kin, one tower for picture and question."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from medfedvqa.core import create
from medfedvqa.errors import ConfigError
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.models import Backbone, shape_of
from privacy import DPSettings

VILT = "vilt-tiny@random"
PROMPTS = {"rounds": 2, "local_epochs": 1, "batch_rows": 6, "hidden": 8}
FUSED = ("vilt", "vault", "albef")
KINDS = ("classifier", "lora", "prompt", "bias", "adapter", "blocks", "full")


def two(make: Callable, vilt) -> dict:
    return {name: make(name, backbone=vilt) for name in ("one", "other")}


def traffic_is_declared(run, method) -> bool:
    """Names, shapes and types of every upload."""
    exchange = method.exchange(next(iter(run.sites.values())).backbone.shape)
    return all(
        {name: (array.shape, str(array.dtype)) for name, array in tensors.items()}
        == {spec.name: (spec.shape, spec.dtype) for spec in exchange.task(task).up}
        for task, _, _, tensors in run.sent
    )


@pytest.fixture(params=FUSED)
def fused(request: pytest.FixtureRequest) -> Backbone:
    """Each kind of fused backbone, small."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("tuning", KINDS)
def test_fedavg_trains_every_kind_of_tuning(site, fused, federation, small, tuning):
    method = create("fedavg", {**small, "tuning": tuning})
    run = federation(method, two(site, fused))
    run.run()
    assert traffic_is_declared(run, method)
    first, last = (run.uploads(task, number)["one"] for task, number in (("start", 1), ("train", 2)))
    # A bias of keys moves all scores of a position alike, so that only decay can change it.
    assert all(not np.array_equal(first[name], last[name]) for name in last if name.endswith("weight"))


def test_feddat_runs(site, fused, federation, small):
    """One adapter per block of the one tower, whichever part of it the block belongs to."""
    method = create("feddat", small)
    run = federation(method, two(site, fused))
    run.run()
    assert traffic_is_declared(run, method)
    assert {name.rsplit(".", 2)[0] for name in run.uploads("train", 2)["one"]} == {
        f"adapter.joint.{block}" for block in range(fused.layers)
    }
    first, last = (run.uploads(task, number)["one"] for task, number in (("start", 1), ("train", 2)))
    assert all(not np.array_equal(first[name], last[name]) for name in last)


def test_unicon_runs_on_vilt(site, vilt, federation):
    """Answers are ViLT's own word pieces."""
    options = {"rounds": 1, "steps": 2, "batch_rows": 4, "blocks": 1, "width": 16, "space": 8, "aggregate": "none"}
    method = create("unicon", options)
    run = federation(method, two(site, vilt))
    scores = run.run()
    assert traffic_is_declared(run, method) and all(found["rows"] > 0 for found in scores.values())


def test_prompts_run(site, fused, federation):
    """prompt_pfl has one prompt, for keys and values of the question's and the picture's attention."""
    method = create("prompt_pfl", PROMPTS)
    run = federation(method, two(site, fused))
    run.run()
    assert traffic_is_declared(run, method)
    upload = run.uploads("train", 2)["one"]
    assert upload["prompt.joint"].shape == (fused.layers, 4, 16) and upload.keys() == {"prompt.joint", "accuracy"}


@pytest.mark.parametrize("ablation", ["AS3", "AS4"])
def test_prompts_of_one_tower_are_for_picture_and_question(ablation):
    """Leaving out one of both is refused before anything runs."""
    with pytest.raises(ConfigError, match="for both or for none"):
        create("prompt_pfl", {"ablation": ablation}).exchange(shape_of("vilt-b32@here"))


@pytest.mark.parametrize("name", ["prompt_pfl", "fedavg", "feddat"])
def test_private_training_runs(site, fused, federation, small, name):
    """Patients have prompts of their own where a method expands them."""
    options = PROMPTS if name == "prompt_pfl" else {**small, "weighting": "uniform"}
    dp = DPSettings(noise=1.0, count_noise=1.0, sample_rate=0.5, expected_patients=2)
    run = federation(create(name, {**options, "answers": "closed"}, dp), two(site, fused))
    run.run()
    upload = run.uploads("train", 2)["one"]
    assert all(np.isfinite(array).all() for array in upload.values())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["prompt_pfl", "feddat"])
def test_a_whole_job_runs_on_vilt(
    sites: Callable[..., dict[str, SiteConfig]], vilt_folder: Path, small, tmp_path: Path, method: str
) -> None:
    """Through gates, logs and saved state, with the folder that each site names."""
    configs = sites("chest", "head", backbones={VILT: str(vilt_folder)}, methods=[method])
    options = {**(PROMPTS if method == "prompt_pfl" else small), "local_unit": "batches"}
    job = JobSpec.from_dict({"method": method, "options": options, "data": "phantom", "backbone": VILT})
    results = serve_job(job, tuple(configs), LocalEngine(configs, job, "test").call, tmp_path / "out", "local")
    assert all(facts["n"] for facts in results["sites"].values())
