"""Jobs with a method that was installed from outside, run by the in-process engine."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from plug_in import LOOSE, NAME, VERSION, installed, sources

pytestmark = pytest.mark.slow

PROGRAM = """
import json, sys
from pathlib import Path

from audits import read, verify
from medfedvqa.report.collect import evidence_of
from medfedvqa.errors import MedfedvqaError
from medfedvqa.report import render
from medfedvqa.federation.hub import TaskAnswer
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, run
from medfedvqa.federation.site_config import load_site_config
from privacy.report import read_report, report_bytes, report_of

sys.path.insert(0, sys.argv[2])
import acme_federated

SMALL = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 8}
backbone = Path(sys.argv[3])


def job(method, name, watch=lambda event: None):
    spec = {"method": method, "options": SMALL, "data": "phantom", "backbone": "medclip@random"}
    out = Path(sys.argv[1]) / name
    launch = plan(JobSpec.from_dict(spec), None, out, ("chest",), 1, {"medclip@random": backbone})
    try:
        run(launch, "local", watch)
        refused = None
    except MedfedvqaError as error:
        refused = str(error)
    audit = out / "sites" / "chest" / "audit"
    entries = list(read(audit))
    found = {"refused": refused, "holds": verify(audit).ok}
    found["entries"] = [[str(e.event), e.code_digest, e.code, e.admission] for e in entries if e.job]
    if refused is None:
        config = load_site_config(out / "sites" / "chest" / "site.yml", "chest")
        report = report_of(evidence_of(config, None, None, None, None, (), False))
        assert read_report(report_bytes(report)) == report
        render(report, out)
        found["page"] = (out / "report.html").read_text()
        found["identity"] = json.loads(json.dumps(report.sections.identity, default=vars))
        found["rules"] = {one.rule: one.state for one in report.sections.verdicts.rules}
    return found


schedule = Path(acme_federated.__file__).parent / "schedule.py"


def change(event):
    if isinstance(event, TaskAnswer) and event.site:
        schedule.write_text("FACTOR = 2\\n")


told = {"built in": job("fedavg", "built-in"), "own": job("acme_avg", "own")}
told["meanwhile"] = job("acme_avg", "meanwhile", change)
schedule.write_text("FACTOR = 1\\n")
told["again"] = job("acme_avg", "again")
schedule.write_text("FACTOR = 3\\n")
told["changed"] = job("acme_avg", "changed")
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("plug-in")
    return installed(sources(place / "source"), place / "target")


@pytest.fixture(scope="module")
def jobs(target: Path, random_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process of its own tells of a job with a built-in method and of jobs with the installed one."""
    place = tmp_path_factory.mktemp("jobs")
    (place / "program.py").write_text(PROGRAM)
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(place / "program.py"), str(place), str(target), str(random_backbone)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, cwd=place, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def parts_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    [code] = [code for event, _, code, _ in job["entries"] if event == "open"]
    return list(code["parts"])


def test_a_method_from_outside_changes_the_code_digest_of_every_entry(jobs: dict[str, Any]) -> None:
    """Each entry of the job after its opening has the digest; the logs hold."""
    digests = {name: {digest for _, digest, _, _ in jobs[name]["entries"] if digest} for name in ("built in", "own")}
    assert all(len(found) == 1 for found in digests.values()) and digests["built in"] != digests["own"]
    assert jobs["built in"]["holds"] and jobs["own"]["holds"]


def test_the_log_names_the_distribution_and_a_loose_module_by_its_digest_alone(
    jobs: dict[str, Any], target: Path
) -> None:
    """The two jobs differ by these two parts and by nothing else; no path of the site is in the log."""
    plain = parts_of(jobs["built in"])
    added = [part for part in parts_of(jobs["own"]) if part not in plain]
    assert [(part["kind"], part["name"], part["version"]) for part in added] == [
        ("plug-in", NAME, VERSION),
        ("module", None, None),
    ]
    assert added[1]["sha256"] == sha256(LOOSE.encode()).hexdigest()
    assert {part["name"] for part in plain if part["kind"] == "dependency"} >= {"torch", "numpy", "open_clip_torch"}
    said = json.dumps(jobs["own"]["entries"])
    assert str(target) not in said and "acme_loose" not in said and "acme_federated" not in said


def test_the_report_names_the_distribution_and_shows_that_the_log_does(jobs: dict[str, Any]) -> None:
    """In section A of the evidence's figures, on the page, and as a rule that is shown to be kept."""
    own = jobs["own"]
    assert (own["rules"]["code"], jobs["built in"]["rules"]["code"]) == ("shown", "shown")
    assert own["identity"]["code_parts"] == parts_of(own)
    assert NAME in own["page"] and VERSION in own["page"] and "acme_loose" not in own["page"]
    assert NAME not in jobs["built in"]["page"]


def test_code_that_changed_on_disk_after_it_was_loaded_does_not_run(jobs: dict[str, Any]) -> None:
    """The digest would name other code than the one that runs: the site refuses, with a code and without a path."""
    changed = jobs["changed"]
    assert "has changed" in changed["refused"] and "acme_federated" not in changed["refused"]
    assert [admission["code"] for event, _, _, admission in changed["entries"] if event == "refusal"] == ["code"]
    assert not [event for event, _, _, _ in changed["entries"] if event in ("open", "release")]


def test_code_that_changes_while_a_job_runs_stops_it_at_the_next_task(jobs: dict[str, Any]) -> None:
    """The site logs the refusal after what it had released, and takes jobs again once the files are what it loaded."""
    events = [event for event, _, _, _ in jobs["meanwhile"]["entries"]]
    assert "has changed" in jobs["meanwhile"]["refused"] and jobs["meanwhile"]["holds"]
    assert events.count("release") == 1 and "refusal" in events[events.index("release") :]
    assert [admission["code"] for event, _, _, admission in jobs["meanwhile"]["entries"] if event == "refusal"] == [
        "code"
    ]
    assert jobs["again"]["refused"] is None
