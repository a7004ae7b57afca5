"""Counts about fewer patients than a site's policy lets out (`min_count`) stay at the site."""

import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from in_process import Engine, Sites
from tiny_clip import TINY
from typer.testing import CliRunner

from audits import JobRefused, Kind, Refusal, SitePolicy, read, verify
from audits.errors import PolicyError
from audits.log_files import RECEIPTS
from medfedvqa.cli import app
from medfedvqa.core import EVALUATE, withheld
from medfedvqa.data import Examples, Part, SiteData, load_site
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.evaluation.accuracy_table import markdown_table
from medfedvqa.evaluation.results import results_schema
from medfedvqa.federation.hub import Reply, TaskCall
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, write_sites
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.server_reads import REFUSES, WITHHELD, server_reads
from medfedvqa.federation.server_receipts import ServerReceipts
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from medfedvqa.federation.site_runtime import LoadData, SiteRuntime

QUICK = {"rounds": 1, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "hidden": 16, "answers": "closed"}
OPTIONS: dict[str, dict[str, Any]] = {
    "fedavg": QUICK,
    "prompt_pfl": {**QUICK, "blocks": 1, "local_baseline": True},
    "local": {**QUICK, "finish_epochs": 1},
    "ridge": {"units": 32, "answers": "closed"},
}

PUBLIC_OPTIONS = ("-O", "weighting=uniform", "-O", "answers=closed")


def job_of(method: str, **options: object) -> JobSpec:
    settings = {"method": method, "options": OPTIONS[method] | options, "data": "phantom", "backbone": TINY}
    return JobSpec.from_dict(settings)


def loading(patients: dict[str, int]) -> LoadData:
    """Loads phantom sites that test on so many patients, and validate on all that they train on."""

    def load(reader: str, root: Path | None, organ: str, *facts: Any) -> SiteData:
        data = load_site(reader, root, organ, *facts)
        return replace(data, test=of_patients(data.test, patients[organ]), validate=data.train)

    return load


def of_patients(rows: Examples, count: int) -> Examples:
    """The rows of the first patients."""
    return rows.chosen(torch.isin(rows.patients, rows.patients.unique()[:count]).nonzero().flatten())


def served(job: JobSpec, configs: dict[str, SiteConfig], load: LoadData, out: Path) -> tuple[Any, list[Any]]:
    """The results of a job, and every upload as the server received it: task, site and tensors."""
    received: list[tuple[str, str, dict[str, np.ndarray]]] = []

    def recorded(call: TaskCall) -> dict[str, Reply]:
        replies = engine.call(call)
        received.extend((call.task, site, dict(reply.tensors)) for site, reply in replies.items())
        return replies

    receipts = ServerReceipts(job.exchange(), "job", tuple(configs), out / "keys", out)
    with closing(LocalEngine(configs, job, "job", load_data=load)) as engine, closing(receipts):
        return serve_job(job, tuple(configs), recorded, out, "local", receipts=receipts), received


@pytest.mark.parametrize("method", OPTIONS)
def test_a_site_that_tests_on_five_patients_gives_no_count_and_one_at_the_floor_does(
    sites: Sites, tmp_path: Path, method: str
) -> None:
    """Neither the messages, nor the server's log, results or files hold a count of the site with five patients; both
    logs say that nothing left, and the average is that of the other site, which has exactly as many as its policy asks.
    """
    configs = sites("chest", "abdomen", methods=[method], min_count=10)
    out = tmp_path / "out"
    results, received = served(job_of(method), configs, loading({"chest": 5, "abdomen": 10}), out)
    tests = {site: tensors for task, site, tensors in received if task == EVALUATE}
    assert tests["chest"] == {} and {"rows", "correct"} <= tests["abdomen"].keys()
    entry = results["sites"]["chest"]
    assert (entry["n"], entry["train_rows"], entry["correct"], entry["accuracy"]) == (None,) * 4
    assert results["withheld"] == ["chest"] and results["status"] == "finished"
    assert results["average"]["accuracy"] == results["sites"]["abdomen"]["accuracy"] is not None
    assert any("Withheld by chest" in note for note in results["notes"])
    jsonschema.validate(results, results_schema())
    assert "chest (withheld)" in markdown_table(results) and "None" not in markdown_table(results)
    left = [entry for entry in read(configs["chest"].audit) if entry.direction == "out"]
    assert (left[-1].task, left[-1].nbytes, left[-1].tensors) == (withheld(EVALUATE), 0, ())
    receipts = [entry for entry in read(out / RECEIPTS) if entry.peer == "chest" and entry.round is not None]
    assert (receipts[-1].task, receipts[-1].tensors) == (withheld(EVALUATE), ())
    assert verify(configs["chest"].audit).ok and verify(out / RECEIPTS).ok
    own = json.loads((configs["chest"].state / "job.evaluate.json").read_text())
    assert own.keys() == tests["abdomen"].keys(), "the hospital itself has the counts"


