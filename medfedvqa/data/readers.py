"""The readers of data sets, by the names that commands and site configurations use."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from medfedvqa import plugins
from medfedvqa.data import phantom, slake, store_reader, vqa_rad
from medfedvqa.data.schema import VQAData
from medfedvqa.errors import ConfigError, DataError

FOLDERS: Mapping[str, Callable[[Path], VQAData]] = MappingProxyType(
    {"vqa-rad": vqa_rad.read, "slake": slake.read, "store": store_reader.read}
)
"""Sets that are read from a folder: in their publisher's layout, or a hospital's own as `medfedvqa ingest` makes it."""

READERS = (*FOLDERS, "phantom")
"""The built-in readers. Allowed distributions may bring others, which read a folder: see `medfedvqa.plugins`."""

_REGISTERED: dict[str, Callable[[Path], VQAData]] = {}
"""Readers that only this process has."""


def register_reader(name: str, function: Callable[[Path], VQAData]) -> None:
    """Registers a function that reads a set from its folder under a name, in this process only.

    A later function replaces an earlier one of the same name. Raises `ConfigError` for a built-in name.
    """
    if name in READERS:
        raise ConfigError(f"'{name}' is the name of a built-in reader: give your own set another name")
    _REGISTERED[name] = function


def is_registered(name: str) -> bool:
    """Whether only this process has the reader of this name."""
    return name in _REGISTERED


def reader_function(reader: str) -> Callable[..., VQAData]:
    """The function that reads the set. Raises `ConfigError` for a reader that is unknown or not allowed."""
    if reader in _REGISTERED:
        return _REGISTERED[reader]
    if reader not in READERS:
        outside: Callable[[Path], VQAData] | None = plugins.load("readers", reader)
        if outside is not None:
            return outside
        raise ConfigError(f"unknown data set; the sets are {', '.join(READERS)}")
    return FOLDERS.get(reader, phantom.read)


def read(reader: str, root: Path | None, organ: str | None = None, seed: int = 0) -> VQAData:
    """The data set. Of the phantom set, only the `organ` is drawn if one is named.

    `root` is the set's folder, `seed` draws the phantom set; other readers ignore what they do not need.
    Raises `ConfigError` for an unknown reader, `DataError` for a missing root, a malformed file or an organ that the
    phantom set lacks.
    """
    function = reader_function(reader)
    if function is phantom.read:
        return phantom.read((organ,) if organ else phantom.ORGANS, seed)
    if root is None or not root.is_dir():
        raise DataError(f"the data root of {reader} is missing: give its folder by --data-root or in site.yml")
    return function(root)


def organs(reader: str, root: Path | None) -> tuple[str, ...]:
    """The set's organs, in the order of its sites. Raises as `read` does."""
    return read(reader, root).organs
