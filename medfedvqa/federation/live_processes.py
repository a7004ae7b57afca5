"""A site's live processes: each holds a file lock, which the kernel releases when the process dies."""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from audits.log_files import RUNNING, is_held, running_jobs

COURIER = "courier.lock"
"""The lock of FLARE's lasting process, in the kit's folder."""


@dataclass(frozen=True)
class LiveProcesses:
    """The processes of one site that are alive."""

    site: bool
    """Whether the FLARE process is running through which the site takes part in the federation."""
    jobs: frozenset[str]
    """The ids of the jobs on which a process of the vault works."""


def live_processes(audit: Path, kit: Path) -> LiveProcesses:
    """The processes of the site with the audit log in this folder and this kit."""
    return LiveProcesses(is_held(kit / COURIER), running_jobs(audit))


@contextmanager
def working_on(audit: Path, job_id: str) -> Iterator[None]:
    """Wait until no other process works on the job, then hold its lock."""
    path = audit / RUNNING / job_id
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = _locked(path)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def end_work(audit: Path, job_id: str) -> None:
    """Kill the job's process, if there is one. The state on disk is then that of the last finished task."""
    path = audit / RUNNING / job_id
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.kill(int(os.pread(file, 32, 0)), signal.SIGKILL)
            fcntl.flock(file, fcntl.LOCK_EX)
        finally:
            path.unlink(missing_ok=True)
            os.close(file)


def _locked(path: Path) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        os.close(file)  # whoever worked on the job removed it while this process waited
