"""UniCon against its card: who sends what to whom, what it reduces to, restarts, refusals."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from split_sites import Together, double_site
from tiny_clip import TINY

from audits import JobRefused, Kind, Protection, read, verify
from medfedvqa.core import Site, Tensors, create
from medfedvqa.errors import ConfigError
from medfedvqa.federation.hub import Reply, TaskCall
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, plan, run, write_sites
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.models import TuningConfig, shape_of
from medfedvqa.papers.networks.split import BUFFERS, RowContrast, ServerNetworks, SiteNetworks
from privacy import DPSettings

Sites = Callable[..., dict[str, SiteConfig]]
ALLOWED = {"methods": ["unicon"], "kinds": ["parameters", "statistic", "public", "activations"]}
SMALL = {"rounds": 2, "steps": 2, "batch_rows": 4, "blocks": 1, "width": 16, "space": 8, "tuning": "bias"}
CUT = {"v_mha", "v_apn"}


def job(secagg: bool = False, **options: object) -> JobSpec:
    """A small job; each site keeps its own part unless it is on shares."""
    settings = {**SMALL, "aggregate": "sites" if secagg else "none", **options}
    facts = {"method": "unicon", "options": settings, "data": "phantom", "backbone": TINY}
    return JobSpec.from_dict({**facts, "secagg": secagg})


class Recorder:
    """An engine that keeps what the server received."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.received: list[tuple[str, Tensors]] = []

    def call(self, call: TaskCall) -> dict[str, Reply]:
        replies = self.engine.call(call)
        self.received += [(call.task, reply.tensors) for reply in replies.values()]
        return replies


@pytest.fixture
def site(tiny_backbone: Path) -> Iterator[Site]:
    with double_site(tiny_backbone) as site:
        yield site


@pytest.mark.parametrize(("norm", "variant"), [("layer", "reference"), ("batch", "paper")])
def test_one_site_and_one_step_a_round_is_centralised_contrastive_training(site: Site, norm: str, variant: str) -> None:
    """K=1, E=1: after three rounds both sides hold what one graph under one Adam gives, to 1e-10."""
    options = {"rounds": 3, "steps": 1, "norm": norm, "variant": variant, "temperature": 0.5}
    method = create("unicon", {**SMALL, **options, "aggregate": "none"})
    hub = Together(method, {"one": site})
    sent: list[Tensors] = []
    hub.collect = lambda task, down=None: sent.append(down) or Together.collect(hub, task, down)
    method.serve(hub)

    networks, server = SiteNetworks(site.backbone, TuningConfig("bias", 1), 16), ServerNetworks(16, 8, norm)
    values = networks.initial(torch.Generator().manual_seed(0)) | server.initial(torch.Generator().manual_seed(1))
    trained = [value.requires_grad_() for name, value in values.items() if name not in BUFFERS]
    optimizer, words = torch.optim.Adam(trained, 1e-3), site.backbone.words(site.data.answers, 8)
    for number in (1, 2, 3):
        generator = torch.Generator().manual_seed(site.task_seed("rows", number))
        chosen = torch.randperm(8, generator=generator)[:4]
        batch, own = method.batch(site, site.data.train, chosen), site.data.train.answers[chosen]
        rows = server.rows(values, networks.rows(values, batch), training=True)
        answers = server.answers(values, networks.answers(values, words, True)[own])
        optimizer.zero_grad()
        RowContrast(variant, 0.5)(rows, answers, own[:, None] == own).backward()
        optimizer.step()
    found = {**hub.states["one"]["values"], **{name: torch.from_numpy(v) for name, v in sent[-1]["one"].items()}}
    assert found.keys() == values.keys()
    assert all(torch.allclose(found[name], value, rtol=0, atol=1e-10) for name, value in values.items())


def test_similarities_before_and_after_are_those_of_the_first_and_the_tested_values(site: Site) -> None:
    """Cosines by hand of each row with each row's answer: of initial values, and of what the evaluation tested."""
    method = create("unicon", {**SMALL, "aggregate": "none"})
    hub = Together(method, {"one": site})
    first = {**hub.states["one"]["values"], **method.server_part(1).values}
    with pytest.raises(ConfigError, match="no copy of the server's part"):
        method.similarity(site, hub.states["one"], site.data.test)
    sent: list[Tensors] = []
    hub.collect = lambda task, down=None: sent.append(down) or Together.collect(hub, task, down)
    method.serve(hub)
    last = {**hub.states["one"]["values"], **{name: torch.from_numpy(v) for name, v in sent[-1]["one"].items()}}
    batch, own = method.batch(site, site.data.test, torch.arange(8)), site.data.test.answers
    matrices = method.similarity(site, hub.states["one"], site.data.test)
    for values, found in zip((first, last), matrices, strict=True):
        with torch.no_grad():
            rows = method.server.rows(values, method.networks(site).rows(values, batch), training=False)
            words = method.networks(site).answers(values, site.backbone.words(site.data.answers, 8), True)
            keys = method.server.answers(values, words)[own]
        lengths = rows.norm(dim=1)[:, None] * keys.norm(dim=1)
        assert torch.allclose(found, rows @ keys.T / lengths, rtol=0, atol=1e-10)
    assert not torch.allclose(
        found.diagonal(), method.similarity(site, hub.states["one"], site.data.test)[0].diagonal()
    )


