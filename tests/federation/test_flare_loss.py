"""A provisioned federation whose machine goes down in the middle of a job: real kits, mutual TLS, real signals."""

import json
import signal
import time
from pathlib import Path

import psutil
import pytest
from test_flare_quorum import JOB, PATIENCE, SITES, rounds, wait_for
from test_flare_quorum import federation as federation

from audits import Event, VerdictState, examine, read, verify
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.journal import JOURNAL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

ROUNDS = 8
STOPPED = 60.0  # seconds: TimeoutStopSec of the units


def started(federation: LoopbackFederation, folder: Path, seed: int) -> str:
    """A job in clear that has two rounds behind it."""
    options = {**JOB.options, "rounds": ROUNDS}
    export_job(JOB.model_copy(update={"options": options, "seed": seed, "round_timeout": PATIENCE}), folder / "job")
    job_id = federation.submit(folder / "job")
    wait_for(lambda: len(rounds(federation, job_id)) >= 2)
    return job_id


def killed(federation: LoopbackFederation, *parties: str, job: tuple[bool, ...] = (False, True)) -> None:
    """All processes of these parties, or those of one kind, die at one moment: they are halted first, so that none
    sees another die."""
    processes = [each for name in parties for kind in job for each in federation.processes(name, kind)]
    for process in processes:
        process.suspend()
    for process in processes:
        process.kill()
    psutil.wait_procs(processes)


def check_results(federation: LoopbackFederation, job_id: str) -> None:
    """No round is lost or done twice, and every log is whole, closed and agrees with the server's receipts."""
    out = federation.results(job_id)
    results = json.loads((out / "results.json").read_text())
    assert results["status"] == "finished"
    assert [record["round"] for record in results["rounds"]] == list(range(1, ROUNDS + 1))
    assert not any(record["missing"] for record in results["rounds"]) and results["missing_at_end"] == []
    assert not (federation.kits / SERVER / JOURNAL / job_id).exists()
    for name in SITES:
        audit = federation.kits / name / "audit"
        wait_for(lambda audit=audit: [e for e in read(audit) if e.job == job_id][-1].event is Event.CLOSE)
        others = [federation.kits / other / "audit" for other in SITES if other != name]
        assert not [entry.reason for entry in read(audit) if entry.event is Event.FINDING]
        judged = examine(audit, name, [out, *others])
        parts = (*judged.integrity.parts, *judged.consistency.parts)
        assert not [(part.name, part.said) for part in parts if part.state is not VerdictState.SHOWN]


@pytest.mark.release
def test_a_job_goes_on_after_the_whole_federation_was_killed(federation: LoopbackFederation, tmp_path: Path) -> None:
    """SIGKILL of the server, three sites and their job processes at one moment. Once they are started again, nobody
    does anything else: the server takes the job up when its sites are back, and it finishes."""
    job_id = started(federation, tmp_path, seed=11)
    parties = (SERVER, *SITES)
    killed(federation, *parties)
    assert list((federation.kits / SERVER / JOURNAL / job_id).iterdir())
    for name in parties:
        federation.start(name)
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    check_results(federation, job_id)
    assert not list((federation.kits / SERVER / "running").glob("*.json"))


@pytest.mark.parametrize(
    "job", [pytest.param((False,), marks=pytest.mark.release), (False, True)], ids=["process", "all"]
)
def test_a_job_goes_on_after_the_server_alone_was_killed(
    federation: LoopbackFederation, tmp_path: Path, job: tuple[bool, ...]
) -> None:
    """SIGKILL of the server's own process, with or without that of the job, while the sites live on: they keep the job,
    and the restarted server continues it. Nobody trains twice."""
    job_id = started(federation, tmp_path, seed=13 + len(job))
    killed(federation, SERVER, job=job)
    wait_for(lambda: not federation.processes(SERVER, job=True))
    assert list((federation.kits / SERVER / JOURNAL / job_id).iterdir())
    federation.start(SERVER)
    assert federation.wait(job_id, 2 * PATIENCE) == "FINISHED:COMPLETED"
    check_results(federation, job_id)


@pytest.mark.release
def test_a_job_goes_on_after_a_site_s_own_process_alone_was_killed(
    federation: LoopbackFederation, tmp_path: Path
) -> None:
    """SIGKILL of it alone: the job's process ends without closing the job, and the restarted site continues it."""
    job_id = started(federation, tmp_path, seed=17)
    killed(federation, "head", job=(False,))
    wait_for(lambda: not federation.processes("head", job=True))
    audit = federation.kits / "head" / "audit"
    assert not [entry for entry in read(audit) if entry.job == job_id and entry.event is Event.CLOSE]
    federation.start("head")
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    check_results(federation, job_id)


@pytest.mark.release
def test_a_site_that_a_service_manager_stops_ends_in_time_and_continues(
    federation: LoopbackFederation, tmp_path: Path
) -> None:
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
    federation.start("head")
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    check_results(federation, job_id)


@pytest.mark.release
def test_a_server_that_a_service_manager_stops_continues_its_jobs(
    federation: LoopbackFederation, tmp_path: Path
) -> None:
    """SIGTERM to all processes of the server in mid-round, that of the job first: its job is not over, and goes on once
    the server is started."""
    job_id = started(federation, tmp_path, seed=19)
    server = federation.processes(SERVER, job=False)
    for processes in (federation.processes(SERVER, job=True), server):
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert processes and not psutil.wait_procs(processes, STOPPED)[1]
    assert list((federation.kits / SERVER / JOURNAL / job_id).iterdir())
    federation.start(SERVER)
    assert federation.wait(job_id, 2 * PATIENCE) == "FINISHED:COMPLETED"
    check_results(federation, job_id)
