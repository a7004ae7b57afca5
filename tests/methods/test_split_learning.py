"""Conventional split learning against its algorithm: it is training in one piece, and no label leaves a site."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from split_sites import Together, double_site
from tiny_clip import TINY

from audits import Kind, Protection, read, verify
from medfedvqa.core import Site, create
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.models import TuningConfig, shape_of
from medfedvqa.papers.networks.split import BUFFERS, ServerNetworks, SiteNetworks
from privacy import DPSettings

Sites = Callable[..., dict[str, SiteConfig]]
SMALL = {"rounds": 2, "steps": 2, "batch_rows": 4, "blocks": 1, "width": 16, "space": 8, "tuning": "bias"}
ANSWERS = ("left", "no", "yes")
ALLOWED = {"methods": ["split_learning"], "kinds": ["parameters", "statistic", "public", "activations"]}


@pytest.fixture
def site(tiny_backbone: Path) -> Iterator[Site]:
    with double_site(tiny_backbone) as site:
        yield site


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_one_site_is_training_in_one_piece(site: Site, norm: str) -> None:
    """After two rounds of two steps all three parts hold what one graph under one Adam gives, to 1e-10."""
    method = create("split_learning", {**SMALL, "norm": norm, "aggregate": "none", "answers": ANSWERS})
    hub = Together(method, {"one": site})
    last: list[dict] = []
    hub.collect = lambda task, down=None: last.append(down) or Together.collect(hub, task, down)
    scores = method.serve(hub)["one"]

    server = ServerNetworks(16, 8, norm)
    networks = SiteNetworks(site.backbone, TuningConfig("bias", 1), 16)
    drawn = server.initial(torch.Generator().manual_seed(1))
    values = method.setup(site)["values"] | {name: drawn[name] for name in server.middle_shapes}
    trained = [value.requires_grad_() for name, value in values.items() if name not in BUFFERS]
    optimizer = torch.optim.Adam(trained, 1e-3)
    for number in (1, 2):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(site.task_seed("rows", number)))
        for chosen in order.split(4):
            rows = networks.rows(values, method.batch(site, site.data.train, chosen))
            logits = server.rows(values, rows, training=True) @ values["tail.weight"].T + values["tail.bias"]
            optimizer.zero_grad()
            F.cross_entropy(logits, site.data.train.answers[chosen]).backward()
            optimizer.step()
    found = {**hub.states["one"]["values"], **{name: torch.from_numpy(v) for name, v in last[-1]["one"].items()}}
    assert found.keys() == values.keys()
    assert all(torch.allclose(found[name], value, rtol=0, atol=1e-10) for name, value in values.items())

    rows = networks.rows(values, method.batch(site, site.data.test, torch.arange(8)))
    logits = server.rows(values, rows, training=False) @ values["tail.weight"].T + values["tail.bias"]
    assert scores["correct"] == int(logits.argmax(dim=1).eq(site.data.test.answers).sum())


def test_sites_with_the_same_rows_average_to_one_of_them(site: Site) -> None:
    """Identical client data: all three parts are averaged, and two sites train what one alone does."""
    alone = Together(create("split_learning", {**SMALL, "aggregate": "none", "answers": ANSWERS}), {"one": site})
    both = Together(create("split_learning", {**SMALL, "answers": ANSWERS}, secagg=True), {"one": site, "two": site})
    scores = [hub.method.serve(hub)["one"] for hub in (alone, both)]
    one, two = (hub.states["one"]["values"] for hub in (alone, both))
    assert all(torch.allclose(one[name], two[name], rtol=0, atol=1e-10) for name in one) and scores[0] == scores[1]
    assert {"tail.weight", "mha.weight"} < both._mean.keys()


def test_the_middle_is_averaged_over_sites_with_different_rows(site: Site) -> None:
    """Their gradients differ, and the evaluation brings both the same middle part."""
    sites = {"one": site, "two": replace(site, name="two", _derived={})}
    hub = Together(create("split_learning", {**SMALL, "answers": ANSWERS}, secagg=True), sites)
    sent: list[dict] = []
    hub.collect = lambda task, down=None: sent.append(down) or Together.collect(hub, task, down)
    hub.method.serve(hub)
    rows = [sent[2][name]["v_mha"] for name in sites]
    assert not np.array_equal(*rows)  # the sites' batches differ, so their middles would without a mean
    assert all(np.array_equal(sent[-1]["one"][name], sent[-1]["two"][name]) for name in hub.method.server_shapes)


def test_what_leaves_has_no_labels_and_no_parameters_in_clear() -> None:
    """Up go activations and gradients of a fixed size; on shares the site's parts are masked, first and last one."""
    method = create("split_learning", {**SMALL, "answers": ANSWERS}, secagg=True)
    exchange = method.final_exchange(shape_of("medclip2-slake"))
    for task in ("start", "loss/1", "step/2", "loss/2"):
        in_clear = {spec.name: spec for spec in exchange.task(task).up if "server" in spec.recipients}
        assert in_clear.keys() == {"v_middle" if task.startswith("loss") else "v_mha"}
        assert {spec.kind for spec in in_clear.values()} == {Kind.ACTIVATIONS}
        assert {spec.shape for spec in in_clear.values()} == {(4, 8 if task.startswith("loss") else 16)}
    parts = method.shared(shape_of("medclip2-slake")).keys()
    assert {"tail.weight", "tail.bias", "mha.weight"} < parts
    whole = [spec for task in exchange.tasks for spec in (*task.up, *task.down) if spec.name in parts]
    assert {spec.name for spec in whole} == parts
    assert all(spec.protection is Protection.MASKED for spec in whole)


