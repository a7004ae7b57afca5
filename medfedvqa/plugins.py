"""Plug-ins: distributions that bring methods or other parts, and the list of those that this process may load.

A distribution offers methods, readers, backbones and networks by entry points. Finding them imports nothing. A
distribution is imported only if `allow` was called with its name and the digest of its code, as `medfedvqa plugins`
prints them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

import yaml

from audits.bounded_files import MAX_TEXT, read_bounded
from medfedvqa.atomic_files import write_whole
from medfedvqa.code_identity import remember
from medfedvqa.errors import ConfigError
from medfedvqa.installed_code import (
    CompiledElsewhere,
    Places,
    compile_every_source,
    digest_of_files,
    distribution_files,
    normalised,
    places_of_imports,
    root_of,
)

Group = Literal["methods", "readers", "backbones", "networks"]
GROUPS: tuple[Group, ...] = ("methods", "readers", "backbones", "networks")
"""Each is an entry point group `medfedvqa.GROUP`; the name of an entry point is the name that jobs and sites use."""
Offer = tuple[Group, EntryPoint]
LIST_FILE = "plugins.yml"
"""The list, in the folder `local` of a server's kit, of distributions that its job processes may load."""

PASSED_FILE = "neighbours.yml"
"""The file, next to `site.yml`, of methods that passed `medfedvqa audit neighbours`, by their distribution's digest."""

_DIGEST = re.compile(r"[0-9a-f]{64}").fullmatch
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}").fullmatch

_allowed: dict[str, str] = {}
"""This process's list: digests by normalised name of the distribution."""
_loaded: dict[tuple[Group, str], Any] = {}


class PlugInRefused(ConfigError):
    """A distribution that offers the requested name is not allowed, or its code has another digest."""


@dataclass(frozen=True)
class PlugIn:
    """An installed distribution that offers methods, readers, backbones or networks."""

    name: str
    """The distribution's normalised name."""
    version: str
    sha256: str
    """The digest over the names and contents of its files, as in audit logs."""
    offers: tuple[tuple[Group, str], ...]


def installed() -> tuple[PlugIn, ...]:
    """All distributions that offer anything, by name. None of them is imported.

    Raises `PlugInRefused` if one of them has compiled files that were not made here.
    """
    return tuple(_plug_in(name, offers) for name, offers in _offers().items())


def _offers() -> Mapping[str, tuple[Offer, ...]]:
    """The offers of each installed distribution, by its name."""
    return _offers_at(places_of_imports())


@lru_cache
def _offers_at(places: Places) -> Mapping[str, tuple[Offer, ...]]:
    # It reads a file of each installed distribution, which takes longer than all other checks of a job.
    points: dict[str, tuple[Offer, ...]] = {}
    everything = entry_points()
    for group in GROUPS:
        for point in everything.select(group=f"medfedvqa.{group}"):
            if point.dist is not None and point.dist.read_text("RECORD") is not None:
                name = normalised(point.dist.name)
                points[name] = (*points.get(name, ()), (group, point))
    return {name: points[name] for name in sorted(points)}


def _plug_in(name: str, offers: tuple[Offer, ...]) -> PlugIn:
    distribution = offers[0][1].dist
    assert distribution is not None
    try:
        files = distribution_files(distribution, {root for _, point in offers if (root := root_of(point.module))})
    except CompiledElsewhere as error:
        raise PlugInRefused(f"the distribution '{name}' {error.fault}") from None
    names = tuple(sorted((group, point.name) for group, point in offers))
    return PlugIn(name, distribution.version, digest_of_files(files), names)


def pinned(name: str) -> dict[str, str]:
    """The SHA-256 of an installed distribution's code, by its name. Raises `ConfigError` if it brings no plug-in."""
    if (offers := _offers().get(normalised(name))) is not None:
        return {normalised(name): _plug_in(normalised(name), offers).sha256}
    raise ConfigError("no installed distribution of this name offers anything: `medfedvqa plugins` lists those that do")


def checked_list(found: Any) -> dict[str, str]:
    """A list of allowed distributions: SHA-256 digests, as hex, by name. Raises `ConfigError`, which quotes nothing."""
    found = {} if found is None else found
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and _NAME(name) and isinstance(digest, str) and _DIGEST(digest)
        for name, digest in found.items()
    ):
        raise ConfigError("'plugins' is a table of SHA-256 digests by distribution, as `medfedvqa plugins` prints it")
    return {normalised(name): digest for name, digest in found.items()}