def test_sites_with_the_same_rows_average_to_one_of_them(site: Site) -> None:
    """Identical client data: two sites and their means train what one site alone does."""
    alone = Together(create("unicon", {**SMALL, "aggregate": "none"}), {"one": site})
    both = Together(create("unicon", SMALL, secagg=True), {"one": site, "two": site})
    scores = [hub.method.serve(hub)["one"] for hub in (alone, both)]
    one, two = (hub.states["one"]["values"] for hub in (alone, both))
    assert all(torch.allclose(one[name], two[name], rtol=0, atol=1e-10) for name in one)
    assert scores[0] == scores[1]


def test_without_aggregation_parts_go_apart_and_the_reference_averages_trunks_alone(site: Site) -> None:
    """Sites with different rows: `none` shares no part of theirs; `reference` not the answer side, on neither side."""
    other = replace(site, name="two", _derived={})
    parts = {}
    for name, options in {"none": {"aggregate": "none"}, "all": {}, "reference": {"averaged": "reference"}}.items():
        method = create("unicon", {**SMALL, **options}, secagg=name != "none")
        hub = Together(method, {"one": site, "two": other})
        sent: list[Any] = []
        hub.collect = lambda task, down=None, hub=hub, sent=sent: sent.append(down) or Together.collect(hub, task, down)
        method.serve(hub)
        parts[name] = {part for part in hub._mean} | {
            part for part in sent[-1]["one"] if np.array_equal(sent[-1]["one"][part], sent[-1]["two"][part])
        }
    whole = set(parts["all"])
    assert {"apn.weight", "mha.weight", "nha.out.weight", "lta.weight"} <= whole
    assert parts["none"] == {part for part in whole if part.startswith(("nha.", "lta."))}
    assert parts["reference"] == {part for part in whole if not part.startswith(("apn.", "lta."))}


def test_the_declared_messages_are_the_paper_s() -> None:
    """At width 512 and 128 rows: four tensors of 262,144 bytes a step; shapes do not tell anything of a site."""
    exchange = create("unicon", {"batch_rows": 128, "aggregate": "none"}).exchange(shape_of("medclip2-slake"))
    step = exchange.task("step/2")
    assert {spec.name: spec.nbytes for spec in step.up} == dict.fromkeys(CUT, 262_144)
    assert {spec.name: spec.nbytes for spec in step.down} == dict.fromkeys(CUT, 262_144)
    assert {spec.kind for spec in (*step.up, *step.down)} == {Kind.ACTIVATIONS}
    assert {spec.recipients for spec in step.up} == {("server",)}


def test_on_shares_the_sites_parts_go_to_sites_only_and_activations_to_the_server() -> None:
    """What really travels: no tensor of a site's part is declared in clear, in either direction."""
    method = create("unicon", {}, secagg=True)
    shape = shape_of("medclip2-slake")
    own, adapters = method.shared(shape).keys(), {"nha.out.weight", "lta.weight"}
    assert {"mha.weight", "apn.weight"} < own
    for task in method.final_exchange(shape).tasks:
        for spec in (*task.up, *task.down):
            assert spec.name not in own or spec.protection is Protection.MASKED
            assert spec.name not in CUT or spec.recipients == ("server",)
    down = {spec.name for spec in method.final_exchange(shape).task("evaluate").down}
    assert adapters < down and not down & own


