"""The folder of a data set, from the command's options and the environment."""

import os
from collections.abc import Sequence
from pathlib import Path

from medfedvqa.bounds import JOIN
from medfedvqa.data.layouts import expected, hint, of_reader
from medfedvqa.data.readers import READERS, reader_function, sets_of
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.store import MANIFEST
from medfedvqa.near_miss import suggestion
from medfedvqa.plugins import allowed, check

PHANTOM = "phantom"
STORE = "store"
DEFAULT_SET = "vqa-rad"
VARIABLE = "MEDFEDVQA_DATA"
DRAWN = "No --data-root and no $MEDFEDVQA_DATA: this run uses the phantom set, which the project draws itself."


def find_root(reader: str, root: Path | None) -> tuple[str, Path | None]:
    """The name of the reader to use, and the data's folder.

    `reader`: a reader's name or a store's path; if empty, VQA-RAD where a folder is given, else the phantom set.
    `root`: the option --data-root; without it the environment names the folder.

    Raises `ConfigError` for an unknown reader or a folder that does not exist, `DataError` if it holds no such data.
    """
    if JOIN in reader and not Path(reader).exists():
        return reader, _root_of_all(reader, root)
    if reader and reader not in READERS and check("readers", reader, allowed()):
        if root is None:
            raise ConfigError(f"the reader '{reader}' reads a folder: give it by --data-root")
        return reader, root
    if reader and reader not in READERS:
        return STORE, _store(Path(reader), reader)
    folder = _folder(root)
    if reader == PHANTOM:
        if root is not None:
            raise ConfigError("the phantom set is synthetic and has no folder: leave out --data-root")
        return PHANTOM, None
    if folder is None and not reader:
        return PHANTOM, None
    name = reader or DEFAULT_SET
    places = [folder, folder / name] if folder else []
    for place in [*places, Path(STORE)] if reader == STORE else places:
        if place.is_dir() and holds(name, place):
            return name, place
    if folder is None:
        raise DataError(f"no {name} data is found: give its folder by --data-root or ${VARIABLE}")
    raise DataError(
        f"no {name} data is found in '{folder}': it should hold {expected(name) or repr(MANIFEST)}, directly or in its "
        f"folder '{name}'{hint(folder) or '; --data names another set'}"
    )


def holds(reader: str, folder: Path) -> bool:
    """Whether a folder looks like the set's: by its files, for a set that has a known form."""
    if reader == STORE:
        return (folder / MANIFEST).is_file()
    layouts = of_reader(reader)
    return not layouts or any(layout.fits(folder) for layout in layouts)


def _root_of_all(reader: str, root: Path | None) -> Path | None:
    """The folder that holds a folder for each of several sets; None if all are drawn. Raises `DataError`."""
    reader_function(reader)
    names = [name for name in sets_of(reader) if name != PHANTOM]
    folder = _folder(root)
    for name in names:
        if folder is None or not (folder / name).is_dir():
            raise DataError(f"no {name} data is found: --data-root is the folder that holds a folder '{name}'")
    return folder if names else None


def first_root(readers: Sequence[str], root: Path | None) -> tuple[str, Path | None]:
    """The first of these readers whose data the folder of the option or the environment holds, and their folder.

    Without any folder it is the phantom set. Raises `ConfigError` for a folder that does not exist, `DataError` if it
    holds none of them.
    """
    folder = _folder(root)
    if folder is None:
        return PHANTOM, None
    for name in readers:
        for place in (folder, folder / name):
            if holds(name, place):
                return name, place
    raise DataError(f"no data of {' or '.join(readers)} is found in '{folder}', nor in a folder of that name in it")


def _store(folder: Path, typed: str) -> Path:
    if (folder / MANIFEST).is_file():
        return folder
    hint = (
        suggestion(typed, READERS) or f"the sets are {', '.join(READERS)}, and the folder of a store that ingest made"
    )
    raise ConfigError(f"unknown data '{typed}': {hint}")


def _folder(root: Path | None) -> Path | None:
    """The folder of the option, or of the environment. Raises `ConfigError` if it does not exist."""
    if root is not None:
        name, folder = "--data-root", root
    elif os.environ.get(VARIABLE):
        name, folder = f"${VARIABLE}", Path(os.environ[VARIABLE])
    else:
        return None
    if not folder.is_dir():
        raise ConfigError(f"the folder '{folder}' of {name} does not exist: check its spelling")
    return folder
