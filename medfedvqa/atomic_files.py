"""Writes files atomically, one or several as one transaction, and locks files between processes.

After a crash at any moment, none of a transaction's files counts or all. Each is prepared next to its place. An
atomically written list of the places then decides that they will be moved. While that list exists, a site does not
start, and `finish` moves the remaining files. A file that is already at a place is renamed and never removed.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from audits.bounded_files import MAX_TEXT, read_bounded
from audits.log_files import sync_folder
from medfedvqa.errors import ConfigError

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


PENDING = ".restore-pending.json"
"""The name of the list, next to `site.yml`."""


def require_none_pending(folder: Path) -> None:
    """Raises `ConfigError` while the list in this folder says that files are still to be moved."""
    if (folder / PENDING).exists():
        raise ConfigError(
            "a restore of this site was interrupted, or a rotation of its keys: run that command again, which finishes "
            "it, before the site starts"
        )


def prepared_at(place: Path) -> Path:
    """The path at which the file or folder for a place is prepared."""
    return place.with_name(f".{place.name}.restored")


def decide(folder: Path, places: Sequence[Path], aside: str) -> None:
    """Records that the prepared files, which are on disk, will replace these places; `finish` moves them.

    A file that is already at a place is renamed: its name gets an ending that begins with `aside`.
    """
    for parent in {place.parent for place in places}:
        sync_folder(parent)
    decision = {"aside": f"{aside}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}", "places": [str(place) for place in places]}
    write_whole(folder / PENDING, json.dumps(decision).encode(), PRIVATE)
    sync_folder(folder)


def finish(folder: Path) -> bool:
    """Moves the files of a recorded decision; returns whether one existed. Raises `ConfigError` for a damaged list."""
    if not (folder / PENDING).exists():
        return False
    try:
        decision = json.loads(read_bounded(folder / PENDING, MAX_TEXT))
        aside, places = str(decision["aside"]), list(map(Path, decision["places"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"'{PENDING}' beside site.yml is damaged: restore into a new folder") from None
    for place in places:
        prepared = prepared_at(place)
        if os.path.lexists(prepared):
            if os.path.lexists(place):
                place.rename(place.with_name(f"{place.name}.{aside}"))
            prepared.rename(place)
        sync_folder(place.parent)
    (folder / PENDING).unlink()
    sync_folder(folder)
    return True


def prepare(place: Path, source: Path) -> None:
    """Moves a file or folder from `source`, also on another disk, to its prepared path, and syncs it to disk."""
    prepared = prepared_at(place)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if prepared.is_dir():
        shutil.rmtree(prepared)
    prepared.unlink(missing_ok=True)
    shutil.move(source, prepared)
    for path in [prepared, *prepared.rglob("*")]:
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