@pytest.mark.parametrize("part", ["train", "validate"])
def test_a_round_that_needs_a_figure_of_few_patients_is_refused_before_training(sites: Sites, part: Part) -> None:
    """Row counts that weigh a mean, and accuracies that weigh prompts, of nine patients do not leave: the job is
    refused, and the site says what to ask for. With ten the same job runs."""
    method = {"train": "fedavg", "validate": "prompt_pfl"}[part]
    config = sites("chest", methods=[method], min_count=10)["chest"]
    enough = load_site("phantom", None, "chest", job_of(method).split, 0, None)
    ten = replace(enough, validate=enough.train) if part == "validate" else enough

    def load(count: int) -> LoadData:
        few = of_patients(getattr(ten, part), count)
        return lambda *facts: replace(ten, **{part: few})

    with pytest.raises(JobRefused, match="weighting") as refused:
        SiteRuntime(config, job_of(method), "nine", load_data=load(9)).handle("start", 1, {})
    assert refused.value.code is Refusal.COUNT
    assert not list(config.state.glob("nine*")) and all(entry.direction != "out" for entry in read(config.audit))
    assert SiteRuntime(config, job_of(method), "ten", load_data=load(10)).handle("start", 1, {})
    if part == "train":
        uniform = job_of(method, weighting="uniform")
        assert SiteRuntime(config, uniform, "uniform", load_data=load(9)).handle("start", 1, {})


def test_the_site_alone_sets_the_floor(sites: Sites, tmp_path: Path) -> None:
    """It is 10 where `site.yml` says nothing, at least 1, and no part of a job; the phantom set and the sites that
    `medfedvqa run` makes for their owner have 1, written into their `site.yml`."""
    (tmp_path / "site.yml").write_text(site_yaml(reader="slake", root="data", organ="lung", methods=["fedavg"]))
    assert load_site_config(tmp_path / "site.yml", "lung").policy.min_count == 10
    assert SitePolicy.from_mapping({"methods": [], "kinds": []}).min_count == 10
    for bad in (0, -1, True, 1.5, "1"):
        with pytest.raises(PolicyError, match="min_count"):
            SitePolicy.from_mapping({"methods": [], "kinds": [], "min_count": bad})
    assert sites("chest")["chest"].policy.min_count == 1
    facts = job_of("fedavg").to_dict()
    for lowered in (facts | {"min_count": 1}, facts | {"options": {**facts["options"], "min_count": 1}}):
        with pytest.raises(ConfigError):
            JobSpec.from_dict(lowered)
    paths = write_sites(plan(JobSpec(method="fedavg", data="phantom"), None, tmp_path / "run"))
    assert {load_site_config(path, site).policy.min_count for site, path in paths.items()} == {1}


def test_a_server_takes_an_empty_answer_for_test_results_only(sites: Sites, tmp_path: Path) -> None:
    """A site cannot leave out what a round needs, and say that it withholds it."""
    configs, job = sites("chest", "abdomen", methods=["fedavg"]), job_of("fedavg")
    engine = Engine(configs, job)
    engine.bend = lambda task, site, answer: {}
    with pytest.raises(FederationError, match="does not declare"):
        serve_job(job, tuple(configs), engine.call, tmp_path / "out", "local")
    engine.local.close()


