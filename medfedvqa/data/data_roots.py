"""Where a data set is, from what the user gave and what is found."""

import os
from pathlib import Path

from medfedvqa.data.readers import READERS
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.store import MANIFEST

PHANTOM = "phantom"
STORE = "store"
BENCHMARKS = {"vqa-rad": "VQA_RAD Dataset Public.json", "slake": "train.json"}
"""Published sets, and a file that tells each."""
MARKS = {**BENCHMARKS, STORE: MANIFEST}


def find_root(reader: str, given: Path | None) -> tuple[str, Path | None]:
    """The reader and its folder. An empty `reader` means VQA-RAD if it is found, else the phantom set; the path of a
    store means that store.

    Raises `ConfigError` for an unknown reader, `DataError` if the data is nowhere.
    """
    if reader and reader not in READERS and (Path(reader) / MANIFEST).is_file():
        return STORE, Path(reader)
    if reader and reader not in READERS:
        raise ConfigError(f"unknown data '{reader}'; there is: {', '.join(READERS)}, or a store's folder")
    if reader == PHANTOM:
        return PHANTOM, None
    wanted = reader or "vqa-rad"
    named = given or (Path(os.environ["MEDFEDVQA_DATA"]) if "MEDFEDVQA_DATA" in os.environ else None)
    places = [named, named / wanted] if named else []
    for folder in [*places, Path(STORE)] if reader == STORE else places:
        if (folder / MARKS[wanted]).is_file():
            return wanted, folder
    if reader:
        raise DataError(f"no {reader} data is found: give its folder by --data-root or $MEDFEDVQA_DATA")
    return PHANTOM, None
