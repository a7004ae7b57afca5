"""A provisioned federation that loses a site, its server or all of it in a job: real kits, mutual TLS, real kills."""

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from phantoms import PATIENCE, Phantoms, short_job, wait_for

from audits import Event, VerdictState, examine, read, verify
from medfedvqa.federation.flare.lost_jobs import FOLDER
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.run_folder import RESULTS, has_finished
from medfedvqa.federation.journal import JOURNAL

pytestmark = pytest.mark.slow

SITES = ("abdomen", "chest", "head")
TIMEOUT = 90.0  # seconds, in which a busy machine imports torch in three processes
OPTIONS = {"rounds": 24, "local_epochs": 2, "batch_rows": 8, "tuning": "bias"}
JOB = short_job("fedavg", OPTIONS, min_sites=2, round_timeout=TIMEOUT)
ROUNDS = 8
STOPPED = 60.0  # seconds: TimeoutStopSec of the units


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    return phantoms(SITES, methods=["fedavg"])


def submitted(federation: Phantoms, folder: Path, rounds: int, timeout: float, seed: int) -> str:
    """A job of so many rounds, which differs from others by its seed."""
    changes = {"options": {**JOB.options, "rounds": rounds}, "seed": seed, "round_timeout": timeout}
    return federation.submit_job(JOB.model_copy(update=changes), folder / "job")


def rounds(federation: Phantoms, job_id: str) -> list[dict[str, Any]]:
    """The rounds in the results so far."""
    path = federation.results(job_id) / "results.json"
    return json.loads(path.read_text())["rounds"] if path.exists() else []


@pytest.mark.release
def test_a_server_that_is_halted_for_a_while_is_asked_again(federation: Phantoms, tmp_path: Path) -> None:
    """The server's process is halted while its status is asked for; the job finishes as if it had not been."""
    job_id = submitted(federation, tmp_path, 2, 300.0, seed=1)
    (server,) = federation.processes(SERVER, job=False)
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
    assert federation.outcome(job_id)["status"] == "finished"


@pytest.mark.release
def test_a_job_whose_server_process_is_killed_goes_on(federation: Phantoms, tmp_path: Path) -> None:
    """SIGKILL of the server's process of the job in round 3: another one continues from the journal, no round is lost
    or done twice, and the sites' logs agree with the server's receipts. Sites that wait for an answer of the dead one
    ask again after a minute, and do not count as late."""
    job_id = submitted(federation, tmp_path, 6, 60.0, seed=2)
    wait_for(lambda: len(rounds(federation, job_id)) >= 2)
    (process,) = federation.processes(SERVER, job=True)
    process.kill()
    assert list((federation.kits / SERVER / JOURNAL / job_id).iterdir())
    assert federation.wait(job_id, 2 * PATIENCE) == "FINISHED:COMPLETED"
    out = federation.results(job_id)
    results = federation.outcome(job_id)
    assert not list(out.parents[1].rglob("0*.npz"))  # whoever fetches the results gets no single uploads
    wait_for(lambda: not (federation.kits / SERVER / JOURNAL / job_id).exists())
    assert results["status"] == "finished" and [record["round"] for record in results["rounds"]] == [1, 2, 3, 4, 5, 6]
    assert not any(record["missing"] for record in results["rounds"]) and results["missing_at_end"] == []
    for name in SITES:
        entries = federation.log(name, job_id)
        trained = [e.round for e in entries if e.event is Event.RECEIVE and e.task != "evaluate"]
        assert sorted(set(trained)) == [1, 2, 3, 4, 5, 6]
        others = [federation.kits / other / "audit" for other in SITES if other != name]
        verdicts = examine(federation.kits / name / "audit", name, [out, *others]).verdicts()
        assert {title: verdict.state for title, verdict in verdicts}["consistency"] is VerdictState.SHOWN


# The machine goes down in the middle of a job.


def started(federation: Phantoms, folder: Path, seed: int) -> str:
    """A job in clear that has two rounds behind it."""
    job_id = submitted(federation, folder, ROUNDS, PATIENCE, seed)
    wait_for(lambda: len(rounds(federation, job_id)) >= 2)
    return job_id