def test_a_step_out_of_order_is_refused(site: Site) -> None:
    """Neither gradients before the loss, nor a loss of another step, nor a loss twice."""
    method = create("split_learning", {**SMALL, "aggregate": "none", "answers": ANSWERS})
    exchange = method.exchange(site.backbone.shape)
    messages = {"start": {}, "loss": {"v_middle": np.ones((4, 8))}, "step": {"v_mha": np.full((4, 16), 0.01)}}

    def ask(task: str, state: dict) -> dict:
        message = messages[task.partition("/")[0]]
        return method.handle(exchange.task(task), site, state, message, 1)[0]

    started = ask("start", method.setup(site))
    lost = ask("loss/1", started)
    for task, state in (("step/2", started), ("loss/2", started), ("loss/1", lost), ("loss/2", lost)):
        with pytest.raises(FederationError, match="out of order"):
            ask(task, state)
    assert ask("loss/2", ask("step/2", lost))["losses"] == 2


def test_a_whole_job_logs_what_it_declares(sites: Sites, tmp_path: Path) -> None:
    """Every site's log equals the exchange, message by message, and verifies; with a trunk of the paper."""
    configs = sites("chest", "head", **ALLOWED)
    options = {**SMALL, "aggregate": "none", "trunk": "butd", "trunk_width": 16, "tuning": "full"}
    spec = JobSpec.from_dict({"method": "split_learning", "options": options, "data": "phantom", "backbone": TINY})
    results = serve_job(spec, tuple(configs), LocalEngine(configs, spec, "test").call, tmp_path / "out", "local")
    exchange = spec.build().final_exchange(shape_of(TINY))
    steps = ["loss/1", "step/2", "loss/2", "update"]
    tasks = [exchange.task(task) for task in ["start", *steps, "forward", *steps, "evaluate"]]
    both = [entry for t in tasks for entry in ((t.name, "in", t.bytes_down), (t.name, "out", t.bytes_up))]
    for config in configs.values():
        assert [(e.task, e.direction, e.nbytes) for e in read(config.audit) if e.direction] == both
        assert verify(config.audit).ok
    assert results["status"] == "finished"
    assert [(task.name, number) for task, number in zip(tasks, [1] * 5 + [2] * 6, strict=True)] == [
        *spec.build().tasks()
    ]


@pytest.mark.parametrize(
    ("options", "dp", "sentence"),
    [
        ({"aggregate": "none"}, DPSettings(epsilon=3), "activations of single rows"),
        ({}, None, "ask for secure aggregation"),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(options: dict, dp: DPSettings | None, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        create("split_learning", options, dp)
