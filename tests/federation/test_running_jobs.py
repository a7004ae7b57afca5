"""A site's log that is verified while processes of jobs start, count bytes and end."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from medfedvqa.federation.flare.frame_counts import WireLedger
from nvflare.fuel.f3.cellnet.defs import CellChannel
from test_wire_ledger import DATA, SITE, frame, key_at

import audits
from audits import Examination, VerdictPart, VerdictState, examine

PAYLOAD = 700
_JOB = """
import sys
from pathlib import Path
from audits import AuditKey, AuditLog, Event
from medfedvqa.federation.flare.frame_counts import WireLedger
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import Prefix
audit, job = Path(sys.argv[1]), sys.argv[2]
key = AuditKey.at(audit / "audit.key", "medfedvqa/audit/chest")
ledger = WireLedger(audit, "chest", job, key)
heads = {MessageHeaderKey.ORIGIN: f"chest.{job}", MessageHeaderKey.DESTINATION: "server"}
heads |= {MessageHeaderKey.MSG_TYPE: "req", MessageHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND}
heads |= {MessageHeaderKey.TOPIC: "get_task"}
for line in sys.stdin:
    if line == "open\\n":
        AuditLog(audit, "chest", key).append(Event.OPEN, job=job)
    if line == "send\\n":
        ledger.announce(700)
        ledger.admit(Prefix(type=Types.DATA), heads, 700, "chest")
    if line == "flush\\n":
        ledger.flush()
    if line == "end\\n":
        AuditLog(audit, "chest", key).append(Event.CLOSE, job=job)
        ledger.flush(last=True)
    print("done", flush=True)
"""
"""The process of a job, which does what it is asked for and says when it is done."""


class JobProcess:
    """A real process that counts what it sends."""

    def __init__(self, audit: Path, job: str) -> None:
        self.job = job
        self._process = subprocess.Popen(
            [sys.executable, "-c", _JOB, str(audit), job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(audits.__file__).parents[1])},
        )

    def do(self, *words: str) -> None:
        assert self._process.stdin and self._process.stdout
        for word in words:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
            assert self._process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def pass_on(ledger: WireLedger, job: str) -> None:
    """The site's own process sends a frame of a job to the server, and logs its counts."""
    ledger.announce(PAYLOAD)
    ledger.admit(DATA, frame(CellChannel.SERVER_COMMAND, "get_task", f"{SITE}.{job}"), PAYLOAD, "server")
    ledger.flush()


def swept(ledger: WireLedger) -> int:
    """How many files a site takes up that sweeps until it finds some; what a verifier looks at is left for later."""
    deadline = time.monotonic() + 60
    while not (count := ledger.sweep()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return count


def part(found: Examination, name: str) -> VerdictPart:
    return next(part for _, verdict in found.verdicts() for part in verdict.parts if part.name == name)


@contextmanager
def verified_all_the_time(audit: Path) -> Iterator[list[VerdictPart]]:
    """Verifies in a loop; what is broken in any of the verdicts."""
    broken: list[VerdictPart] = []
    over = threading.Event()

    def loop() -> None:
        while not over.is_set():
            found = examine(audit, SITE)
            broken.extend(
                one for _, verdict in found.verdicts() for one in verdict.parts if one.state is VerdictState.BROKEN
            )

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield broken
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(300)
def test_no_verdict_is_broken_while_jobs_start_run_and_end(tmp_path: Path) -> None:
    """Whatever of a job's bytes the site passed on before the job's process logged its own counts of them."""
    ledger = WireLedger(tmp_path, SITE, None, key_at(tmp_path))
    ledger.flush(last=False)
    with verified_all_the_time(tmp_path) as broken:
        for name in ("job-1", "job-2"):
            job = JobProcess(tmp_path, name)
            try:
                job.do("open", "send")
                pass_on(ledger, name)  # before the job's process has an entry
                found = examine(tmp_path, SITE)
                assert part(found, "wire").state is VerdictState.NOT_SHOWN
                assert "1 job is running" in part(found, "wire").said
                assert (
                    part(found, "jobs").state is VerdictState.SHOWN and "1 job is running" in part(found, "jobs").said
                )
                job.do("flush", "send", "end", "send")
                pass_on(ledger, name)
                pass_on(ledger, name)  # the last frame is sent after the last counts of the job's process were logged
                assert part(examine(tmp_path, SITE), "wire").state is VerdictState.NOT_SHOWN
            finally:
                job.kill()
            found = examine(tmp_path, SITE)
            assert part(found, "wire").state is VerdictState.NOT_SHOWN  # nobody has taken up what the process left
            assert swept(ledger) == 1
            found = examine(tmp_path, SITE)
            assert part(found, "wire").state is VerdictState.SHOWN and part(found, "jobs").state is VerdictState.SHOWN
        assert broken == []


@pytest.mark.timeout(300)
def test_only_the_counts_of_jobs_that_run_are_waited_for(tmp_path: Path) -> None:
    """Bytes of another job that nothing explains break the verdict meanwhile, and so they do in a copy of the log."""
    ledger = WireLedger(tmp_path, SITE, None, key_at(tmp_path))
    job = JobProcess(tmp_path, "job-1")
    try:
        job.do("send")
        pass_on(ledger, "job-1")
        assert part(examine(tmp_path, SITE), "wire").state is VerdictState.NOT_SHOWN
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "log.jsonl").write_bytes((tmp_path / "log.jsonl").read_bytes())
        assert part(examine(copy, SITE), "wire").state is VerdictState.BROKEN
        assert part(examine(copy, SITE, running=["job-1"]), "wire").state is VerdictState.NOT_SHOWN
        pass_on(ledger, "job-0")
        assert part(examine(tmp_path, SITE), "wire").state is VerdictState.BROKEN
    finally:
        job.kill()
