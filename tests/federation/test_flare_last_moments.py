"""A provisioned federation whose server dies just before or just after a job: real kits, mutual TLS, real kills."""

import json
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from test_flare_quorum import JOB, PATIENCE, SITES, wait_for
from test_flare_quorum import federation as federation

from audits import Event, read, verify
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.lost_jobs import FOLDER
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.flare.run_folder import RESULTS, has_finished

pytestmark = [
    pytest.mark.release,
    pytest.mark.timeout(1200),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]


def launched(federation: LoopbackFederation, job_id: str) -> bool:
    """The job's process at the server is noted; the sites have yet to start theirs."""
    return (federation.kits / SERVER / FOLDER / f"{job_id}.json").exists()


def ending(federation: LoopbackFederation, job_id: str) -> bool:
    """The job's process has its results and tells the sites to end theirs; the first of these has ended."""
    results = has_finished(federation.kits / SERVER / job_id / RESULTS)
    return results and not all(federation.processes(name, job=True) for name in SITES)


def ended(federation: LoopbackFederation, job_id: str) -> bool:
    """The job's process has ended, and the server waits for what its sites say."""
    results = has_finished(federation.kits / SERVER / job_id / RESULTS)
    return results and not federation.processes(SERVER, job=True)


@pytest.mark.parametrize("moment", [launched, ending, ended])
def test_a_job_ends_with_results_if_its_server_dies_at_its_beginning_or_end(
    federation: LoopbackFederation, tmp_path: Path, moment: Callable[[LoopbackFederation, str], bool]
) -> None:
    """SIGKILL of the server's own process. At the end the sites' processes of the job are over before it is back: no
    site can say any more how its own ended."""
    (server,) = federation.processes(SERVER, job=False)
    changes = {"options": {**JOB.options, "rounds": 2}, "seed": server.pid, "round_timeout": 120.0}
    export_job(JOB.model_copy(update=changes), tmp_path / "job")
    job_id = federation.submit(tmp_path / "job")
    wait_for(lambda: moment(federation, job_id), 0.005)
    server.kill()
    server.wait()
    if moment is not launched:
        others = [process for name in (SERVER, *SITES) for process in federation.processes(name, job=True)]
        psutil.wait_procs(others, timeout=60)
    federation.start(SERVER)
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    results = json.loads((federation.results(job_id) / "results.json").read_text())
    assert results["status"] == "finished" and len(results["rounds"]) == 2 and results["missing_at_end"] == []
    wait_for(lambda: not launched(federation, job_id))
    for name in SITES:
        audit = federation.kits / name / "audit"
        wait_for(lambda audit=audit: [e for e in read(audit) if e.job == job_id][-1].event is Event.CLOSE)
        assert verify(audit).ok
