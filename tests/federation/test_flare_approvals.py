"""A provisioned federation in which one hospital says yes to a job, one says no, and one's yes has ended."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audits import AuditKey, Event, Refusal, read
from medfedvqa.cli import app
from medfedvqa.federation.approvals import decide, decisions, waiting_jobs
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

SITES = {"abdomen": "site-001", "chest": "site-002", "head": "site-003"}
BACKBONE = "medclip@random"
JOB = JobSpec.from_dict(
    {
        "method": "fedavg",
        "options": {
            "rounds": 1,
            "local_epochs": 1,
            "local_unit": "batches",
            "tuning": "bias",
            "blocks": 1,
            "hidden": 16,
        },
        "data": "phantom",
        "backbone": BACKBONE,
        "wait_for": 1,
        "round_timeout": 120.0,
    }
)
PATIENCE = 600.0  # seconds


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A key of one person of each hospital."""
    folder = tmp_path_factory.mktemp("people")
    for name in SITES:
        AuditKey.at(folder / name, f"dpo@{name}")
    return {name: folder / name for name in SITES}


@pytest.fixture(scope="module")
def federation(
    tmp_path_factory: pytest.TempPathFactory, random_backbone: Path, keys: dict[str, Path]
) -> Iterator[LoopbackFederation]:
    """Three phantom sites, each with an approver of its own, and a server, all on the loopback interface."""
    folder = tmp_path_factory.mktemp("federation")
    paths = {}
    for name, organ in SITES.items():
        facts = {"reader": "phantom", "organ": organ, "methods": ["fedavg"], "state": "../state", "audit": "../audit"}
        facts["approvers"] = [str(AuditKey.at(keys[name], f"dpo@{name}").public)]
        paths[name] = folder / f"{name}.yml"
        paths[name].write_text(site_yaml(**facts, backbones={BACKBONE: str(random_backbone)}))
    with LoopbackFederation(folder, paths) as federation:
        yield federation


def config_at(federation: LoopbackFederation, name: str) -> SiteConfig:
    return load_site_config(federation.kits / name / "local" / "site.yml", name)


def codes(federation: LoopbackFederation, name: str, job_id: str) -> list[str]:
    """The codes with which a site refused a job."""
    entries = (entry for entry in read(config_at(federation, name).audit) if entry.job == job_id)
    return [str((entry.admission or {})["code"]) for entry in entries if entry.event is Event.REFUSAL]


def submitted(federation: LoopbackFederation, folder: Path) -> str:
    """The id of the job, which has ended."""
    job_id = federation.submit(folder)
    federation.wait(job_id, PATIENCE)
    return job_id


def test_each_hospital_answers_for_itself_and_nobody_for_another(
    federation: LoopbackFederation, keys: dict[str, Path], tmp_path: Path
) -> None:
    """At first the job waits at all three. Then it runs at the site whose person said yes: its log names permit and
    person. The one that said no refuses it as declined, the one whose yes has ended as waiting; neither trains. The key
    of one hospital's person decides nothing at another, and a job that was changed after the yes waits anew."""
    export_job(JOB, tmp_path / "job")
    first = submitted(federation, tmp_path / "job")
    assert {name: codes(federation, name, first) for name in SITES} == {name: ["approval"] for name in SITES}

    def jobs(name: str, *words: str, key: str = "") -> str:
        site = ["--site", str(federation.kits / name / "local" / "site.yml")]
        person = ["--person", f"dpo@{key or name}", "--key", str(keys[key or name])]
        done = CliRunner().invoke(app, ["jobs", *words, *site, *(person if words[0] != "pending" else [])])
        return f"{done.exit_code} {done.output} {done.exception or ''}"

    waiting = {name: waiting_jobs(config_at(federation, name))[0] for name in SITES}
    assert "Permit" in jobs("chest", "approve", waiting["chest"].name, "--days", "1")
    assert jobs("abdomen", "refuse", waiting["abdomen"].name).startswith("0")
    assert "is not among `approvers`" in jobs("head", "approve", waiting["head"].name, key="chest")
    moment = timedelta(seconds=1)
    ended = decide(config_at(federation, "head"), waiting["head"], "yes", "dpo@head", keys["head"], moment)
    while datetime.now(UTC) < ended.until:
        time.sleep(0.1)

    second = submitted(federation, tmp_path / "job")
    assert codes(federation, "chest", second) == []
    assert codes(federation, "abdomen", second) == ["declined"] and codes(federation, "head", second) == ["approval"]
    entries = [entry for entry in read(config_at(federation, "chest").audit) if entry.job == second]
    (admitted,) = [entry.admission or {} for entry in entries if entry.event is Event.ADMITTED]
    (made,) = decisions(config_at(federation, "chest"))
    assert (admitted["permit"], admitted["approver"]) == (made.permit, "dpo@chest")
    assert "yes, by dpo@chest" in jobs("chest", "pending") and "no, by dpo@abdomen" in jobs("abdomen", "pending")
    for name in ("abdomen", "head"):
        assert all(entry.event is not Event.RELEASE for entry in read(config_at(federation, name).audit))
    results = json.loads((federation.results(second) / "results.json").read_text())
    assert results["status"] == "finished", results["failure"]
    assert [name for name, site in results["sites"].items() if site["accuracy"] is not None] == ["chest"]
    told = json.dumps(results)
    assert Refusal.DECLINED.sentence in told and Refusal.APPROVAL.sentence in told

    export_job(JOB.model_copy(update={"options": JOB.options | {"rounds": 2}}), tmp_path / "changed")
    third, fourth = (federation.submit(tmp_path / folder) for folder in ("changed", "job"))
    for job_id in (third, fourth):
        federation.wait(job_id, PATIENCE)
    assert {name: codes(federation, name, third) for name in SITES} == {name: ["approval"] for name in SITES}
    assert codes(federation, "chest", fourth) == ["approval"]  # the permit was for one run
