"""Which code takes part in a job: the project, what it needs, and whatever else a site has installed for it.

A class takes part with the modules of its bases and of its attributes; a module with the whole distribution that it
belongs to; and each source with what it imports. What a dependency imports is taken from its list of requirements.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from audits import CodeKind, JobCode
from audits.code import CodePart
from audits.lazy_imports import places
from medfedvqa.errors import MedfedvqaError
from medfedvqa.installed_code import (
    CompiledElsewhere,
    Distribution,
    digest_of_files,
    distributions,
    imports,
    is_standard,
    on_disk,
    outermost,
    owner_of,
    package_files,
    root_of,
    sources,
    without_type_imports,
)
from medfedvqa.version import PACKAGES, VERSION, code_digest, project_files, runs_other_code

PROJECT = "medfedvqa"
METHODS = "medfedvqa.core.method"
"""The module of the base of all methods."""
MOST_BYTES = 1 << 25
"""Of a distribution's modules, to be read: a larger one is named by its version and RECORD, as a dependency is."""


class ChangedCode(MedfedvqaError):
    """The code of a method is no longer what this process has loaded."""


_PLACE = re.compile(rb'"((?:%s)\.[\w.]+):\w+"' % "|".join(PACKAGES).encode())
"""An entry of a table of what is imported by name, as `"medfedvqa.data.slake:read"`."""
_loaded: dict[object, frozenset[CodePart]] = {}
"""The parts from outside of the project that a class or function had when it was loaded."""


def running_code(*roots: object) -> JobCode:
    """All code that takes part where these classes, functions and bound methods do.

    Raises `CompiledElsewhere`, and `ChangedCode` if one of the project's files was changed before it was imported.
    """
    if runs_other_code():
        raise ChangedCode("the project's code has changed since this process started: start it again")
    modules = {name for root in roots for name in _modules_of(root)}
    needed = _dependencies(frozenset(name for name in modules if _is_project(name)))
    project = CodePart(CodeKind.PROJECT, PROJECT, VERSION, code_digest())
    return JobCode((project, *needed.values(), *_Outside(set(needed)).parts(modules)))


def remember(root: object) -> None:
    """Notes what a class or function from outside of the project consists of as it is loaded.

    Raises `CompiledElsewhere`.
    """
    if not _is_project(root.__module__):
        _loaded[root] = _outside(root)


def check_unchanged(root: object) -> None:
    """Raises `ChangedCode` if a class's or function's code was written again after this process loaded it."""
    try:
        unchanged = root not in _loaded or _loaded[root] == _outside(root)
    except (CompiledElsewhere, OSError):  # a file may vanish while it is read
        unchanged = False
    if not unchanged:
        raise ChangedCode(
            "the code of the job's method or reader has changed since it was loaded: start the process again"
        )


def _outside(root: object) -> frozenset[CodePart]:
    modules = set(_modules_of(root))
    # A method takes part in every job. What it needs is no part from outside of a reader, which has no base there.
    needed = _dependencies(frozenset({METHODS, *(name for name in modules if _is_project(name))}))
    return frozenset(_Outside(set(needed)).parts(modules))


