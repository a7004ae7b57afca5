"""The files of a log: closed segments such as `log-004711.jsonl`, and `log.jsonl`, which still grows; and a snapshot of
them while processes write, with the jobs that run at that moment.

The number of a closed segment is that of its first entry.

A process that works on a job keeps a lock on the job's file in the folder `running` next to the log. The kernel
releases the lock when the process dies.
"""

import contextlib
import fcntl
import json
import os
import re
import time
import weakref
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from audits.bounded_files import open_plain
from audits.errors import LogError

LOG_NAME = "log.jsonl"
MAX_ENTRIES = 1 << 48
MAX_LINE = 1 << 24  # bytes; bounds the memory that reading a damaged log can take
_CLOSED = re.compile(r"log-([0-9]{6,})\.jsonl")


def closed_segments(folder: Path) -> dict[int, Path]:
    """The closed segments by the numbers of their first entries, in order; expired ones are gone."""
    paths = {int(match[1]): path for path in folder.glob("log-*.jsonl") if (match := _CLOSED.fullmatch(path.name))}
    return dict(sorted(paths.items()))


def segment_name(first: int | None) -> str:
    """The name of the closed segment that begins with this entry."""
    return f"log-{first or 0:06d}.jsonl"


def segments(folder: Path) -> list[Path]:
    """All files of the log in order, the one that grows last; empty if there is no log."""
    growing = folder / LOG_NAME
    return [*closed_segments(folder).values(), *([growing] if growing.is_file() else [])]


def present_segments(folder: Path) -> list[Path]:
    """Like `segments`. Raises `LogError` if there is no log."""
    files = segments(folder)
    if not files:
        raise LogError("this folder has no audit log")
    return files


def first_entry(path: Path) -> int | None:
    """The number of the first entry of a segment; None if it has none. Raises `LogError`, `OSError`."""
    with open_plain(path) as file:
        return number_of(file.readline(MAX_LINE + 1))


def number_of(line: bytes) -> int | None:
    """The number of the entry in a segment's first line; None if the line is incomplete. Raises `LogError`."""
    if not line.endswith(b"\n"):
        return None
    try:
        seq = json.loads(line)["seq"]
        if type(seq) is int and 0 <= seq < MAX_ENTRIES:
            return seq
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise LogError("the audit log's first entry is damaged: have the log verified")


def lines_from(folder: Path, begin: int) -> Iterator[bytes]:
    """The lines from entry `begin` on, over all segments. Raises `LogError` if they are missing, `OSError`."""
    files = list(closed_segments(folder).items())
    growing = first_entry(folder / LOG_NAME) if (folder / LOG_NAME).exists() else None
    if growing is not None:
        files.append((growing, folder / LOG_NAME))
    if not files or files[0][0] > begin:
        raise LogError("the audit log lacks entries that are needed: they expired or were removed")
    rest = [file for file, after in zip(files, [*files[1:], None], strict=True) if not after or after[0] > begin]
    for first, path in rest:
        yield from lines_of(path, skip=max(0, begin - first))


def last_line(file: int, size: int) -> tuple[bytes, int]:
    """The last complete line of a file of `size` bytes, and the offset of its end; empty and 0 if there is none.

    Raises `LogError` if it is longer than any entry.
    """
    span = 1 << 16
    while True:
        begin = max(0, size - span)
        block = os.pread(file, size - begin, begin)
        end = block.rfind(b"\n") + 1
        line = block.rfind(b"\n", 0, max(end - 1, 0)) + 1
        if line or begin == 0:
            return block[line:end], begin + end
        if span > 2 * MAX_LINE:
            raise LogError("the audit log ends in a line longer than any entry: have it verified")
        span *= 2


def lines_of(path: Path, skip: int = 0, offset: int = 0) -> Iterator[bytes]:
    """Lines of a segment from `offset` on, with their line feeds, each of at most MAX_LINE + 1 bytes.

    `skip`: the number of lines to leave out first. Raises `OSError`.
    """
    with open_plain(path, 1 << 18) as file:
        file.seek(offset)
        yield from islice(lines_in(file), skip, None)


def lines_in(file: BinaryIO, size: int = 1 << 62) -> Iterator[bytes]:
    """Like `lines_of`, for the next `size` bytes of an open file."""
    while line := file.readline(size if size <= MAX_LINE else MAX_LINE + 1):
        size -= len(line)
        yield line


@contextlib.contextmanager
def held_still(folder: Path) -> Iterator[None]:
    """While the block runs, processes that would add an entry or a checkpoint to the log wait. Raises `OSError`."""
    path = folder / LOG_NAME
    while True:
        with open_plain(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # a writer's lock is exclusive
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield
                return


def sync_folder(folder: Path) -> None:
    """Writes the folder's names to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


RECEIPTS = "receipts"
"""The folder, in a run's output, of the server's log of messages that it received."""
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
            raise LogError("this folder has no audit log")
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
            raise LogError("the audit log's newest file keeps being replaced: have a copy verified")


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
