"""What the machine's own log is told: codes and fixed sentences, over a real socket."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from audits import AuditLog, Event, Outcome, Refusal, announcements
from audits.announcements import announce_to

SECRET = "a question of a patient"


@pytest.fixture
def machine_log(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a machine's log; afterwards the process tells nobody."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "log"))
    listener.settimeout(60)
    before = list(announcements._system_logs)
    yield listener
    for system_log in announcements._system_logs:
        for handler in system_log.handlers:
            handler.close()
    announcements._system_logs[:] = before
    listener.close()


def test_refusals_and_findings_are_told_by_code_alone(tmp_path: Path, machine_log: socket.socket) -> None:
    """Priority: daemon, warning. Other entries are not told."""
    announce_to(tmp_path / "log", "chest 100%d")
    log = AuditLog(tmp_path / "audit", "chest")
    log.append(Event.OPEN, job=SECRET)
    admission = {"code": Refusal.BUDGET.value, "definition": None}
    refused = {"outcome": Outcome.REFUSED, "reason": SECRET, "admission": admission}
    log.append(Event.REFUSAL, job=SECRET, **refused)
    log.append(Event.FINDING, job=SECRET, peer="head", reason=SECRET)
    log.append(Event.CLOSE, job=SECRET)
    log.close()
    first, second = (machine_log.recv(4096).rstrip(b"\0").decode() for _ in range(2))
    assert first == f"<28>medfedvqa: site chest 100%d: a job was refused (budget): {Refusal.BUDGET.sentence}"
    assert second == "<28>medfedvqa: site chest 100%d: the audit log has a new finding: 'audit show' lists it"
    machine_log.setblocking(False)
    with pytest.raises(BlockingIOError):
        machine_log.recv(4096)


def test_a_log_that_nobody_reads_is_an_error_at_the_start(tmp_path: Path) -> None:
    """The site must not run in the belief that somebody is told."""
    with pytest.raises(OSError):
        announce_to(tmp_path / "nobody", "chest")