def goes_on(federation: Phantoms, job_id: str, *parties: str, patience: float = PATIENCE) -> None:
    """Once these are started, the job ends: no round is lost or done twice, and every log is whole, closed and agrees
    with the server's receipts."""
    for name in parties:
        federation.start(name)
    assert federation.wait(job_id, patience) == "FINISHED:COMPLETED"
    out = federation.results(job_id)
    results = federation.outcome(job_id)
    assert results["status"] == "finished"
    assert [record["round"] for record in results["rounds"]] == list(range(1, ROUNDS + 1))
    assert not any(record["missing"] for record in results["rounds"]) and results["missing_at_end"] == []
    assert not (federation.kits / SERVER / JOURNAL / job_id).exists()
    for name in SITES:
        audit = federation.kits / name / "audit"
        wait_for(lambda name=name: federation.log(name, job_id)[-1].event is Event.CLOSE)
        others = [federation.kits / other / "audit" for other in SITES if other != name]
        assert not [entry.reason for entry in read(audit) if entry.event is Event.FINDING]
        judged = examine(audit, name, [out, *others])
        parts = (*judged.integrity.parts, *judged.consistency.parts)
        assert not [(part.name, part.said) for part in parts if part.state is not VerdictState.SHOWN]


@pytest.mark.release
def test_a_job_goes_on_after_the_whole_federation_was_killed(federation: Phantoms, tmp_path: Path) -> None:
    """SIGKILL of the server, three sites and their job processes at one moment. Once they are started again, nobody
    does anything else: the server takes the job up when its sites are back, and it finishes."""
    job_id = started(federation, tmp_path, seed=11)
    parties = (SERVER, *SITES)
    federation.kill(*parties)
    assert list((federation.kits / SERVER / JOURNAL / job_id).iterdir())
    goes_on(federation, job_id, *parties)
    assert not list((federation.kits / SERVER / "running").glob("*.json"))


@pytest.mark.parametrize(
    "job", [pytest.param((False,), marks=pytest.mark.release), (False, True)], ids=["process", "all"]
)
def test_a_job_goes_on_after_the_server_alone_was_killed(
    federation: Phantoms, tmp_path: Path, job: tuple[bool, ...]
) -> None:
    """SIGKILL of the server's own process, with or without that of the job, while the sites live on: they keep the job,
    and the restarted server continues it. Nobody trains twice."""
    job_id = started(federation, tmp_path, seed=13 + len(job))
    federation.kill(SERVER, job=job)
    wait_for(lambda: not federation.processes(SERVER, job=True))
    assert list((federation.kits / SERVER / JOURNAL / job_id).iterdir())
    goes_on(federation, job_id, SERVER, patience=2 * PATIENCE)


@pytest.mark.release
def test_a_job_goes_on_after_a_site_s_own_process_alone_was_killed(federation: Phantoms, tmp_path: Path) -> None:
    """SIGKILL of it alone: the job's process ends without closing the job, and the restarted site continues it."""
    job_id = started(federation, tmp_path, seed=17)
    federation.kill("head", job=(False,))
    wait_for(lambda: not federation.processes("head", job=True))
    assert not [entry for entry in federation.log("head", job_id) if entry.event is Event.CLOSE]
    goes_on(federation, job_id, "head")


@pytest.mark.release
def test_a_site_that_a_service_manager_stops_ends_in_time_and_continues(federation: Phantoms, tmp_path: Path) -> None:
    """SIGTERM to all processes of a site, as systemd sends it: none is left when the unit's time is over, the log
    holds, and the site takes the job up when it is started."""
    job_id = started(federation, tmp_path, seed=12)
    processes = [each for job in (False, True) for each in federation.processes("head", job)]
    began = time.monotonic()
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert not psutil.wait_procs(processes, STOPPED)[1] and time.monotonic() - began < STOPPED
    wait_for(lambda: not federation.processes("head", job=True))
    assert verify(federation.kits / "head" / "audit").ok
    goes_on(federation, job_id, "head")


