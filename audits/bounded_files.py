"""Reads untrusted files: plain files only, and at most as many bytes as their kind may have.

A link to a device, a pipe, a folder or a file without end is refused before a byte of it is read.
"""

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from audits.errors import NewerFormat

MAX_TEXT = 1 << 20
"""The most bytes of a file that people write, or of a list of keys."""
MAX_NOTES = 1 << 28
"""The most bytes of a file of signed notes that others hold."""
MAX_DOCUMENT = 1 << 26
"""The most bytes of a JSON document, such as results or a report."""


def open_plain(path: Path, buffering: int = -1) -> BinaryIO:
    """Opens a plain file, or a link to one, for reading. Raises `OSError` for anything else; never blocks."""
    _check(os.stat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check(os.fstat(descriptor).st_mode)  # the name may have become another file's in between
        return open(descriptor, "rb", buffering=buffering)
    except BaseException:
        os.close(descriptor)
        raise


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a plain file. Raises `OSError` if it is not a plain file or has more than `limit` bytes."""
    with open_plain(path, 0) as file:
        if os.fstat(file.fileno()).st_size <= limit:
            content = bytearray()
            while len(content) <= limit and (block := file.read(1 << 20)):
                content += block
            if len(content) <= limit:
                return bytes(content)
    raise OSError(errno.EFBIG, f"it has more than the {limit} bytes that such a file may have")


def _check(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a plain file")


_NAME = re.compile(r"(.+[ /])([1-9][0-9]{0,8})")


def check_number(name: object, expected: str, what: str) -> bool:
    """Whether a file's format has the name `expected`.

    Raises `NewerFormat`, with `what` in its text, for the same name with a higher number.
    """
    this, that = _NAME.fullmatch(name) if isinstance(name, str) else None, _NAME.fullmatch(expected)
    if this and that and this[1] == that[1] and int(this[2]) > int(that[2]):
        raise NewerFormat(what)
    return name == expected
