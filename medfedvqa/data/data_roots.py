"""Where a data set is: from the command's options and the environment."""

import os
from pathlib import Path

from medfedvqa.data.readers import READERS
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.store import MANIFEST
from medfedvqa.near_miss import suggestion
from medfedvqa.plugins import allowed, check

PHANTOM = "phantom"
STORE = "store"
DEFAULT_SET = "vqa-rad"
BENCHMARKS = {"vqa-rad": "VQA_RAD Dataset Public.json", "slake": "train.json"}
"""Published sets, each with a file by which its folder is recognised."""
MARKS = {**BENCHMARKS, STORE: MANIFEST}
VARIABLE = "MEDFEDVQA_DATA"
DRAWN = "No --data-root and no $MEDFEDVQA_DATA: this run uses the phantom set, which the project draws itself."


def find_root(reader: str, given: Path | None) -> tuple[str, Path | None]:
    """The reader and its folder. The path of a store means that store. An empty `reader` means VQA-RAD in the folder
    that is given; only where no folder is given, by option or environment, it means the drawn phantom set.

    Raises `ConfigError` for an unknown reader or a folder that does not exist, `DataError` if it holds no such data.
    """
    if reader and reader not in READERS and check("readers", reader, allowed()):
        if given is None:
            raise ConfigError(f"the reader '{reader}' reads a folder: give it by --data-root")
        return reader, given
    if reader and reader not in READERS:
        return STORE, _store(Path(reader), reader)
    named = _folder(given)
    if reader == PHANTOM:
        if given is not None:
            raise ConfigError("the phantom set is drawn and has no folder: leave --data-root out")
        return PHANTOM, None
    if named is None and not reader:
        return PHANTOM, None
    wanted = reader or DEFAULT_SET
    places = [named, named / wanted] if named else []
    for folder in [*places, Path(STORE)] if reader == STORE else places:
        if folder.is_dir() and (wanted not in MARKS or (folder / MARKS[wanted]).is_file()):
            return wanted, folder
    if named is None:
        raise DataError(f"no {wanted} data is found: give its folder by --data-root or ${VARIABLE}")
    raise DataError(
        f"no {wanted} data is found in '{named}': it should hold '{MARKS[wanted]}', directly or in its folder "
        f"'{wanted}'; --data names another set"
    )


def _store(folder: Path, typed: str) -> Path:
    if (folder / MANIFEST).is_file():
        return folder
    known = f"the sets are {', '.join(READERS)}, and the folder of a store that ingest made"
    hint = suggestion(typed, READERS) or known
    raise ConfigError(f"unknown data '{typed}': {hint}")


def _folder(given: Path | None) -> Path | None:
    """The folder of the option, or of the environment. Raises `ConfigError` if it does not exist."""
    if given is not None:
        name, folder = "--data-root", given
    elif os.environ.get(VARIABLE):
        name, folder = f"${VARIABLE}", Path(os.environ[VARIABLE])
    else:
        return None
    if not folder.is_dir():
        raise ConfigError(f"the folder '{folder}' of {name} does not exist: check its spelling")
    return folder
