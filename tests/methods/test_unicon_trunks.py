"""UniCon, averaging and training alone on the trunks of UniCon's paper: whole jobs, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from split_sites import Together, double_site
from tiny_clip import TINY

from audits import read, verify
from medfedvqa.core import create
from medfedvqa.errors import ConfigError
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.models import shape_of
from medfedvqa.papers.networks.split import RowContrast
from medfedvqa.papers.networks.trunks import TRUNKS

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


@pytest.mark.parametrize("name", TRUNKS)
def test_split_training_of_each_trunk_is_training_in_one_piece(tiny_backbone: Path, name: str) -> None:
    """One site, two rounds of two steps: both sides hold what one graph under one Adam gives, to 1e-10 in float64."""
    with double_site(tiny_backbone) as site:
        method = create("unicon", {**SPLIT, "trunk": name, "temperature": 0.5})
        hub = Together(method, {"one": site})
        sent: list[dict] = []
        hub.collect = lambda task, down=None: sent.append(down) or Together.collect(hub, task, down)
        method.serve(hub)
        server, networks = method.server, method.networks(site)
        values = method.setup(site)["values"] | server.initial(torch.Generator().manual_seed(1))
        optimizer = torch.optim.Adam([value.requires_grad_() for value in values.values()], 1e-3)
        words = site.backbone.words(site.data.answers, 8)
        for number in (1, 2):
            order = torch.randperm(8, generator=torch.Generator().manual_seed(site.task_seed("rows", number)))
            for chosen in order.split(4):
                batch, own = method.batch(site, site.data.train, chosen), site.data.train.answers[chosen]
                rows = server.rows(values, networks.rows(values, batch), training=True)
                answers = server.answers(values, networks.answers(values, words, True)[own])
                optimizer.zero_grad()
                RowContrast("reference", 0.5)(rows, answers, own[:, None] == own).backward()
                optimizer.step()
        found = {**hub.states["one"]["values"], **{key: torch.from_numpy(v) for key, v in sent[-1]["one"].items()}}
    assert found.keys() == values.keys() and found["mha.weight"].dtype == torch.float64
    assert all(torch.allclose(found[key], value, rtol=0, atol=1e-10) for key, value in values.items())


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
    with pytest.raises(ConfigError, match="set 'tuning' to 'full'"):
        create(method, options)
