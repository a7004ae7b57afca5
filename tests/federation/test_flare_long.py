"""A job of many rounds leaves nothing behind in the processes that run it."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from phantoms import PATIENCE, Phantoms, short_job, wait_for

from medfedvqa.federation.flare.progress import ProgressReader
from medfedvqa.federation.flare.provision import SERVER

pytestmark = pytest.mark.release

SITES = ("abdomen", "chest")
ROUNDS, EARLY = 60, 10
JOB = short_job("prompt_pfl", {"rounds": ROUNDS, "hidden": 8, "length": 2})
MARGIN = 12
"""Threads and descriptors that come and go with what a process is doing at the moment; before, 50 rounds left 150."""


@pytest.fixture
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    return phantoms(SITES, methods=["prompt_pfl"])


def counts(federation: Phantoms) -> dict[int, tuple[str, int, int]]:
    """Of each process of Python: whose it is, its threads and its descriptors."""
    found = {}
    for party in (SERVER, *SITES):
        for process in [*federation.processes(party, job=False), *federation.processes(party, job=True)]:
            if process.name() != "bash":
                found[process.pid] = _counted(party, process)
    return found


def _counted(party: str, process: psutil.Process) -> tuple[str, int, int]:
    return party, process.num_threads(), process.num_fds()


def reach(federation: Phantoms, job_id: str, reader: ProgressReader, round: int) -> None:
    """Until a site has answered in that round; fails the test if none ever does."""

    def reached() -> bool:
        assert not federation.finished(job_id), "the job was over before that round"
        return any(event.round >= round for event in reader.events(federation.results(job_id)))

    wait_for(reached)


def test_threads_and_descriptors_do_not_grow_with_the_rounds(federation: Phantoms, tmp_path: Path) -> None:
    """After 60 rounds no process has more of them than after 10, but for a few.

    At sites, FLARE's processes keep a thread for each stream of the last 65 seconds: they are as few again after that.
    """
    job_id, reader = federation.submit_job(JOB, tmp_path / "job"), ProgressReader()
    reach(federation, job_id, reader, EARLY)
    early = counts(federation)
    assert len(early) == 2 * (1 + len(SITES))
    reach(federation, job_id, reader, ROUNDS)
    late = counts(federation)
    for pid, (party, threads, descriptors) in early.items():
        assert late[pid][2] <= descriptors + MARGIN, party
        assert party != SERVER or late[pid][1] <= threads + MARGIN
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    for pid in counts(federation):
        wait_for(lambda pid=pid, most=early[pid][1] + MARGIN: psutil.Process(pid).num_threads() <= most)
