"""The code that is installed on this machine: which file a module comes from, which distribution a file belongs to,
what the files of either hash to. Nothing is imported for it.

A digest is over every file but the compiled ones that Python itself made from a source beside them and compares with
it: these differ from one machine to the next. Any other compiled file is refused, see `CompiledElsewhere`.
"""

import _imp
import csv
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder, all_suffixes
from importlib.util import find_spec, source_from_cache
from io import StringIO
from json import loads
from pathlib import Path
from urllib.parse import unquote, urlsplit

from medfedvqa.errors import ConfigError

_WRITTEN = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib")]
_STANDARD = frozenset(f"{folder}{os.sep}" for folder in [*_WRITTEN, *(folder.resolve() for folder in _WRITTEN)])
"""Folders of the standard library, with and without links on the way."""
_SITES = frozenset({"site-packages", "dist-packages"})
_SUFFIXES = tuple(all_suffixes())
_INIT = "__init__.py"
_CACHE = "__pycache__"
_NOTES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"})
"""Files in the folder `*.dist-info` in which installers note what they did."""

_IMPORT = re.compile(
    rb"(?:^|[;:])[ \t]*(?:from[ \t]+(\w[\w.]*)[ \t\\\r\n]+import[ \t\\\r\n]*(\([^)]*\)|[^\r\n;]*)"
    rb"|import[ \t]+([^\r\n;#]+))",
    re.MULTILINE,
)
_RENAMED = re.compile(rb"\bas[ \t]+\w+|#[^\r\n]*")
_TYPE_IMPORTS = re.compile(rb"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)
_NEEDS = re.compile(r"^Requires-Dist: *([A-Za-z0-9._-]+)(.*)$", re.MULTILINE)
_hashed: dict[str, tuple[tuple[int, int, int], str]] = {}
"""The digest of each file that was read, with its size and times then."""


class CompiledElsewhere(ConfigError):
    """Installed code has a file that runs as byte code, or is hidden among byte code, and that no source vouches for.

    `fault` continues the name of what has it, to a sentence that says what to do.
    """

    def __init__(self, fault: str) -> None:
        super().__init__(f"code that is installed here {fault}")
        self.fault = fault


def compile_every_source() -> None:
    """From now on this process runs no compiled file that is on disk: it compiles each source as it imports it.

    A compiled file may differ from its source, which is what people look at: Python compares an unchecked one with
    nothing and others with a time and a size. Nothing is written either, so that no process trusts another's files.
    """
    sys.pycache_prefix, sys.dont_write_bytecode = os.devnull, True


def compare_compiled_files() -> None:
    """From now on this process compares also compiled files with their sources that ask not to be (PEP 552)."""
    _imp.check_hash_based_pycs = "always"


def imports(source: bytes) -> Iterator[str]:
    """Dotted names that a source imports, also within functions; relative imports are left out.

    It reads lines, since parsing the whole project would take a second: a line of a text that looks like an import is
    taken for one.
    """
    for base, names, modules in _IMPORT.findall(source):
        if base:
            yield base.decode()
            yield from (f"{base.decode()}.{name.decode()}" for name in re.findall(rb"\w+", _RENAMED.sub(b"", names)))
        else:
            yield from (name.decode() for name in re.findall(rb"\w[\w.]*", _RENAMED.sub(b"", modules)))


def without_type_imports(source: bytes) -> bytes:
    """A source without its blocks `if TYPE_CHECKING:`, which never run unless a module defines that name itself."""
    return _TYPE_IMPORTS.sub(b"", source)


def root_of(dotted: str) -> Path | None:
    """The file of the outermost regular package, or of the module, that an import of this name runs.

    None for what is not installed, belongs to the standard library, or is in no file.
    """
    first, *others = dotted.split(".")
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):  # such as `__main__`, which has no specification
        return None
    name = first
    while spec is not None and spec.origin is None and others:  # a namespace package has no code
        name = f"{name}.{others.pop(0)}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations or ()))
    file = _file_of(spec)
    return None if file is None or is_standard(file) else file


