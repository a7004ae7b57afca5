"""Lets one process at a time work on a job, and lets the site end it: a lock on a file beside the job's state."""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def working_on(state: Path, job_id: str) -> Iterator[None]:
    """Wait until no other process works on the job, then be the one that does."""
    state.mkdir(parents=True, exist_ok=True)
    file = _locked(state / f"{job_id}.lock")
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(file)


def _locked(path: Path) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        os.close(file)  # the job ended, and its state went, while this process waited


def end_work(state: Path, job_id: str) -> None:
    """Kill the process that works on the job, if there is one: its state is as after any task."""
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        file = os.open(state / f"{job_id}.lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.kill(int(os.pread(file, 32, 0)), signal.SIGKILL)
            fcntl.flock(file, fcntl.LOCK_EX)
        finally:
            os.close(file)
