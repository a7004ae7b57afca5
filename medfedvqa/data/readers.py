"""The readers of data sets, by the names that commands and site configurations use, and several sets read as one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType

import torch

from medfedvqa import plugins
from medfedvqa.bounds import JOIN
from medfedvqa.data.layouts import LAYOUTS
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import ConfigError, DataError

FOLDERS: Mapping[str, str] = MappingProxyType(
    {
        **{layout.reader: layout.place for layout in LAYOUTS},
        "store": "medfedvqa.data.store_reader:read",
        "image-classes": "medfedvqa.data.labelled:read",
    }
)
"""By reader, the `module:name` of the function that reads a set from its folder, in a published layout or as the store
that `medfedvqa ingest` makes. The module is imported when the set is named."""

READERS = (*FOLDERS, "phantom")
"""The built-in readers. Allowed distributions may bring others, which read a folder: see `medfedvqa.plugins`."""

JOINABLE = tuple(name for name in READERS if name not in ("store", "table"))
"""The readers whose sets one name can join. A store is bound to its own ledger, so it stays a site of its own; a table
has no pictures."""

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


def sets_of(reader: str) -> tuple[str, ...]:
    """The names of the sets in a reader's name, which is several names joined by `JOIN`, or one set's name."""
    return tuple(reader.split(JOIN))


def is_built_in(reader: str) -> bool:
    """Whether the project itself reads these data."""
    return reader in READERS or (JOIN in reader and _can_join(sets_of(reader)))


def _can_join(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names) and set(names) <= set(JOINABLE)


def reader_function(reader: str) -> Callable[..., VQAData]:
    """The function that reads the set. Raises `ConfigError` for a reader that is unknown or not allowed."""
    if JOIN in reader:
        if not _can_join(sets_of(reader)):
            raise ConfigError(
                f"a joined name must name several different sets of {', '.join(JOINABLE)}, as vqa-rad{JOIN}slake"
            )
        return joined
    if reader in _REGISTERED:
        return _REGISTERED[reader]
    if reader not in READERS:
        outside: Callable[[Path], VQAData] | None = plugins.load("readers", reader)
        if outside is not None:
            return outside
        raise ConfigError(f"unknown data set; the data sets are {', '.join(READERS)}")
    function: Callable[..., VQAData] = resolve_name(FOLDERS.get(reader, "medfedvqa.data.phantom:read"))
    return function


def read(reader: str, root: Path | None, organ: str | None = None, seed: int = 0) -> VQAData:
    """The data set; if an `organ` is named, the phantom set is drawn for that organ alone.

    `root` is the set's folder, `seed` draws the phantom set; other readers ignore what they do not need.
    Raises `ConfigError` for an unknown reader, `DataError` for a missing root, a malformed file or an organ that the
    phantom set lacks.
    """
    function = reader_function(reader)
    if function is joined:
        # A site's own set is enough for it: the others are not read.
        names = [name for name in sets_of(reader) if (organ or "").startswith(f"{name}-")] or sets_of(reader)
        roots = {name: root and root / name if name in FOLDERS else None for name in names}
        return joined(reader, {name: read(name, folder, seed=seed) for name, folder in roots.items()})
    if reader == "phantom":
        return function((organ,), seed) if organ else function(seed=seed)
    if root is None or not root.is_dir():
        raise DataError(f"the data root of {reader} is missing: give its folder by --data-root or in site.yml")
    return function(root)


def organs(reader: str, root: Path | None) -> tuple[str, ...]:
    """The set's organs, in the order of its sites. Raises as `read` does."""
    return read(reader, root).organs


def joined(together: str, sets: Mapping[str, VQAData]) -> VQAData:
    """The sets by name as one of the name `together`.

    A patient's key says the set, so that no two sets share a patient. Rows keep the index that they have in their own
    set, which the organ names.
    """
    rows = [
        replace(row, organ=_site(name, row.organ), patient=f"{name}/{row.patient}")
        for name, data in sets.items()
        for row in data.rows
    ]
    of = {_site(name, organ): data for name, data in sets.items() for organ in data.organs}
    return VQAData(
        name=together,
        organs=tuple(of),
        rows=rows,
        load=partial(_load, {name: data.load for name, data in sets.items()}),
        load_coloured=partial(_load, {name: data.coloured for name, data in sets.items()}),
        publishes_validation=frozenset(site for site, data in of.items() if data.publishes_validation),
    )


def _site(name: str, organ: str) -> str:
    return f"{name}-{organ}"


def _load(loads: Mapping[str, Callable[[Row, int], torch.Tensor]], row: Row, size: int) -> torch.Tensor:
    return loads[row.patient.partition("/")[0]](row, size)
