"""Files that a site creates once and never replaces, such as its secrets."""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from audits.bounded_files import open_plain

SECRET_BYTES = 32


class SecretError(Exception):
    """A secret's file cannot be trusted. The text names no path; callers put the secret's name before it."""


def place_new(path: Path, fill: Callable[[Path], object]) -> bool:
    """Creates the file `path` with mode 0600, whole or not at all; False if it exists already and stays as it is.

    `fill` writes into the empty file at the path that it receives, and syncs it to disk.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    os.close(descriptor)
    try:
        fill(Path(name))
        os.link(name, path)  # unlike a rename, never replaces a file
    except FileExistsError:
        return False
    finally:
        os.unlink(name)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def make_secret(path: Path, secret: bytes | None = None) -> bool:
    """Creates a file with a secret, by default 32 random bytes; False if it exists already and stays as it is."""

    def fill(draft: Path) -> None:
        with draft.open("wb") as file:
            file.write(os.urandom(SECRET_BYTES) if secret is None else secret)
            file.flush()
            os.fsync(file.fileno())

    return place_new(path, fill)


def read_private(path: Path, most: int) -> bytes:
    """The file, at most this many bytes of it. Raises `SecretError` if others may read it, and `OSError`."""
    with open_plain(path) as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise SecretError("may be read by others: give its file mode 0600, or make a new one")
        return file.read(most)


def read_secret(path: Path) -> bytes:
    """The 32 bytes in the file. Raises `SecretError` if others may read it or it holds no secret, and `OSError`."""
    secret = read_private(path, SECRET_BYTES + 1)
    if len(secret) != SECRET_BYTES:
        raise SecretError(f"is damaged: its file must hold {SECRET_BYTES} bytes; restore it from the site's backup")
    return secret
