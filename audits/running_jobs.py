"""A snapshot of a log while processes write it, and of the jobs that run at that moment.

A process that works on a job keeps a lock on the job's file in the folder `running` next to the log. The kernel
releases the lock when the process dies.
"""

import contextlib
import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from audits.bounded_files import open_plain
from audits.errors import LogError
from audits.log_files import LOG_NAME, closed_segments, first_entry, lines_in, lines_of, number_of

RUNNING = "running"
"""The folder of the jobs' lock files, next to the log."""
_MOST = 10_000  # files that are looked at
_PATIENCE = 5.0  # seconds to wait for whoever writes the log
_PAUSE = 0.01


class Snapshot:
    """The files of a log and its running jobs at the moment of construction; later lines are left out.

    Raises `LogError` if there is no log to read.
    """

    def __init__(self, folder: Path) -> None:
        with _log_errors(), contextlib.ExitStack() as stack:
            self._growing = _locked(folder, stack)
            self._size = os.fstat(self._growing.fileno()).st_size if self._growing else 0
            self._closed = list(closed_segments(folder).values())
            self.running = running_jobs(folder)
        if not self._closed and not self._growing:
            raise LogError("the audit log cannot be read: there is none in this folder")
        if self._growing:
            weakref.finalize(self, self._growing.close)

    def first(self) -> int | None:
        """The number of the first entry; None if there is none. Raises `LogError`."""
        with _log_errors():
            return first_entry(self._closed[0]) if self._closed else number_of(next(self._newest(), b""))

    def lines(self) -> Iterator[bytes]:
        """The lines of all files, with their line feeds, each of at most MAX_LINE + 1 bytes.

        Raises `LogError`.
        """
        with _log_errors():
            for path in self._closed:
                for line in lines_of(path):
                    if not line.endswith(b"\n") and (self._growing or path != self._closed[-1]):
                        raise LogError("a closed file of the log ends in the middle of an entry")
                    yield line
            yield from self._newest()

    def _newest(self) -> Iterator[bytes]:
        """The lines of the growing file, up to its end at the moment of the snapshot."""
        if self._growing is not None:
            self._growing.seek(0)
            yield from lines_in(self._growing, self._size)


def _locked(folder: Path, stack: contextlib.ExitStack) -> BinaryIO | None:
    """The growing file, locked against writers until the stack ends; None if there is none.

    After `_PATIENCE` seconds it is read without the lock; then a job that starts meanwhile may be overlooked.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            file = open_plain(folder / LOG_NAME, 1 << 18)
        except FileNotFoundError:
            return None
        while not _is_free(file) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(folder / LOG_NAME)):
                stack.callback(fcntl.flock, file.fileno(), fcntl.LOCK_UN)
                return file
        file.close()  # it has become a closed file since it was opened
        if time.monotonic() > deadline:
            raise LogError("the audit log's newest file is replaced all the time: have a copy verified")


def _is_free(file: BinaryIO) -> bool:
    """Takes a shared lock, which keeps writers out; False if a writer holds the file locked."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: nobody writes there
    return True


def running_jobs(folder: Path) -> frozenset[str]:
    """The ids of the jobs that running processes work on, by the locked files in the log's folder.

    A file that this account may not read counts as not locked.
    """
    files = islice((folder / RUNNING).iterdir(), _MOST) if (folder / RUNNING).is_dir() else ()
    return frozenset(path.name for path in files if is_held(path))


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock of this file."""
    with contextlib.suppress(OSError), open_plain(path) as file:
        return not _is_free(file)
    return False


@contextlib.contextmanager
def _log_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogError(f"the audit log cannot be read ({error.strerror})") from None
