"""The code that is installed on this machine: the files of modules, the distributions of files, and the digests of
both. Nothing is imported for it.

A digest covers every file except compiled ones that Python itself made from a source next to them and compares with it:
these differ from machine to machine. Any other compiled file is refused, see `CompiledElsewhere`.
"""

import _imp
import ast
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.machinery import PathFinder, all_suffixes
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec, source_from_cache
from json import loads
from pathlib import Path
from urllib.parse import unquote, urlsplit

from medfedvqa.errors import ConfigError

_WRITTEN = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib")]
_STANDARD = frozenset(f"{folder}{os.sep}" for folder in [*_WRITTEN, *(folder.resolve() for folder in _WRITTEN)])
"""Folders of the standard library, with and without links on the way."""
_SITES = frozenset({"site-packages", "dist-packages"})
_SUFFIXES = tuple(all_suffixes())
_MODULES = tuple({*_SUFFIXES} - {".pyc"})
_INIT = "__init__.py"
_CACHE = "__pycache__"
_NOTES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"})
"""Files in the folder `*.dist-info` with installers' own notes."""
_UNCOMPARED = re.compile(rf"[^/]+\.dist-info/|\.\.|/|.*{_CACHE}/[^/]*\.pyc,,").match
"""Lines of RECORD that differ between installations of one wheel: notes, scripts, caches compiled here."""
_hashed: dict[str, tuple[tuple[int, int, int], str]] = {}
"""The digest of each file that was read, with its size and times then."""


class CompiledElsewhere(ConfigError):
    """Installed code has byte code without its source, or a file hidden among byte code.

    `fault` is a clause without its subject, which callers put after the distribution's name.
    """

    def __init__(self, fault: str) -> None:
        super().__init__(f"code that is installed here {fault}")
        self.fault = fault


def compile_every_source() -> None:
    """From now on this process loads no compiled file from disk: it compiles each source that it imports.

    A compiled file may differ from the source that people read: Python does not compare an unchecked one at all, and
    others only by time and size. Nothing is written either, so that no process trusts another's files.
    """
    sys.pycache_prefix, sys.dont_write_bytecode = os.devnull, True


def compare_compiled_files() -> None:
    """From now on this process also compares compiled files marked as unchecked with their sources (PEP 552)."""
    _imp.check_hash_based_pycs = "always"


def imports(files: Iterable[Path]) -> set[str]:
    """Dotted names that the sources among these files import, also within functions, without relative imports."""
    return {name for path in files if path.suffix == ".py" for name in _imports(path, file_digest(path))}


@cache
def _imports(path: Path, _digest: str) -> frozenset[str]:
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError):  # Python imports no such file either
        return frozenset()
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return frozenset(names | {f"{node.module}.{alias.name}" for node in froms for alias in node.names})


def root_of(dotted: str) -> Path | None:
    """The file of the outermost regular package, or of the module, that an import of this name runs.

    None for a name that is not installed, belongs to the standard library, or is in no file.
    """
    name, *others = dotted.split(".")
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # such as `__main__`, which has no specification
        return None
    while spec is not None and spec.origin is None and others:  # a namespace package has no code
        name = f"{name}.{others.pop(0)}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations or ()))
    if spec is None or not spec.has_location or not spec.origin:
        return None
    file = Path(spec.origin).absolute()
    return None if is_standard(file) else file


def is_standard(file: Path) -> bool:
    """Whether a file belongs to the standard library, and not to a distribution in the same folder."""
    path = str(file)
    return any(_SITES.isdisjoint(path[len(top) :].split(os.sep)) for top in _STANDARD if path.startswith(top))


def outermost(file: Path) -> Path:
    """The `__init__` of the outermost regular package that holds the file, or the file itself."""
    while (above := file.parent if file.name != _INIT else file.parent.parent) and (above / _INIT).is_file():
        file = above / _INIT
    return file


def package_files(root: Path) -> dict[str, Path]:
    """All files of the package or module that a root begins, by name relative to the folder it is imported from.

    Raises `CompiledElsewhere`.
    """
    if root.name != _INIT:
        for path in root.parent.glob(f"{_CACHE}/{root.stem}.*.pyc"):
            _is_hashed(f"{_CACHE}/{path.name}", path)
        return {root.name: root}
    return _below(root.parent, root.parent.parent)