def _file_of(spec: ModuleSpec | None) -> Path | None:
    if spec is None or not spec.has_location or not spec.origin:
        return None
    return Path(spec.origin).absolute()


def is_standard(file: Path) -> bool:
    """Whether a file is of the standard library, in whose folder those of distributions may lie as well."""
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
    """Python imports through links to folders too."""
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
    """Whether a digest covers a file: it leaves out what Python compiled here. Raises `CompiledElsewhere`."""
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


def on_disk(file: Path) -> Path | None:
    """The file, or the archive that it is in; None if it is gone."""
    return next((path for path in (file, *file.parents) if path.is_file()), None)


def digest_of_files(files: Mapping[str, Path]) -> str:
    """SHA-256, as hex, over the names and contents of files; of a single file, over its content alone."""
    if len(files) == 1:
        return _file_digest(*files.values())
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0".encode())
        digest.update(bytes.fromhex(_file_digest(path)))
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    """Of the file, read again only if it was written since."""
    state = path.stat()
    version = state.st_size, state.st_mtime_ns, state.st_ctime_ns
    known = _hashed.get(str(path))
    if known is None or known[0] != version:
        known = _hashed[str(path)] = version, _hash(path)
    return known[1]


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Distribution:
    """What an installer wrote of one distribution: the folder `*.dist-info`."""

    info: Path

    @property
    def name(self) -> str:
        """As its authors write it."""
        return _header(self.info, "Name")

    @property
    def version(self) -> str:
        """Its version."""
        return _header(self.info, "Version")

    @property
    def needs(self) -> tuple[str, ...]:
        """Normalised names of what it asks for without an extra."""
        lines = _NEEDS.findall(_metadata(self.info))
        return tuple(normalised(name) for name, rest in lines if not re.search(r"\bextra\s*==", rest))

    @property
    def record_digest(self) -> str:
        """SHA-256, as hex, over the paths, digests and sizes of the files that were installed.

        Files that differ from one installation of the same wheel to the next are left out: scripts, caches compiled
        here, and what the installer notes about itself. A file that is listed without its digest is read.
        """
        lines = (line + self._unlisted_digest(line) for line in _installed(self.info))
        return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()

    def _unlisted_digest(self, line: bytes) -> bytes:
        path = self.info.parent / line.decode().removesuffix(",,")
        return _file_digest(path).encode() if line.endswith(b",,") and path.is_file() else b""

    @property
    def code_bytes(self) -> int:
        """How large its modules are together."""
        paths = (self.info.parent / name for name, *_ in _rows(self.info) if name.endswith(_SUFFIXES))
        return sum(path.stat().st_size for path in paths if path.is_file())

    def files(self) -> dict[str, Path]:
        """Its files that are there, by name, with whatever else lies in its packages.

        None of a distribution that is installed as a link to its sources. Scripts and the installer's notes, which
        differ from one installation to the next, are left out. Raises `CompiledElsewhere`.
        """
        base, found, packages = self.info.parent, dict[str, Path](), set[str]()
        for name, *rest in sorted(_rows(self.info)):
            folder, _, last = name.rpartition("/")
            if (folder == self.info.name and last in _NOTES) or folder.rpartition("/")[2] in _scripts(name):
                continue
            if last.endswith(".pyc") and any(rest):
                raise CompiledElsewhere(f"brings compiled files (.pyc) of its own: {_REMEDY}")
            if (base / name).is_file() and _is_hashed(name, base / name):
                found[name.replace("../", "")] = base / name
            if last.startswith("__init__.") and last.endswith(_SUFFIXES):
                packages.add(folder)
        for folder in sorted(packages):
            if not any(str(above) in packages for above in Path(folder).parents):
                found |= _below(base / folder, base)
        return found

    def lists(self, name: str) -> bool:
        """Whether a file of this name, relative to the folder that holds the distribution, is one of its own."""
        return f"\n{name},".encode() in _record(self.info)