@pytest.mark.release
def test_a_server_that_a_service_manager_stops_continues_its_jobs(federation: Phantoms, tmp_path: Path) -> None:
    """SIGTERM to all processes of the server in mid-round, that of the job first: its job is not over, and goes on once
    the server is started."""
    job_id = started(federation, tmp_path, seed=19)
    server = federation.processes(SERVER, job=False)
    for processes in (federation.processes(SERVER, job=True), server):
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert processes and not psutil.wait_procs(processes, STOPPED)[1]
    assert list((federation.kits / SERVER / JOURNAL / job_id).iterdir())
    goes_on(federation, job_id, SERVER, patience=2 * PATIENCE)


# The server dies just before or just after a job.


def launched(federation: Phantoms, job_id: str) -> bool:
    """The job's process at the server is noted; the sites have yet to start theirs."""
    return (federation.kits / SERVER / FOLDER / f"{job_id}.json").exists()


def ending(federation: Phantoms, job_id: str) -> bool:
    """The job's process has its results and tells the sites to end theirs; the first of these has ended."""
    results = has_finished(federation.kits / SERVER / job_id / RESULTS)
    return results and not all(federation.processes(name, job=True) for name in SITES)


def ended(federation: Phantoms, job_id: str) -> bool:
    """The job's process has ended, and the server waits for what its sites say."""
    results = has_finished(federation.kits / SERVER / job_id / RESULTS)
    return results and not federation.processes(SERVER, job=True)


@pytest.mark.release
@pytest.mark.parametrize("moment", [launched, ending, ended])
def test_a_job_ends_with_results_if_its_server_dies_at_its_beginning_or_end(
    federation: Phantoms, tmp_path: Path, moment: Callable[[Phantoms, str], bool]
) -> None:
    """SIGKILL of the server's own process. At the end the sites' processes of the job are over before it is back: no
    site can say any more how its own ended."""
    (server,) = federation.processes(SERVER, job=False)
    job_id = submitted(federation, tmp_path, 2, 120.0, seed=server.pid)
    wait_for(lambda: moment(federation, job_id), 0.005)
    server.kill()
    server.wait()
    if moment is not launched:
        others = [process for name in (SERVER, *SITES) for process in federation.processes(name, job=True)]
        psutil.wait_procs(others, timeout=60)
    federation.start(SERVER)
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    results = federation.outcome(job_id)
    assert results["status"] == "finished" and len(results["rounds"]) == 2 and results["missing_at_end"] == []
    wait_for(lambda: not launched(federation, job_id))
    for name in SITES:
        audit = federation.kits / name / "audit"
        wait_for(lambda name=name: federation.log(name, job_id)[-1].event is Event.CLOSE)
        assert verify(audit).ok


# A site misses rounds: the last test, since the others want logs in which nothing was missing.


def test_a_site_that_dies_misses_rounds_and_comes_back(federation: Phantoms, tmp_path: Path) -> None:
    """SIGKILL of a site's client and job process once it is in round 2: the others go on after the limit of time, the
    restarted site joins a later round with the current model, is evaluated, and the results say which it missed."""
    job_id = federation.submit_job(JOB, tmp_path / "job")
    wait_for(lambda: any(e.event is Event.RECEIVE and (e.round or 0) >= 2 for e in federation.log("head", job_id)))
    federation.kill("head")
    wait_for(lambda: any("head" in record["missing"] for record in rounds(federation, job_id)))
    federation.start("head")
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    results = federation.outcome(job_id)
    missed = [record["round"] for record in results["rounds"] if "head" in record["missing"]]
    assert results["status"] == "finished" and missed and missed[-1] < OPTIONS["rounds"]
    assert all(record["missing"] in ([], ["head"]) for record in results["rounds"])
    assert results["missing_at_end"] == [] and results["sites"]["head"]["accuracy"] is not None
    assert results["sites"]["head"]["rounds"] == OPTIONS["rounds"] - len(missed)
    assert any("Site head missed" in note for note in results["notes"])
    first = next(record for record in results["rounds"] if record["round"] == missed[0])
    assert first["seconds"] < TIMEOUT + 60 and first["accuracy"] == {}
    sent = {e.round for e in federation.log("head", job_id) if e.outcome == "sent"}
    assert max(missed) + 1 in sent and all(verify(federation.kits / name / "audit").ok for name in SITES)
