"""A site's log that is verified while processes of jobs start, write and end."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from audits import AuditKey, Examination, VerdictPart, VerdictState, examine, origin_of
from audits.log_files import RUNNING

SITE = "chest"
_JOB = """
import sys
from pathlib import Path
from audits import AuditKey, AuditLog, Event
from audits.byte_ledger import VAULT, ResultCount, WireWindow
from medfedvqa.federation.live_processes import working_on
audit, job = Path(sys.argv[1]), sys.argv[2]
log = AuditLog(audit, "chest", AuditKey.at(audit / "audit.key", "medfedvqa/audit/chest"))
with working_on(audit, job):
    for line in sys.stdin:
        if line == "open\\n":
            log.append(Event.OPEN, job=job)
        if line == "count\\n":
            answer = ResultCount("train", 1, 1, 1, 700, 0, 900)
            log.append(Event.WIRE, job=job, wire=WireWindow(VAULT, job, 0, True, results=(answer,)).record())
        if line == "end\\n":
            log.append(Event.CLOSE, job=job)
            log.checkpoint()
        print("done", flush=True)
"""
"""The process of a job, which does what it is asked for and says when it is done."""


class JobProcess:
    """A real process that works on a job."""

    def __init__(self, audit: Path, job: str) -> None:
        command = [sys.executable, "-c", _JOB, str(audit), job]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, *words: str) -> None:
        assert self._process.stdin and self._process.stdout
        for word in words:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
            assert self._process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def part(found: Examination, name: str) -> VerdictPart:
    return next(part for _, verdict in found.verdicts() for part in verdict.parts if part.name == name)


@contextmanager
def verified_all_the_time(audit: Path) -> Iterator[list[VerdictPart]]:
    """Verifies in a loop; what is broken in any of the verdicts."""
    broken: list[VerdictPart] = []
    over = threading.Event()

    def loop() -> None:
        while not over.is_set():
            for _, verdict in examine(audit, SITE).verdicts():
                broken.extend(one for one in verdict.parts if one.state is VerdictState.BROKEN)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield broken
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(300)
def test_a_job_is_running_as_long_as_its_process_lives_and_no_verdict_is_broken_meanwhile(tmp_path: Path) -> None:
    """Whoever verifies a log of a site that works need not say which jobs run; a killed one is told as not closed."""
    AuditKey.at(tmp_path / "audit.key", origin_of(SITE))
    first = JobProcess(tmp_path, "job-1")
    first.do("open")
    with verified_all_the_time(tmp_path) as broken:
        found = part(examine(tmp_path, SITE), "jobs")
        assert found.state is VerdictState.SHOWN and "1 job is running" in found.said
        second = JobProcess(tmp_path, "job-2")
        second.do("open", "end")
        second.kill()
        first.kill()
        found = part(examine(tmp_path, SITE), "jobs")
        assert found.state is VerdictState.NOT_SHOWN and "1 job was not closed: it runs" in found.said
    assert broken == [] and {path.name for path in (tmp_path / RUNNING).iterdir()} == {"job-1", "job-2"}


def test_bytes_that_no_release_holds_break_the_verdict_of_a_job_that_runs_as_well(tmp_path: Path) -> None:
    """The vault counts what it sent after the gate wrote the release, so there is nothing to wait for."""
    job = JobProcess(tmp_path, "job-1")
    try:
        job.do("open", "count")
        found = part(examine(tmp_path, SITE), "wire")
        assert found.state is VerdictState.BROKEN and "700 bytes" in found.said
    finally:
        job.kill()
