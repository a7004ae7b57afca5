"""Puts several files and folders in place as one transaction: after a crash at any moment, none of them counts or all.

Each is prepared next to its place. An atomically written list of the places then decides that they will be moved. While
that list exists, a site does not start, and `finish` moves the remaining files. A file that is already at a place is
renamed and never removed.
"""

import json
import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from audits.bounded_files import MAX_TEXT, read_bounded
from audits.log_files import sync_folder
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import ConfigError

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
