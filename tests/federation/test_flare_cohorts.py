"""Differencing in a provisioned federation: the author of two jobs leaves one site out of the second one."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from in_process import Engine

from audits import Event, Refusal, read, verify
from medfedvqa.core import Tensors
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from privacy.secagg import Identity

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

ORGANS = {"abdomen": "site-001", "chest": "site-002", "head": "site-003", "thorax": "site-004"}
TARGET, REST = "thorax", ("abdomen", "chest", "head")
BACKBONE = "medclip@random"
OPTIONS = {"rounds": 1, "local_epochs": 2, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 16}
JOB = JobSpec.from_dict(
    {
        "method": "fedavg",
        "options": {**OPTIONS, "weighting": "uniform"},
        "data": "phantom",
        "backbone": BACKBONE,
        "secagg": True,
    }
)
PATIENCE = 300.0  # seconds


def written(folder: Path, backbone: Path) -> dict[str, Path]:
    """The `site.yml` of phantom sites that pin each other's keys."""
    places = {name: folder / name for name in ORGANS}
    for place in places.values():
        place.mkdir(parents=True)
    peers = {name: Identity.create(place / "identity.key").fingerprint for name, place in places.items()}
    for name, place in places.items():
        mine = {key: str(place / key) for key in ("state", "audit", "ledger")} | {
            "identity": str(place / "identity.key")
        }
        facts = {
            "reader": "phantom",
            "organ": ORGANS[name],
            "methods": ["fedavg"],
            "require_secagg": True,
            "min_sites": 3,
        }
        text = site_yaml(**facts, **mine, peers=peers, backbones={BACKBONE: str(backbone)}, repeatable_noise=3)
        (place / "site.yml").write_text(text)
    return {name: place / "site.yml" for name, place in places.items()}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> dict[str, Path]:
    return written(tmp_path_factory.mktemp("sites"), random_backbone)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, paths: dict[str, Path]) -> Iterator[LoopbackFederation]:
    with LoopbackFederation(tmp_path_factory.mktemp("federation"), paths) as federation:
        yield federation


def exported(folder: Path, sites: tuple[str, ...]) -> Path:
    """The job's folder, as an author writes it who deploys it to these sites only."""
    export_job(JOB, folder)
    meta = json.loads((folder / "meta.json").read_text())
    meta["deploy_map"] = {"app": ["server", *sites]}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@pytest.mark.release
def test_a_second_job_without_one_of_the_sites_is_refused_by_the_others(
    federation: LoopbackFederation, paths: dict[str, Path], tmp_path: Path
) -> None:
    """By those that see it first, each with an entry that says why; none of them uploads. The same job over all of the
    sites runs again afterwards."""
    configs = {name: load_site_config(path, name) for name, path in paths.items()}
    first = federation.submit(exported(tmp_path / "first", tuple(ORGANS)))
    assert federation.wait(first, PATIENCE) == "FINISHED:COMPLETED"
    second = federation.submit(exported(tmp_path / "second", REST))
    assert federation.wait(second, PATIENCE) != "FINISHED:COMPLETED"
    entries = [entry for name in REST for entry in read(configs[name].audit) if entry.job == second]
    codes = [entry.admission for entry in entries if entry.event is Event.REFUSAL]
    assert codes and all(admission == {"code": Refusal.COHORT} for admission in codes)
    assert not [entry for entry in entries if entry.sharing]
    assert not [entry for entry in read(configs[TARGET].audit) if entry.job == second]
    again = federation.submit(exported(tmp_path / "again", tuple(ORGANS)))
    assert federation.wait(again, PATIENCE) == "FINISHED:COMPLETED"
    assert all(verify(config.audit).ok for config in configs.values())


def mean(configs: Mapping[str, SiteConfig], folder: Path, name: str, job: JobSpec = JOB) -> tuple[Tensors, Engine]:
    """What the server has of the job over these sites: their mean. In process, by logs that know of no other job."""
    (folder / name).mkdir()
    places = {site: {key: folder / name / site / key for key in ("audit", "state")} for site in configs}
    engine = Engine({site: config.model_copy(update=places[site]) for site, config in configs.items()}, job, name)
    serve_job(job, tuple(configs), engine.call, folder / name, "local")
    names = [name for task, tensors in engine.passed if task == "evaluate" for name in tensors if name != "rows"]
    return {name: engine.sent("evaluate", name)[0] for name in names}, engine


def test_the_second_sum_would_show_what_the_site_put_in(paths: dict[str, Path], tmp_path: Path) -> None:
    """The control: four times the mean over all, less three times that over the rest, is the upload of the one that
    was left out, which the job in clear sends."""
    configs = {name: load_site_config(path, name) for name, path in paths.items()}
    with_it, _ = mean(configs, tmp_path, "all")
    without, _ = mean({name: configs[name] for name in REST}, tmp_path, "rest")
    clear = JOB.model_copy(update={"secagg": False})
    allowing = {
        name: config.model_copy(update={"policy": config.policy.__class__(config.policy.methods, config.policy.kinds)})
        for name, config in configs.items()
    }
    _, engine = mean(allowing, tmp_path, "clear", clear)
    uploads = [message for task, message in engine.passed if task == "start" and message]
    upload = uploads[list(ORGANS).index(TARGET)]
    compared = [name for name in upload if name in without]
    assert compared
    for name in compared:
        shown = 4 * with_it[name].astype(np.float64) - 3 * without[name].astype(np.float64)
        assert np.abs(shown - upload[name]).max() < 1e-5