def _is_project(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def _modules_of(root: Any) -> Iterator[str]:
    """Names of the modules in which an object and what it inherits are defined."""
    if isinstance(root, partial):
        yield from _modules_of(root.func)
    elif isinstance(root, type):
        for base in root.__mro__:
            yield base.__module__
            named = (getattr(value, "__module__", None) for value in vars(base).values())
            yield from (name for name in named if isinstance(name, str) and name in sys.modules)
    else:
        yield from _modules_of(type(getattr(root, "__self__", root)))
        if isinstance(name := getattr(root, "__module__", None), str):
            yield name


class _Outside:
    """Collects what takes part besides the project and its dependencies."""

    def __init__(self, dependencies: set[Distribution]) -> None:
        self._dependencies = dependencies
        self._roots = set[Path]()
        self._plug_ins: dict[Distribution, set[Path]] = {}
        self._others: dict[Distribution, CodePart] = {}
        self._modules = set[CodePart]()

    def parts(self, modules: set[str]) -> Iterator[CodePart]:
        """Each part from outside that modules, which are loaded, reach."""
        for name in modules:
            if not _is_project(name):
                self._add_loaded(sys.modules.get(name))
        for distribution, roots in self._plug_ins.items():
            files = distribution.files() | {name: path for root in roots for name, path in package_files(root).items()}
            yield _part(CodeKind.PLUG_IN, distribution, digest_of_files(files))
        yield from (*self._others.values(), *self._modules)

    def _add_loaded(self, module: ModuleType | None) -> None:
        if module is None or (file := getattr(module, "__file__", None)) is None:
            if module is None or module.__name__ not in sys.stdlib_module_names:
                self._modules.add(CodePart(CodeKind.MODULE, None, None, None))
        elif not is_standard(path := Path(file).absolute()):
            self._add(outermost(path))

    def _add(self, root: Path) -> None:
        """The code that this file begins, and all that it imports."""
        if root in self._roots:
            return
        self._roots.add(root)
        owner = owner_of(root)
        if owner is None or owner.name == PROJECT:  # a file that lies beside the project's sources
            self._add_module(root)
        elif owner not in self._dependencies:
            self._add_distribution(owner, root)

    def _add_module(self, root: Path) -> None:
        file = on_disk(root)
        if file is None:
            self._modules.add(CodePart(CodeKind.MODULE, None, None, None))
            return
        files = package_files(root) if file == root else {file.name: file}
        self._modules.add(CodePart(CodeKind.MODULE, None, None, digest_of_files(files)))
        self._follow(files)

    def _add_distribution(self, owner: Distribution, root: Path) -> None:
        if owner.code_bytes > MOST_BYTES:
            needed = _needed(frozenset({owner}))
            self._others |= {one: part for one, part in needed.items() if one not in self._dependencies}
            return
        first = owner not in self._plug_ins
        self._plug_ins.setdefault(owner, set()).add(root)
        self._follow((owner.files() if first else {}) | package_files(root))

    def _follow(self, files: dict[str, Path]) -> None:
        # Each name once: to look for a module takes longer than to read that it is imported.
        for name in dict.fromkeys(name for source in sources(files.values()) for name in imports(source)):
            if not _is_project(name) and (root := root_of(name)):
                self._add(root)


def _part(kind: CodeKind, distribution: Distribution, sha256: str) -> CodePart:
    return CodePart(kind, distribution.name, distribution.version, sha256)


@lru_cache
def _dependencies(modules: frozenset[str]) -> dict[Distribution, CodePart]:
    """The distributions that the project needs for these modules of its own and all that they import."""
    roots = {root for name in _imported(modules) if (root := root_of(name))}
    return _needed(frozenset(owner for root in roots if (owner := owner_of(root)) and owner.name != PROJECT))


@lru_cache
def _needed(owners: frozenset[Distribution]) -> dict[Distribution, CodePart]:
    """These distributions and all that they require, as far as it is installed."""
    known, todo, found = distributions(), [*owners], dict[Distribution, CodePart]()
    while todo:
        one = todo.pop()
        if one not in found:
            found[one] = _part(CodeKind.DEPENDENCY, one, one.record_digest)
            todo += (known[name] for name in one.needs if name in known)
    return found


def _imported(modules: frozenset[str]) -> set[str]:
    """What the project's modules, and those of the project that they import, import from elsewhere."""
    files = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for name, path in project_files()
    }
    todo, seen, outside = list(modules), set[str](), set[str]()
    while todo:
        module = todo.pop()
        if module in seen or module not in files:
            continue
        seen.add(module)
        source = without_type_imports(files[module].read_bytes())
        for name in (*imports(source), *(place.decode() for place in _PLACE.findall(source))):
            if _is_project(name):
                todo += _around(name, files)
            else:
                outside.add(name)
    return outside


def _around(name: str, files: Mapping[str, Path]) -> Iterator[str]:
    """The modules that an import of a dotted name may run: its packages, itself, and what a package imports for it."""
    package, _, last = name.rpartition(".")
    if package:
        yield from _around(package, files)
    if package in files and files[package].name == "__init__.py" and last in (names := places(str(files[package]))):
        yield names[last][0]
    yield name
