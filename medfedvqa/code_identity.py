"""The code that takes part in a job: the project, its requirements, and further code that a site has installed.

The project is identified by its files; each distribution that it requires, directly or not, by its RECORD, the list of
its files' digests. Loaded files of these distributions are compared with their RECORD. For a class from outside of the
project, the modules of its bases and attributes count, and all modules that their sources import.
"""

import re
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache, partial
from importlib.metadata import Distribution, PackageNotFoundError
from importlib.metadata import distribution as installed
from pathlib import Path
from types import ModuleType
from typing import Any

from audits import CodeKind, JobCode
from audits.code import CodePart
from medfedvqa.errors import MedfedvqaError
from medfedvqa.installed_code import (
    CompiledElsewhere,
    digest_of_files,
    distribution_files,
    file_digest,
    imports,
    is_standard,
    listed_modules,
    name_of,
    normalised,
    on_disk,
    outermost,
    owner_of,
    package_files,
    places_of_imports,
    record_digest,
    root_of,
    sources_of,
)
from medfedvqa.version import PACKAGES, VERSION, code_digest, runs_other_code

PROJECT = "medfedvqa"
EXTRAS = frozenset({"train", "vilt", "words"})
"""The project's extras whose requirements may take part in a job."""


class ChangedCode(MedfedvqaError):
    """The code of a method or its requirements differs from the code that this process has loaded."""


_REQUIREMENT = re.compile(r"([\w.-]+)(?:.*\bextra\s*==\s*['\"]([\w.-]+))?", re.ASCII)
_loaded: dict[object, frozenset[CodePart]] = {}
"""The code from outside the project that each class or function needed when it was loaded."""
_compared: dict[str, ModuleType] = {}
"""The loaded modules that were already compared with the installed files."""
_first_seen: dict[Path, int] = {}
"""For each folder of imports, its modification time when this process first looked for code there."""


def running_code(*roots: object) -> JobCode:
    """All code that takes part in a job with these classes, functions and bound methods.

    Raises `CompiledElsewhere`, and `ChangedCode` if a file of the project was changed before its import, or a file of
    a required distribution after its installation.
    """
    if runs_other_code():
        raise ChangedCode("the project's code has changed since this process started: start it again")
    parts = {*_needed().values(), *_outside(*roots)}
    _compare_with_records({normalised(part.name or "") for part in parts if part.kind is CodeKind.DEPENDENCY})
    return JobCode((CodePart(CodeKind.PROJECT, PROJECT, VERSION, code_digest()), *parts))


def remember(root: object) -> None:
    """Records the code parts of a class or function from outside of the project when it is loaded.

    Raises `CompiledElsewhere`.
    """
    if not _is_project(root.__module__):
        _loaded[root] = _outside(root)


def check_unchanged(root: object) -> None:
    """Raises `ChangedCode` if the code of a class or function was changed after this process loaded it."""
    try:
        unchanged = root not in _loaded or _loaded[root] == _outside(root)
    except (CompiledElsewhere, OSError):  # a file may vanish while it is read
        unchanged = False
    if not unchanged:
        raise ChangedCode(
            "the code of the job's method or reader has changed since it was loaded: start the process again"
        )