def read_list(path: Path) -> dict[str, str]:
    """The list in a file with the one key `plugins`; empty if there is no file. Raises `ConfigError`."""
    return checked_list(_table(path, "plugins", "write what `medfedvqa plugins` prints"))


def read_passed(folder: Path) -> dict[str, tuple[str, ...]]:
    """By digest of a distribution, its methods that passed `medfedvqa audit neighbours`. Raises `ConfigError`."""
    found = _table(folder / PASSED_FILE, "passed", remedy := "delete it, and run `medfedvqa audit neighbours` again")
    if not isinstance(found, Mapping) or not all(
        isinstance(digest, str)
        and _DIGEST(digest)
        and isinstance(names, list)
        and all(isinstance(n, str) for n in names)
        for digest, names in found.items()
    ):
        raise ConfigError(f"'{PASSED_FILE}' is not a table of methods by digest: {remedy}")
    return {digest: tuple(names) for digest, names in found.items()}


def remember_passed(folder: Path, method: str, has_passed: bool) -> None:
    """Records that an allowed distribution's method passed or failed with its present code. Raises `PlugInRefused`."""
    check("methods", method, _allowed)
    (plug_in,) = offering("methods", method)
    passed = read_passed(folder)
    names = {*passed.pop(plug_in.sha256, ())} - {method} | ({method} if has_passed else set())
    record = {digest: list(each) for digest, each in passed.items()} | (
        {plug_in.sha256: sorted(names)} if names else {}
    )
    write_whole(folder / PASSED_FILE, yaml.safe_dump({"passed": record}).encode())


def _table(path: Path, key: str, remedy: str) -> Any:
    """The value of a YAML file's only key; an empty table if there is no file. Raises `ConfigError`."""
    if not path.exists():
        return {}
    try:
        raw = yaml.safe_load(read_bounded(path, MAX_TEXT).decode())
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        raise ConfigError(f"'{path.name}' is not valid YAML: {remedy}") from None
    if not isinstance(raw, Mapping) or raw.keys() != {key}:
        raise ConfigError(f"'{path.name}' has the one key '{key}': {remedy}")
    return raw[key]


def write_list(folder: Path) -> None:
    """Writes this process's list into the folder `local` of another party's kit; no file if it is empty."""
    if _allowed:
        (folder / LIST_FILE).write_text(yaml.safe_dump({"plugins": _allowed}), encoding="utf-8")


def allow(plugins: Mapping[str, str]) -> None:
    """From now on this process may load these distributions, each as long as its code has this digest."""
    _allowed.update(checked_list(plugins))


def allowed() -> dict[str, str]:
    """This process's list."""
    return dict(_allowed)


def check(group: Group, name: str, allowed: Mapping[str, str]) -> bool:
    """Whether an allowed distribution offers this name; False if no installed distribution offers it.

    Raises `PlugInRefused` if the one that offers it is not allowed, has another digest, or is not the only one.
    """
    found = list(offering(group, name))
    if not found:
        return False
    if len(found) > 1:
        raise PlugInRefused(f"two distributions offer {_what(group, name)}: uninstall one of them")
    (plug_in,) = found
    if plug_in.name not in allowed:
        raise PlugInRefused(
            f"{_what(group, name)} comes from the distribution '{plug_in.name}', which is not allowed here: see "
            "`medfedvqa plugins`"
        )
    if allowed[plug_in.name] != plug_in.sha256:
        raise PlugInRefused(
            f"the distribution '{plug_in.name}' has other code than is allowed here: review it, then allow the "
            "digest that `medfedvqa plugins` prints"
        )
    return True


def load(group: Group, name: str) -> Any:
    """The object that an allowed distribution offers under this name; None if no distribution offers it.

    Raises `PlugInRefused` for a distribution that is not allowed, before it is imported, and for one with code that
    changes while it is imported.
    """
    if (group, name) not in _loaded:
        if not check(group, name, _allowed):
            return None
        compile_every_source()
        (point,) = entry_points(group=f"medfedvqa.{group}", name=name)
        loaded = point.load()
        check(group, name, _allowed)
        remember(loaded)
        _loaded[group, name] = loaded
    return _loaded[group, name]


def offering(group: Group, name: str) -> Iterator[PlugIn]:
    """The distributions that offer this name."""
    for distribution, offers in _offers().items():
        if any((group, name) == (kind, point.name) for kind, point in offers):
            yield _plug_in(distribution, offers)


def _what(group: Group, name: str) -> str:
    return f"the {group.removesuffix('s')} '{name}'"