SMALL: list[tuple[str, dict[str, Any], int]] = [
    ("fedavg", {}, 5),
    ("fedavg", {}, 6),
    ("fedavg", {"weighting": "uniform"}, 6),
    ("prompt_pfl", {}, 6),
    ("local", {}, 6),
    ("ridge", {}, 5),
]


@pytest.mark.parametrize(("method", "options", "floor"), SMALL)
def test_the_table_of_what_the_server_reads_is_what_leaves_a_site_of_five_patients(
    sites: Sites, tmp_path: Path, method: str, options: dict[str, Any], floor: int
) -> None:
    """A row that says that nothing leaves is of tensors that the server does not get, be it that the site refuses the
    job or withholds them; every other row names, task by task, exactly the figures and as many tensors as it gets."""
    job, policy = job_of(method, **options), SitePolicy((), (), min_count=floor)
    configs = sites("chest", "abdomen", methods=[method], min_count=floor)

    def load(*facts: Any) -> SiteData:
        data = load_site(*facts)
        five = of_patients(data.train, 5)
        return replace(data, train=five, validate=five, test=of_patients(data.test, 5))

    got: dict[str, dict[str, np.ndarray]] = {}
    try:
        _, received = served(job, configs, load, tmp_path / "out")
        got = {task: tensors for task, site, tensors in received if site == "chest"}
        refused = False
    except FederationError as error:
        assert isinstance(error.__cause__, JobRefused) and error.__cause__.code is Refusal.COUNT
        refused = True
    rows = [row for row in server_reads(job, policy) if row.kind is not Kind.PUBLIC]
    assert {row.tells[5] for row in rows} == {REFUSES} if refused else all(row.tells[5] != REFUSES for row in rows)
    assert refused == (floor > 5 and (method, options) not in (("fedavg", {"weighting": "uniform"}), ("local", {})))
    for task, tensors in got.items():
        leaving = [row for row in rows if task in row.tasks and row.tells[5] != WITHHELD]
        figures = {name.strip("`") for row in leaving if row.kind is Kind.STATISTIC for name in row.tensors.split(", ")}
        others = sum(int(row.tensors.split()[0]) for row in leaving if row.kind is not Kind.STATISTIC)
        assert figures <= tensors.keys() and len(tensors) == len(figures) + others
        assert bool(leaving) == bool(tensors)


def test_who_exports_or_runs_a_job_is_told_what_the_server_reads(tmp_path: Path) -> None:
    """`jobs export` prints a row for all that leaves, with what it tells of each size; on shares nothing stands as
    being in clear, and under differential privacy each row says the epsilon."""
    runner, words = CliRunner(), {}
    for name, options in {"clear": (), "shares": ("--secagg",), "dp": ("--epsilon", "3", *PUBLIC_OPTIONS)}.items():
        shown = runner.invoke(app, ["jobs", "export", "fedavg", "--out", str(tmp_path / name), *options])
        assert shown.exit_code == 0
        words[name] = " ".join(shown.output.split())
    assert all(name in words["clear"] for name in ("train_rows", "correct", "prior_correct", "refuses", "min_count"))
    assert "clear, the server" in words["clear"] and "clear" not in words["shares"]
    assert "epsilon 3" in words["dp"] and "correct" not in words["dp"]
    for job in (job_of("fedavg"), JobSpec(method="fedavg", secagg=True), JobSpec(method="split_learning", secagg=True)):
        rows = server_reads(job)
        times = Counter(name for name, _ in job.build().tasks())
        declared = [task for task in job.exchange().tasks if any(spec.kind is not Kind.PUBLIC for spec in task.up)]
        assert {name for row in rows for name in row.tasks} == {task.name for task in declared}
        assert all(row.times == sum(times[name.partition("/")[0]] for name in row.tasks) for row in rows if row.tasks)
