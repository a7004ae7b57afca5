"""A lock between processes of this machine, which the system releases when its holder ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from medfedvqa.atomic_files import PRIVATE


@contextmanager
def locked(path: Path, unwritable: Exception, busy: Exception | None = None) -> Iterator[None]:
    """Hold the lock of this file, which is made if it is missing.

    Raises `unwritable` if the file cannot be opened. While another process holds the lock, raises `busy`, or waits
    if that is None.
    """
    try:
        lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except OSError:
        raise unwritable from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError as error:
            raise busy or error from None
        yield
    finally:
        os.close(lock)
