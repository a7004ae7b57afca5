"""Differencing in a provisioned federation: the author of two jobs leaves one site out of the second one."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from in_process import Engine, Sites
from phantoms import PATIENCE, Phantoms, short_job

from audits import Event, Refusal, verify
from medfedvqa.core import Tensors
from medfedvqa.data.phantom import organs
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig

pytestmark = pytest.mark.slow

SITES = organs(4)
REST, TARGET = SITES[:3], SITES[3]
JOB = short_job("fedavg", {"local_epochs": 2, "batch_rows": 16, "weighting": "uniform"}, secagg=True)


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    facts = {"methods": ["fedavg"], "require_secagg": True, "min_sites": 3, "repeatable_noise": 3}
    return phantoms(SITES, introduced=True, **facts)


def exported(folder: Path, sites: tuple[str, ...]) -> Path:
    """The job's folder, as an author writes it who deploys it to these sites only."""
    export_job(JOB, folder)
    meta = json.loads((folder / "meta.json").read_text())
    meta["deploy_map"] = {"app": ["server", *sites]}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@pytest.mark.release
def test_a_second_job_without_one_of_the_sites_is_refused_by_the_others(federation: Phantoms, tmp_path: Path) -> None:
    """By those that see it first, each with an entry that says why; none of them uploads. The same job over all of the
    sites runs again afterwards."""
    first = federation.submit(exported(tmp_path / "first", SITES))
    assert federation.wait(first, PATIENCE) == "FINISHED:COMPLETED"
    second = federation.submit(exported(tmp_path / "second", REST))
    assert federation.wait(second, PATIENCE) != "FINISHED:COMPLETED"
    entries = [entry for name in REST for entry in federation.log(name, second)]
    codes = [entry.admission for entry in entries if entry.event is Event.REFUSAL]
    assert codes and all(admission == {"code": Refusal.COHORT} for admission in codes)
    assert not [entry for entry in entries if entry.sharing]
    assert not federation.log(TARGET, second)
    again = federation.submit(exported(tmp_path / "again", SITES))
    assert federation.wait(again, PATIENCE) == "FINISHED:COMPLETED"
    assert all(verify(federation.kits / name / "audit").ok for name in SITES)


def mean(configs: Mapping[str, SiteConfig], folder: Path, name: str, job: JobSpec = JOB) -> tuple[Tensors, Engine]:
    """What the server has of the job over these sites: their mean. In process, by logs that know of no other job."""
    (folder / name).mkdir()
    places = {site: {key: folder / name / site / key for key in ("audit", "state")} for site in configs}
    engine = Engine({site: config.model_copy(update=places[site]) for site, config in configs.items()}, job, name)
    serve_job(job, tuple(configs), engine.call, folder / name, "local")
    names = [name for task, tensors in engine.passed if task == "evaluate" for name in tensors if name != "rows"]
    return {name: engine.sent("evaluate", name)[0] for name in names}, engine


def test_the_second_sum_would_show_what_the_site_put_in(introduced: Sites, tmp_path: Path) -> None:
    """The control: four times the mean over all, less three times that over the rest, is the upload of the one that
    was left out, which the job in clear sends."""
    configs = introduced(*SITES, methods=["fedavg"], repeatable_noise=3)
    with_it, _ = mean(configs, tmp_path, "all")
    without, _ = mean({name: configs[name] for name in REST}, tmp_path, "rest")
    _, engine = mean(configs, tmp_path, "clear", JOB.model_copy(update={"secagg": False}))
    uploads = [message for task, message in engine.passed if task == "start" and message]
    upload = uploads[SITES.index(TARGET)]
    compared = [name for name in upload if name in without]
    assert compared
    for name in compared:
        shown = 4 * with_it[name].astype(np.float64) - 3 * without[name].astype(np.float64)
        assert np.abs(shown - upload[name]).max() < 1e-5