@lru_cache
def _record(info: Path) -> bytes:
    try:
        return b"\n" + (info / "RECORD").read_bytes().replace(b"\r", b"")
    except OSError:
        return b""


def _rows(info: Path) -> list[list[str]]:
    """The lines of RECORD: name, digest, size."""
    return [row for row in csv.reader(StringIO(_record(info).decode(), newline="")) if row]


def _scripts(name: str) -> frozenset[str]:
    """The folders of scripts, outside of the folder that modules are imported from: a script names this machine."""
    return frozenset({"bin", "Scripts"} if name.startswith("../") else ())


@lru_cache
def _installed(info: Path) -> tuple[bytes, ...]:
    note = f"{info.name}/".encode()
    lines = (line for line in _record(info).split(b"\n") if line and not line.startswith((b"..", b"/", note)))
    return tuple(line for line in lines if not (f"{_CACHE}/".encode() in line and line.endswith(b".pyc,,")))


@lru_cache
def _metadata(info: Path) -> str:
    """The headers of the distribution's description."""
    try:
        return (info / "METADATA").read_text("utf-8", errors="replace").replace("\r", "").partition("\n\n")[0]
    except OSError:
        return ""


def _header(info: Path, name: str) -> str:
    found = re.search(rf"^{name}: *(\S+)", _metadata(info), re.MULTILINE)
    return found[1] if found else ""


def normalised(name: str) -> str:
    """A distribution's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions() -> Mapping[str, Distribution]:
    """All that Python finds, by normalised name."""
    return _distributions(places_of_imports())


Places = tuple[tuple[Path, int], ...]
"""Folders that modules are imported from, each with the time when something was last added to it."""


def places_of_imports() -> Places:
    """The folders of `sys.path` as they are now."""
    folders = (Path(place or os.curdir).absolute() for place in sys.path)
    return tuple((folder, folder.stat().st_mtime_ns) for folder in folders if folder.is_dir())


@lru_cache
def _distributions(places: Places) -> Mapping[str, Distribution]:
    found: dict[str, Distribution] = {}
    for folder, _ in places:
        for info in sorted(folder.glob("*.dist-info")):
            found.setdefault(normalised(info.name.removesuffix(".dist-info").rpartition("-")[0]), Distribution(info))
    return found


def owner_of(root: Path) -> Distribution | None:
    """The distribution that installed a package or module, also as a link to its sources; None if none did."""
    return _owner_of(root, places_of_imports())


@lru_cache(maxsize=4096)
def _owner_of(root: Path, places: Places) -> Distribution | None:
    known = _distributions(places)
    path = str(root)
    top = root.parent.name if root.name == _INIT else root.name.partition(".")[0]
    likely = [known[name] for name in (normalised(top),) if name in known]
    for one in (*likely, *known.values()):
        base = f"{one.info.parent}{os.sep}"
        if path.startswith(base) and one.lists(path[len(base) :].replace(os.sep, "/")):
            return one
    return next((one for one in known.values() if any(_holds(folder, root) for folder in _linked(one.info))), None)


def _holds(sources: Path, file: Path) -> bool:
    return file.is_relative_to(sources) and _SITES.isdisjoint(file.relative_to(sources).parts)


@lru_cache
def _linked(info: Path) -> tuple[Path, ...]:
    """The folder of its sources, if it was installed as a link to them (`pip install --editable`)."""
    try:
        told = loads((info / "direct_url.json").read_bytes())
        url = urlsplit(told["url"])
        linked = url.scheme == "file" and bool(told["dir_info"].get("editable"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()
    return (Path(unquote(url.path)),) if linked else ()


def sources(files: Iterable[Path]) -> Iterator[bytes]:
    """The content of those files that are source code."""
    yield from (path.read_bytes() for path in files if path.suffix == ".py" and path.is_file())
