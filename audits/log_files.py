"""The files of a log: closed segments such as `log-004711.jsonl`, and `log.jsonl`, which still grows.

The number of a closed segment is that of its first entry.
"""

import contextlib
import fcntl
import json
import os
import re
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
        raise LogError("the audit log cannot be read: there is none in this folder")
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
        raise LogError("the audit log lacks entries that are needed: they are expired, or were removed")
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
