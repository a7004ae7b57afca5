"""A provisioned federation in which one hospital says yes to a job, one says no, and one's yes has ended."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from phantoms import PATIENCE, Phantoms, short_job
from typer.testing import CliRunner

from audits import AuditKey, Event, Refusal, read
from medfedvqa.cli import app
from medfedvqa.federation.approvals import decide, decisions, waiting_jobs
from medfedvqa.federation.flare.recipe import export_job

pytestmark = pytest.mark.slow

SITES = ("abdomen", "chest", "head")
JOB = short_job("fedavg", {"tuning": "bias"}, wait_for=1, round_timeout=120.0)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A key of one person of each hospital."""
    folder = tmp_path_factory.mktemp("people")
    for name in SITES:
        AuditKey.at(folder / name, f"dpo@{name}")
    return {name: folder / name for name in SITES}


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms], keys: dict[str, Path]) -> Phantoms:
    """Three phantom sites, each with an approver of its own."""
    made = phantoms(SITES, methods=["fedavg"])
    for name in SITES:
        approvers = [str(AuditKey.at(keys[name], f"dpo@{name}").public)]
        (made.kits / name / "local" / "site.yml").write_text(made.site_file(name, approvers=approvers))
    return made


def test_each_hospital_answers_for_itself_and_nobody_for_another(
    federation: Phantoms, keys: dict[str, Path], tmp_path: Path
) -> None:
    """At first the job waits at all three. Then it runs at the site whose person said yes: its log names permit and
    person. The one that said no refuses it as declined, the one whose yes has ended as waiting; neither trains. The key
    of one hospital's person decides nothing at another, and a job that was changed after the yes waits anew."""
    first = federation.run(JOB, tmp_path / "job")
    assert {name: federation.codes(name, first) for name in SITES} == {name: ["approval"] for name in SITES}

    def jobs(name: str, *words: str, key: str = "") -> str:
        site = ["--site", str(federation.kits / name / "local" / "site.yml")]
        person = ["--person", f"dpo@{key or name}", "--key", str(keys[key or name])]
        done = CliRunner().invoke(app, ["jobs", *words, *site, *(person if words[0] != "pending" else [])])
        return f"{done.exit_code} {done.output} {done.exception or ''}"

    waiting = {name: waiting_jobs(federation.config(name))[0] for name in SITES}
    assert "Permit" in jobs("chest", "approve", waiting["chest"].name, "--days", "1")
    assert jobs("abdomen", "refuse", waiting["abdomen"].name).startswith("0")
    assert "is not among `approvers`" in jobs("head", "approve", waiting["head"].name, key="chest")
    moment = timedelta(seconds=1)
    ended = decide(federation.config("head"), waiting["head"], "yes", "dpo@head", keys["head"], moment)
    while datetime.now(UTC) < ended.until:
        time.sleep(0.1)

    second = federation.submit(tmp_path / "job")
    federation.wait(second, PATIENCE)
    assert federation.codes("chest", second) == []
    assert federation.codes("abdomen", second) == ["declined"] and federation.codes("head", second) == ["approval"]
    (admitted,) = [e.admission or {} for e in federation.log("chest", second) if e.event is Event.ADMITTED]
    (made,) = decisions(federation.config("chest"))
    assert (admitted["permit"], admitted["approver"]) == (made.permit, "dpo@chest")
    assert "yes, by dpo@chest" in jobs("chest", "pending") and "no, by dpo@abdomen" in jobs("abdomen", "pending")
    for name in ("abdomen", "head"):
        assert all(entry.event is not Event.RELEASE for entry in read(federation.config(name).audit))
    results = federation.outcome(second)
    assert results["status"] == "finished", results["failure"]
    assert [name for name, site in results["sites"].items() if site["accuracy"] is not None] == ["chest"]
    told = json.dumps(results)
    assert Refusal.DECLINED.sentence in told and Refusal.APPROVAL.sentence in told

    export_job(JOB.model_copy(update={"options": JOB.options | {"rounds": 2}}), tmp_path / "changed")
    third, fourth = (federation.submit(tmp_path / folder) for folder in ("changed", "job"))
    for job_id in (third, fourth):
        federation.wait(job_id, PATIENCE)
    assert {name: federation.codes(name, third) for name in SITES} == {name: ["approval"] for name in SITES}
    assert federation.codes("chest", fourth) == ["approval"]  # the permit was for one run
