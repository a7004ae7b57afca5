"""Writes files atomically, and locks files between processes."""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

PRIVATE = 0o600
"""The mode of a file for the site's own account only."""


def write_whole(path: Path, content: bytes | Iterable[bytes], mode: int = 0o666) -> Path:
    """Writes a temporary file, then renames it to `path`; makes the folder. A crash leaves the old file or none.

    `content` may be an iterable of pieces: each is written as it comes, so the whole need not fit in memory.

    The process's umask applies to `mode`, as for any new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def hold(path: Path) -> int | None:
    """Locks this file until the returned descriptor is closed; returns None if another process holds the lock."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
