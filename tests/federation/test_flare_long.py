"""A job of many rounds leaves nothing behind in the processes that run it."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.progress import ProgressReader
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import site_yaml

pytestmark = [
    pytest.mark.release,
    pytest.mark.timeout(900),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

SITES = {"abdomen": "site-001", "chest": "site-002"}
BACKBONE = "medclip@random"
ROUNDS, EARLY = 60, 10
OPTIONS = {"rounds": ROUNDS, "local_epochs": 1, "local_unit": "batches", "batch_rows": 4, "blocks": 1, "hidden": 8}
JOB = JobSpec.from_dict(
    {
        "method": "prompt_pfl",
        "options": {**OPTIONS, "length": 2, "local_baseline": False},
        "data": "phantom",
        "backbone": BACKBONE,
    }
)
MARGIN = 12
"""Threads and descriptors that come and go with what a process is doing at the moment; before, 50 rounds left 150."""
PATIENCE = 600.0  # seconds


@pytest.fixture
def federation(tmp_path: Path, random_backbone: Path) -> Iterator[LoopbackFederation]:
    """Two phantom sites and a server, all on the loopback interface."""
    paths = {}
    for name, organ in SITES.items():
        facts = {"reader": "phantom", "organ": organ, "methods": ["prompt_pfl"], "state": "../state"}
        paths[name] = tmp_path / f"{name}.yml"
        paths[name].write_text(site_yaml(**facts, audit="../audit", backbones={BACKBONE: str(random_backbone)}))
    with LoopbackFederation(tmp_path / "federation", paths) as federation:
        yield federation


def counts(federation: LoopbackFederation) -> dict[int, tuple[str, int, int]]:
    """Of each process of Python: whose it is, its threads and its descriptors."""
    found = {}
    for party in (SERVER, *SITES):
        for process in [*federation.processes(party, job=False), *federation.processes(party, job=True)]:
            if process.name() != "bash":
                found[process.pid] = _counted(party, process)
    return found


def _counted(party: str, process: psutil.Process) -> tuple[str, int, int]:
    return party, process.num_threads(), process.num_fds()


def reach(federation: LoopbackFederation, job_id: str, reader: ProgressReader, round: int) -> None:
    """Until a site has answered in that round; fails the test if none ever does."""
    end = time.monotonic() + PATIENCE
    while not any(event.round >= round for event in reader.events(federation.results(job_id))):
        assert time.monotonic() < end, "waited too long"
        assert not federation.finished(job_id), "the job was over before that round"
        time.sleep(0.1)


def test_threads_and_descriptors_do_not_grow_with_the_rounds(federation: LoopbackFederation, tmp_path: Path) -> None:
    """After 60 rounds no process of server or sites has more of them than after 10, but for a few."""
    export_job(JOB, tmp_path / "job")
    job_id, reader = federation.submit(tmp_path / "job"), ProgressReader()
    reach(federation, job_id, reader, EARLY)
    early = counts(federation)
    assert len(early) == 2 * (1 + len(SITES))
    reach(federation, job_id, reader, ROUNDS)
    late = counts(federation)
    for pid, (party, threads, descriptors) in early.items():
        assert late[pid][1] <= threads + MARGIN, party
        assert late[pid][2] <= descriptors + MARGIN, party
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