def _below(top: Path, base: Path) -> dict[str, Path]:
    """The hashed files below a folder, by path relative to `base`. Follows links to folders, as Python's imports do."""
    found, seen = dict[str, Path](), set[str]()
    for folder, folders, files in os.walk(top, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        for path in (Path(folder, name) for name in files):
            name = path.relative_to(base).as_posix()
            if path.is_file() and _is_hashed(name, path):
                found[name] = path
    return found


def _is_hashed(name: str, path: Path) -> bool:
    """Whether a digest covers a file: False for files that Python compiled here. Raises `CompiledElsewhere`."""
    *folders, last = name.split("/")
    if not last.endswith(".pyc"):
        if _CACHE in folders and last.endswith(_SUFFIXES):
            raise CompiledElsewhere(f"has modules in a folder named {_CACHE}: rename the folder and build it again")
        return True
    if folders.count(_CACHE) != 1 or folders[-1] != _CACHE:
        raise CompiledElsewhere(f"has a compiled file (.pyc) where Python writes none: {_REMEDY}")
    try:
        source: Path | None = Path(source_from_cache(str(path)))
    except ValueError:
        # A name with further dots, such as pytest's, is that of no module, and no import reads it.
        source = path.parent.parent / f"{last.partition('.')[0]}.py" if last.count(".") >= 3 else None
    if source is None or not source.is_file():
        raise CompiledElsewhere(f"has a compiled file (.pyc) without its source: {_REMEDY}")
    with path.open("rb") as file:
        flags = int.from_bytes(file.read(8)[4:], "little")
    if flags not in (0, 3):  # PEP 552: compared by time and size, or by hash
        raise CompiledElsewhere(f"has a compiled file (.pyc) that Python compares with no source: {_REMEDY}")
    return False


_REMEDY = f"delete its folders {_CACHE}, or build it without compiled files and install it again"


def distribution_files(distribution: Distribution, roots: Iterable[Path] = ()) -> dict[str, Path]:
    """A distribution's existing files by name, and all other files in its packages and in the packages of `roots`.

    A distribution that is installed as a link to its sources lists none. Scripts and the installer's notes, which
    differ from one installation to the next, are left out. Raises `CompiledElsewhere`.
    """
    base, found, packages = Path(str(distribution.locate_file(""))), dict[str, Path](), set[str]()
    for row in sorted(distribution.files or (), key=str):
        name = row.as_posix()
        folder, _, last = name.rpartition("/")
        is_script = name.startswith("../") and folder.rpartition("/")[2] in ("bin", "Scripts")
        if is_script or (last in _NOTES and folder.endswith(".dist-info")):
            continue
        if last.endswith(".pyc") and (row.hash or row.size is not None):
            raise CompiledElsewhere(f"brings compiled files (.pyc) of its own: {_REMEDY}")
        if (base / name).is_file() and _is_hashed(name, base / name):
            found[name.replace("../", "")] = base / name
        if last.startswith("__init__.") and last.endswith(_SUFFIXES):
            packages.add(folder)
    for folder in sorted(packages):
        if not any(str(above) in packages for above in Path(folder).parents):
            found |= _below(base / folder, base)
    return found | {name: path for root in roots for name, path in package_files(root).items()}


def record_digest(distribution: Distribution) -> str:
    """SHA-256, as hex, over the paths, digests and sizes of the files that were installed.

    Files that differ between installations of one wheel are left out: scripts, caches compiled here, and the
    installer's own notes. A file that is listed without its digest is read.
    """
    lines = [line for line in (distribution.read_text("RECORD") or "").splitlines() if line and not _UNCOMPARED(line)]
    for number, line in enumerate(lines):
        if line.endswith(",,") and (path := Path(str(distribution.locate_file(line[:-2])))).is_file():
            lines[number] += file_digest(path)
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def on_disk(file: Path) -> Path | None:
    """The file, or the archive that it is in; None if it is gone."""
    return next((path for path in (file, *file.parents) if path.is_file()), None)


def digest_of_files(files: Mapping[str, Path]) -> str:
    """SHA-256, as hex, over the names and contents of files; of a single file, over its content alone."""
    if len(files) == 1:
        return file_digest(*files.values())
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0".encode() + bytes.fromhex(file_digest(path)))
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of the file, as hex; cached until the file's size or times change."""
    state = path.stat()
    version = state.st_size, state.st_mtime_ns, state.st_ctime_ns
    if (known := _hashed.get(str(path))) is None or known[0] != version:
        with path.open("rb") as file:
            known = _hashed[str(path)] = version, hashlib.file_digest(file, "sha256").hexdigest()
    return known[1]


def normalised(name: str) -> str:
    """A distribution's name, normalised for comparison (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def name_of(distribution: Distribution) -> str:
    """A distribution's normalised name, cached because reading it takes milliseconds."""
    return normalised(distribution.name)


Places = tuple[tuple[Path, int], ...]
"""Folders of imports, each with its modification time, ns."""


def places_of_imports() -> Places:
    """The folders of `sys.path` as they are now."""
    folders = (Path(place or os.curdir).absolute() for place in sys.path)
    return tuple((folder, folder.stat().st_mtime_ns) for folder in folders if folder.is_dir())


@cache
def listed_modules(folder: Path, _changed: int) -> Mapping[str, tuple[Distribution, str]]:
    """The modules in RECORD of a folder's distributions: distribution and RECORD's digest, by path."""
    modules = {}
    for one in distributions(path=[str(folder)]):
        for line in (one.read_text("RECORD") or "").splitlines():
            name, _, rest = line.partition(",")
            if name.endswith(_MODULES):
                modules[f"{folder}{os.sep}{name.replace('/', os.sep)}"] = one, rest.partition(",")[0]
    return modules


def owner_of(root: Path) -> Distribution | None:
    """The distribution that installed a package or module, also as a link to its sources; None if none did."""
    places = places_of_imports()
    owners = (listed_modules(*place).get(str(root)) for place in places)
    if (listed := next(filter(None, owners), None)) is not None:
        return listed[0]
    linked = (one for place in places for one, sources in _links(*place) if root.is_relative_to(sources)
              and _SITES.isdisjoint(root.relative_to(sources).parts))  # fmt: skip
    return next(linked, None)


@cache
def _links(folder: Path, _changed: int) -> tuple[tuple[Distribution, Path], ...]:
    """The distributions that are links to their sources (`pip install --editable`), each with its source folder."""
    return tuple((one, sources) for one in distributions(path=[str(folder)]) if (sources := sources_of(one)))


def sources_of(distribution: Distribution) -> Path | None:
    """The folder of a distribution's sources, if it is installed as a link to them."""
    try:
        told = loads(distribution.read_text("direct_url.json") or "")
        url = urlsplit(told["url"])
        return Path(unquote(url.path)) if url.scheme == "file" and told["dir_info"].get("editable") else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
