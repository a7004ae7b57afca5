"""A provisioned federation that loses a site and gets it back: real kits, mutual TLS, real kills."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from audits import Event, VerdictState, examine, read, verify
from audits.log_files import segments
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.journal import JOURNAL
from medfedvqa.federation.site_config import site_yaml

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

SITES = {"abdomen": "site-001", "chest": "site-002", "head": "site-003"}
BACKBONE = "medclip@random"
OPTIONS = {"rounds": 24, "local_epochs": 2, "local_unit": "batches", "batch_rows": 8, "tuning": "bias", "blocks": 1}
TIMEOUT = 90.0  # seconds, in which a busy machine imports torch in three processes
JOB = JobSpec.from_dict(
    {
        "method": "fedavg",
        "options": {**OPTIONS, "hidden": 16},
        "data": "phantom",
        "backbone": BACKBONE,
        "min_sites": 2,
        "round_timeout": TIMEOUT,
    }
)
PATIENCE = 600.0  # seconds


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Iterator[LoopbackFederation]:
    """Three phantom sites and a server, all on the loopback interface."""
    folder = tmp_path_factory.mktemp("federation")
    paths = {}
    for name, organ in SITES.items():
        facts = {"reader": "phantom", "organ": organ, "methods": ["fedavg"], "state": "../state", "audit": "../audit"}
        paths[name] = folder / f"{name}.yml"
        paths[name].write_text(site_yaml(**facts, backbones={BACKBONE: str(random_backbone)}))
    with LoopbackFederation(folder, paths) as federation:
        yield federation


def wait_for(condition: Callable[[], object], pause: float = 0.1) -> None:
    """Until the condition holds, asked every `pause` seconds; fails the test if it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(pause)


def rounds(federation: LoopbackFederation, job_id: str) -> list[dict[str, Any]]:
    """The rounds in the results so far."""
    path = federation.results(job_id) / "results.json"
    return json.loads(path.read_text())["rounds"] if path.exists() else []


def test_a_site_that_dies_misses_rounds_and_comes_back(federation: LoopbackFederation, tmp_path: Path) -> None:
    """SIGKILL of a site's client and job process once it is in round 2: the others go on after the limit of time, the
    restarted site joins a later round with the current model, is evaluated, and the results say which it missed."""
    export_job(JOB, tmp_path / "job")
    job_id = federation.submit(tmp_path / "job")
    log = federation.kits / "head" / "audit"
    wait_for(lambda: segments(log) and any(e.event is Event.RECEIVE and (e.round or 0) >= 2 for e in read(log)))
    for job in (False, True):
        for process in federation.processes("head", job):
            process.kill()
    wait_for(lambda: any("head" in record["missing"] for record in rounds(federation, job_id)))
    federation.start("head")
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    results = json.loads((federation.results(job_id) / "results.json").read_text())
    missed = [record["round"] for record in results["rounds"] if "head" in record["missing"]]
    assert results["status"] == "finished" and missed and missed[-1] < OPTIONS["rounds"]
    assert all(record["missing"] in ([], ["head"]) for record in results["rounds"])
    assert results["missing_at_end"] == [] and results["sites"]["head"]["accuracy"] is not None
    assert results["sites"]["head"]["rounds"] == OPTIONS["rounds"] - len(missed)
    assert any("Site head missed" in note for note in results["notes"])
    first = next(record for record in results["rounds"] if record["round"] == missed[0])
    assert first["seconds"] < TIMEOUT + 60 and first["accuracy"] == {}
    sent = {e.round for e in read(log) if e.job == job_id and e.outcome == "sent"}
    assert max(missed) + 1 in sent and all(verify(federation.kits / name / "audit").ok for name in SITES)


@pytest.mark.release
def test_a_server_that_is_halted_for_a_while_is_asked_again(federation: LoopbackFederation, tmp_path: Path) -> None:
    """The server's process is halted while its status is asked for; the job finishes as if it had not been."""
    options = {**JOB.options, "rounds": 2}
    export_job(JOB.model_copy(update={"options": options, "seed": 1, "round_timeout": 300.0}), tmp_path / "job")
    job_id = federation.submit(tmp_path / "job")
    (server,) = federation.processes("localhost", job=False)
    server.suspend()
    resume = threading.Timer(20.0, server.resume)
    resume.start()
    try:
        began = time.monotonic()
        assert federation.status(job_id)
        assert time.monotonic() - began > 10
    finally:
        resume.join()
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    assert json.loads((federation.results(job_id) / "results.json").read_text())["status"] == "finished"


@pytest.mark.release
def test_a_job_whose_server_process_is_killed_goes_on(federation: LoopbackFederation, tmp_path: Path) -> None:
    """SIGKILL of the server's process of the job in round 3: another one continues from the journal, no round is lost
    or done twice, and the sites' logs agree with the server's receipts. Sites that wait for an answer of the dead one
    ask again after a minute, and do not count as late."""
    options = {**JOB.options, "rounds": 6}
    export_job(JOB.model_copy(update={"options": options, "seed": 2, "round_timeout": 60.0}), tmp_path / "job")
    job_id = federation.submit(tmp_path / "job")
    wait_for(lambda: len(rounds(federation, job_id)) >= 2)
    (process,) = federation.processes("localhost", job=True)
    process.kill()
    assert list((federation.kits / "localhost" / JOURNAL / job_id).iterdir())
    assert federation.wait(job_id, 2 * PATIENCE) == "FINISHED:COMPLETED"
    out = federation.results(job_id)
    results = json.loads((out / "results.json").read_text())
    assert not list(out.parents[1].rglob("0*.npz"))  # whoever fetches the results gets no single uploads
    wait_for(lambda: not (federation.kits / "localhost" / JOURNAL / job_id).exists())
    assert results["status"] == "finished" and [record["round"] for record in results["rounds"]] == [1, 2, 3, 4, 5, 6]
    assert not any(record["missing"] for record in results["rounds"]) and results["missing_at_end"] == []
    for name in SITES:
        entries = [e for e in read(federation.kits / name / "audit") if e.job == job_id]
        trained = [e.round for e in entries if e.event is Event.RECEIVE and e.task != "evaluate"]
        assert sorted(set(trained)) == [1, 2, 3, 4, 5, 6]
        others = [federation.kits / other / "audit" for other in SITES if other != name]
        verdicts = examine(federation.kits / name / "audit", name, [out, *others]).verdicts()
        assert {title: verdict.state for title, verdict in verdicts}["consistency"] is VerdictState.SHOWN