@pytest.mark.parametrize(
    ("options", "dp", "secagg", "sentence"),
    [
        ({"aggregate": "none"}, DPSettings(epsilon=3), False, "against the others of its batch"),
        ({}, None, False, "ask for secure aggregation"),
        ({"aggregate": "none"}, None, True, "does not run with secure aggregation"),
        ({"batch_rows": 1}, None, True, "batch_rows"),
        ({"variant": "hard"}, None, True, "variant"),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(
    options: dict[str, object], dp: DPSettings | None, secagg: bool, sentence: str
) -> None:
    """When the job is made, before anything is trained."""
    with pytest.raises(ConfigError, match=sentence):
        create("unicon", options, dp, secagg)


def test_the_learning_rate_warms_up_and_decays() -> None:
    """Linear over the steps of a job; times 0.2 after each of the named rounds."""
    config = create("unicon", {"steps": 2, "warmup": 4, "decay_after": (2,), "aggregate": "none"}).config
    rates = [config.rate(number, step) for number in (1, 2, 3) for step in (1, 2)]
    assert rates == pytest.approx([0.00025, 0.0005, 0.00075, 0.001, 0.0002, 0.0002])


def test_a_site_allows_no_activations_unless_its_policy_says_so(sites: Sites, tmp_path: Path) -> None:
    """The template of `site.yml` allows none; the files that `medfedvqa run` writes allow what their job needs."""
    (activations, *_) = create("unicon", {"aggregate": "none"}).exchange(shape_of("medclip2-slake")).task("start").up
    template, allowed = (sites("chest", **facts)["chest"].policy for facts in ({"methods": ["unicon"]}, ALLOWED))
    assert "activations" in str(template.allows("unicon", activations))
    assert allowed.allows("unicon", activations) is None
    for spec, kinds in ((job(), {Kind.ACTIVATIONS}), (JobSpec(method="prompt_pfl", data="phantom"), set())):
        paths = write_sites(Launch(spec, None, tmp_path / spec.method, ("head",)))
        written = set(load_site_config(paths["head"], "head").policy.kinds)
        assert written == set(template.kinds) | kinds


@pytest.mark.slow
def test_a_step_asked_again_is_answered_from_the_saved_state_and_survives_a_restart(sites: Sites) -> None:
    """A new process goes on within a round, gives a repeated step the same bytes, and refuses a skipped one."""
    config = sites("chest", **ALLOWED)["chest"]
    other = config.model_copy(update={"state": config.state.parent / "other"})
    steady = SiteRuntime(config, job(steps=3), "job")
    sent = [steady.handle("start", 1, {})]
    gradients = {name: np.full((4, 16), 0.01, np.float32) for name in CUT}
    sent += [steady.handle("step/2", 1, gradients), steady.handle("step/3", 1, gradients)]
    SiteRuntime(other, job(steps=3), "job").handle("start", 1, {})
    with pytest.raises(JobRefused, match="out of order"):
        SiteRuntime(other, job(steps=3), "job").handle("step/3", 1, gradients)
    restarted = [SiteRuntime(other, job(steps=3), "job").handle("step/2", 1, gradients) for _ in range(2)]
    restarted.append(SiteRuntime(other, job(steps=3), "job").handle("step/3", 1, gradients))
    for one, two in zip((sent[1], sent[1], sent[2]), restarted, strict=True):
        assert all(one[name].tobytes() == two[name].tobytes() for name in CUT)
    assert not np.array_equal(sent[1]["v_mha"], sent[2]["v_mha"])


@pytest.mark.slow
def test_a_whole_job_sends_what_it_declares_and_the_server_sees_activations_only(sites: Sites, tmp_path: Path) -> None:
    """Every site's log equals the exchange, message by message, and verifies; the server received nothing else."""
    configs, spec = sites("chest", "head", **ALLOWED), job()
    engine = Recorder(LocalEngine(configs, spec, "test"))
    results = serve_job(spec, tuple(configs), engine.call, tmp_path / "out", "local")
    exchange = spec.build().final_exchange(shape_of(spec.backbone))
    tasks = ["start", "step/2", "update", "forward", "step/2", "update", "evaluate"]
    for config in configs.values():
        logged = [(entry.task, entry.direction, entry.nbytes) for entry in read(config.audit) if entry.direction]
        declared = [exchange.task(task) for task in tasks]
        both = [[(t.name, "in", t.bytes_down), (t.name, "out", t.bytes_up)] for t in declared]
        assert logged == [entry for pair in both for entry in pair] and verify(config.audit).ok
    for task, tensors in engine.received:
        assert tensors.keys() == (set() if task == "update" else CUT) or task == "evaluate"
    assert results["status"] == "finished" and set(results["sites"]) == {"chest", "head"}


@pytest.mark.slow
def test_on_shares_the_server_receives_no_value_of_a_site_s_part(introduced: Sites, tmp_path: Path) -> None:
    """A secure job: activations in clear, parts as masked integers, all of it as declared; the sites hold one mean."""
    configs, spec = introduced(**ALLOWED), job(secagg=True)
    engine = Recorder(LocalEngine(configs, spec, "test"))
    serve_job(spec, tuple(configs), engine.call, tmp_path / "out", "local")
    means = [SiteRuntime(config, spec, "test")._file.load().mixture for config in configs.values()]
    assert means[0].keys() == spec.build().shared(shape_of(spec.backbone)).keys()
    assert all(np.array_equal(means[0][name], other[name]) for other in means[1:] for name in means[0])
    exchange = spec.build().final_exchange(shape_of(spec.backbone))
    floats = {array.tobytes() for each in means for array in each.values()}
    for task, tensors in engine.received:
        declared = {spec.name: spec for spec in exchange.task(task).up if "server" in spec.recipients}
        assert tensors.keys() == declared.keys()
        for name, array in tensors.items():
            assert array.dtype == np.float32 if name in CUT else array.dtype == np.int64
            assert array.tobytes() not in floats
    assert all(verify(config.audit).ok for config in configs.values())


@pytest.mark.slow
def test_unicon_beats_the_question_only_prior_on_the_phantom_set(tmp_path: Path) -> None:
    """On shares, with the bundled backbone: on average over sites at least 10 points above what words alone tell."""
    options = {"rounds": 4, "steps": 15, "batch_rows": 32, "blocks": 1}
    spec = JobSpec.from_dict({"method": "unicon", "data": "phantom", "options": options, "secagg": True})
    average = run(plan(spec, None, tmp_path / "run"), "local", lambda event: None)["average"]
    assert average["accuracy"] >= average["baselines"]["question_prior"]["accuracy"] + 0.10