def _is_project(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def _own_modules(root: Any) -> set[str]:
    """Names of the modules that define a class or a function, or a bound method and its object's class."""
    while isinstance(root, partial):
        root = root.func
    owner = root if isinstance(root, type) else type(getattr(root, "__self__", root))
    return {name for each in (owner, root) if isinstance(name := getattr(each, "__module__", None), str)}


def _modules_of(root: object) -> Iterator[str]:
    """The modules of an object, and for a class also those of its bases and members."""
    yield from _own_modules(root)
    for base in root.__mro__ if isinstance(root, type) else ():
        yield base.__module__
        names = (getattr(value, "__module__", None) for value in vars(base).values())
        yield from (name for name in names if isinstance(name, str) and name in sys.modules)


def _files_of(modules: Iterable[str]) -> Iterator[Path | None]:
    """The root file (see `outermost`) of each loaded module from outside; None for code that is in no file."""
    for name in {name for name in modules if not _is_project(name)}:
        if file := getattr(sys.modules.get(name), "__file__", None):
            if not is_standard(path := Path(file).absolute()):
                yield outermost(path)
        elif name not in sys.stdlib_module_names:
            yield None


def _outside(*roots: object) -> frozenset[CodePart]:
    """Code outside of the project and its requirements that these classes and functions reach."""
    needed, parts, reached = {PROJECT, *_needed()}, set[CodePart](), set[Path]()
    own = {path for root in roots for path in _files_of(_own_modules(root)) if path}
    brought = {name_of(owner): owner for path in own if (owner := owner_of(path))}
    brought = {name: owner for name, owner in brought.items() if name not in needed}
    required = {**_required(frozenset(need for owner in brought.values() for need in _requirements(owner.requires)))}
    begins: dict[str, set[Path]] = {name: set() for name in brought}
    todo = sorted({*_files_of(name for root in roots for name in _modules_of(root))}, key=str)
    for root in todo:  # it grows meanwhile
        if root is None:
            parts.add(CodePart(CodeKind.MODULE, None, None, None))
        if root is None or root in reached:
            continue
        reached.add(root)
        owner = owner_of(root)
        name = PROJECT if owner is None else name_of(owner)
        if owner is None or name == PROJECT:  # a file that lies beside the project's sources
            file = on_disk(root)
            files = {} if file is None else package_files(root) if file == root else {file.name: file}
            parts.add(CodePart(CodeKind.MODULE, None, None, digest_of_files(files) if files else None))
        elif name in brought or sources_of(owner):
            brought[name] = owner
            begins.setdefault(name, set()).add(root)
            files = distribution_files(owner, [root])
        else:
            required |= _required(frozenset({name}))
            continue
        todo += sorted({path for name in imports(files.values()) if not _is_project(name) and (path := root_of(name))})
    for name, owner in brought.items():
        digest = digest_of_files(distribution_files(owner, begins[name]))
        parts.add(CodePart(CodeKind.PLUG_IN, owner.name, owner.version, digest))
    return frozenset(parts | {part for name, part in required.items() if name not in {*brought, *needed}})


@lru_cache
def _needed() -> Mapping[str, CodePart]:
    """The distributions that the project requires, directly or not, as of this process's first call."""
    try:
        own = installed(PROJECT)
    except PackageNotFoundError:
        raise ChangedCode(
            "the project is not installed, so its requirements are unknown: install it with pip"
        ) from None
    return _required(frozenset(_requirements(own.requires, EXTRAS)))


@lru_cache
def _required(names: frozenset[str]) -> Mapping[str, CodePart]:
    """These distributions and their installed requirements, direct or not, by normalised name."""
    todo, parts = [*names], dict[str, CodePart]()
    while todo:
        if (name := todo.pop()) not in parts:
            try:
                one = installed(name)
            except PackageNotFoundError:
                continue
            headers = one.metadata  # parsed each time that it is asked for
            parts[name] = CodePart(CodeKind.DEPENDENCY, headers["Name"], headers["Version"], record_digest(one))
            todo += _requirements(headers.get_all("Requires-Dist"))
    return parts


def _requirements(lines: Iterable[str] | None, extras: frozenset[str] = frozenset()) -> Iterator[str]:
    """Normalised names of a distribution's requirements, without those of extras other than `extras`."""
    matches = filter(None, map(_REQUIREMENT.match, lines or ()))
    return (normalised(match[1]) for match in matches if match[2] is None or match[2] in extras)


def _compare_with_records(names: set[str]) -> None:
    """Raises `ChangedCode` if a loaded module of these distributions is not the file that RECORD lists.

    A module in one of their packages that RECORD does not list is refused too: it was not installed with the package.
    """
    listed = _listed(*((folder, _first_seen.setdefault(folder, changed)) for folder, changed in places_of_imports()))
    for name, module in [*sys.modules.items()]:
        if _compared.get(name) is module or not isinstance(file := getattr(module, "__file__", None), str):
            continue
        distribution, _ = listed.get(_package_of(file), (None, ""))
        if distribution is not None and name_of(distribution) in names:
            _, digest = listed.get(file, (None, "of no file that was installed"))
            if digest and digest != f"sha256={_as_in_record(Path(file))}":
                raise ChangedCode(
                    f"a file of the distribution '{distribution.name}' is not the one that was installed: install it "
                    "again, then start the process again"
                )
            _compared[name] = module


@lru_cache(maxsize=1)
def _listed(*places: tuple[Path, int]) -> Mapping[str, tuple[Distribution, str]]:
    """The RECORD row of each module file in these folders, of which the first counts. Kept for the next job."""
    return {path: row for place in reversed(places) for path, row in listed_modules(*place).items()}


@cache
def _package_of(file: str) -> str:
    """The outermost `__init__` around a module's file, as it was when this process first asked."""
    return str(outermost(Path(file)))


def _as_in_record(file: Path) -> str:
    try:
        return urlsafe_b64encode(bytes.fromhex(file_digest(file))).decode().rstrip("=")
    except OSError:  # the file is gone
        return ""
