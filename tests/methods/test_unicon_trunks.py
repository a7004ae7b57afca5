"""UniCon, averaging and training alone on the trunks of UniCon's paper: whole jobs, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_clip import TINY

from audits import read, verify
from medfedvqa.core import create
from medfedvqa.errors import ConfigError
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.models import shape_of
from medfedvqa.models.trunks.grid import TRUNKS

Sites = Callable[..., dict[str, SiteConfig]]
TRUNK = {"trunk_width": 16, "tuning": "full", "rounds": 2}
SPLIT = {**TRUNK, "steps": 2, "batch_rows": 4, "width": 16, "space": 8, "aggregate": "none"}
KINDS = ["parameters", "statistic", "public", "activations"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "butd" else pytest.mark.slow) for name in TRUNKS]
)
def test_two_rounds_of_unicon_on_each_trunk_are_logged_as_declared(sites: Sites, tmp_path: Path, name: str) -> None:
    """Every message of every site's log is as large as the exchange says, and the log verifies."""
    configs = sites("chest", "head", methods=["unicon"], kinds=KINDS)
    spec = JobSpec.from_dict(
        {"method": "unicon", "options": {**SPLIT, "trunk": name}, "data": "phantom", "backbone": TINY}
    )
    results = serve_job(spec, tuple(configs), LocalEngine(configs, spec, "test").call, tmp_path / "out", "local")
    assert results["status"] == "finished" and all(facts["n"] for facts in results["sites"].values())
    exchange = spec.build().final_exchange(shape_of(TINY))
    tasks = ["start", "step/2", "update", "forward", "step/2", "update", "evaluate"]
    for config in configs.values():
        logged = [(entry.task, entry.direction, entry.nbytes) for entry in read(config.audit) if entry.direction]
        both = [
            [(task, "in", exchange.task(task).bytes_down), (task, "out", exchange.task(task).bytes_up)]
            for task in tasks
        ]
        assert logged == [entry for pair in both for entry in pair] and verify(config.audit).ok


@pytest.mark.parametrize("method", ["fedavg", pytest.param("local", marks=pytest.mark.slow)])
def test_averaging_and_training_alone_run_on_a_trunk(sites: Sites, tmp_path: Path, method: str) -> None:
    """A trunk's weights travel by name where they are averaged, and not at all where a site trains alone."""
    options = {**TRUNK, "trunk": "mcan-small", "local_unit": "batches", "local_epochs": 2, "hidden": 8}
    configs = sites("chest", "head", methods=[method])
    spec = JobSpec.from_dict({"method": method, "options": options, "data": "phantom", "backbone": TINY})
    results = serve_job(spec, tuple(configs), LocalEngine(configs, spec, "test").call, tmp_path / "out", "local")
    assert results["status"] == "finished" and all(facts["n"] for facts in results["sites"].values())
    left = {
        tensor.name
        for config in configs.values()
        for e in read(config.audit)
        if e.outcome == "sent"
        for tensor in e.tensors
    }
    assert ("weight.encoder.0.attend.attention.queries.weight" in left) == (method == "fedavg")


def test_sites_begin_with_one_trunk_that_follows_from_the_job_s_seed(site: Callable[..., object]) -> None:
    """The same weights at every site, other ones with another seed."""
    method = create("fedavg", {**TRUNK, "trunk": "butd"})
    states = [method.setup(site(name, seed=seed))["values"] for name, seed in (("one", 0), ("other", 0), ("one", 1))]
    weight = "weight.attend.value.weight"
    assert states[0][weight].equal(states[1][weight]) and not states[0][weight].equal(states[2][weight])


@pytest.mark.parametrize("method", ["fedavg", "local", "unicon"])
@pytest.mark.parametrize("backbone", ["vilt-b32@here", "RN50@here"])
def test_a_backbone_without_a_grid_is_refused_before_anything_travels(method: str, backbone: str) -> None:
    """By the exchange, which server and sites derive from the shape alone."""
    options = {**SPLIT, "trunk": "butd"} if method == "unicon" else {**TRUNK, "trunk": "butd"}
    with pytest.raises(ConfigError, match="reads a grid of a picture's places, and this backbone gives none"):
        create(method, options).exchange(shape_of(backbone))


@pytest.mark.parametrize("method", ["fedavg", "local", "unicon"])
def test_a_trunk_is_trained_as_a_whole(method: str) -> None:
    """Its weights are random: a tuning of a part is refused with what to give instead."""
    options = {"trunk": "butd", "tuning": "adapter"} | ({"aggregate": "none"} if method == "unicon" else {})
    with pytest.raises(ConfigError, match="give 'tuning' as 'full'"):
        create(method, options)
