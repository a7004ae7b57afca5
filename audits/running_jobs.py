"""A snapshot of a log while processes write it, and of the jobs that count bytes on the network at that moment.

Each process of a site keeps its newest counts in a journal, a file in the folder `wire` beside the log, and holds that
file locked while it lives. A journal goes only after its counts are in the log. Looking at the journals while nobody
can write the log therefore tells of which jobs the log does not have all counts yet.
"""

import contextlib
import fcntl
import json
import os
import re
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from audits.bounded_files import open_plain
from audits.errors import LogError
from audits.log_files import LOG_NAME, closed_segments, first_entry, lines_in, lines_of, number_of

JOURNALS = "wire"
"""The folder of the journals, beside the log."""
_JOURNAL = re.compile(r"[0-9a-f]{1,32}\.[0-9]{1,12}")
_HEADER = 4096  # bytes of a journal's first line
_MOST = 10_000  # journals that are looked at
_PATIENCE = 5.0  # seconds to wait for whoever writes the log
_PAUSE = 0.01


@dataclass(frozen=True)
class Counting:
    """Jobs whose counts are not all in the log: of `running` a process lives now, of `ended` none does any more."""

    running: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()

    @property
    def jobs(self) -> frozenset[str]:
        """The running and the ended jobs together."""
        return self.running | self.ended


class Snapshot:
    """The files of a log, and the jobs that count, at the moment when this is made; lines that come later are left out.

    Raises `LogError` if there is no log to read.
    """

    def __init__(self, folder: Path) -> None:
        with _log_errors(), contextlib.ExitStack() as stack:
            self._growing = _locked(folder, stack)
            self._size = os.fstat(self._growing.fileno()).st_size if self._growing else 0
            self._closed = list(closed_segments(folder).values())
            self.counting = _counting(folder / JOURNALS)
        if not self._closed and not self._growing:
            raise LogError("the audit log cannot be read: there is none in this folder")
        if self._growing:
            weakref.finalize(self, self._growing.close)

    def first(self) -> int | None:
        """The number of the first entry; None if there is none. Raises `LogError`."""
        with _log_errors():
            return first_entry(self._closed[0]) if self._closed else number_of(next(self._newest(), b""))

    def lines(self) -> Iterator[bytes]:
        """Lines with their line feeds, over all files; none longer than one byte more than an entry may take.

        Raises `LogError`.
        """
        with _log_errors():
            for path in self._closed:
                for line in lines_of(path):
                    if not line.endswith(b"\n") and (self._growing or path != self._closed[-1]):
                        raise LogError("a file of the log that others follow ends within an entry")
                    yield line
            yield from self._newest()

    def _newest(self) -> Iterator[bytes]:
        """The lines of the file that grows, up to where it ended."""
        if self._growing is not None:
            self._growing.seek(0)
            yield from lines_in(self._growing, self._size)


def _locked(folder: Path, stack: contextlib.ExitStack) -> BinaryIO | None:
    """The file that grows, which nobody writes until the stack ends; None if there is none.

    Whoever holds the lock for seconds is not waited for: then a job that starts meanwhile may be overlooked.
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
    """Whether nobody else holds the file locked for writing; then nobody can until it is given back."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: nobody writes there
    return True


def _counting(folder: Path) -> Counting:
    if not folder.is_dir():
        return Counting()
    running: set[str] = set()
    ended: set[str] = set()
    for path in islice((path for path in folder.iterdir() if _JOURNAL.fullmatch(path.name)), _MOST):
        with contextlib.suppress(OSError, ValueError, RecursionError), open_plain(path) as file:
            lives = not _is_free(file)
            _, _, _, job, _ = json.loads(file.readline(_HEADER))
            if isinstance(job, str):
                (running if lives else ended).add(job)
    return Counting(frozenset(running), frozenset(ended - running))


@contextlib.contextmanager
def _log_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogError(f"the audit log cannot be read ({error.strerror})") from None
