"""Compares the sources of FLARE that this project depends on, between the installed version and another one.

    python -m medfedvqa.federation.flare.compare 2.9.1

Downloads the other version by pip into a temporary folder, compares it as text, and runs none of it. Exit status: 0 if
all sources are those of a tested version, 1 if one differs or is gone, 2 if the version cannot be had.
"""

import ast
import difflib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import nvflare

from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.patches import PRIVATE_MODULES, REACHES, TESTED, Reach, sha256

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)+((a|b|rc)[0-9]+)?")


def source_in(root: Path, place: str) -> str | None:
    """The source of a function or class below `root`, as `inspect.getsource` has it; None if it is not there."""
    module, _, name = place.partition(":")
    path = _file(root, module)
    if path is None:
        return None
    text = path.read_text(encoding="utf-8")
    node = _defined(ast.parse(text), name)
    if node is None:
        return None
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])


def _defined(scope: ast.AST, name: str) -> _Definition | None:
    """The function or class `name`, or `Class.name`, that a module or class defines last; None if there is none."""
    outer, _, inner = name.partition(".")
    children = ast.iter_child_nodes(scope)
    matches = [child for child in children if isinstance(child, _Definition) and child.name == outer]
    if not matches:
        return None
    return _defined(matches[-1], inner) if inner else matches[-1]


def _file(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def differences(old: Path, new: Path, version: str) -> Iterator[str]:
    """A sentence for each `Reach` whose source in `new` was never tested, and for each missing module."""
    for place, rows in _places().items():
        source = source_in(new, place)
        if source is not None and sha256(source) in rows[0].digests:
            continue
        yield "\n".join(
            [*(f"{row.kind}: {row.name} ({row.why})" for row in rows), *_change(old, place, source, version)]
        )
    for module in sorted(PRIVATE_MODULES):
        if _file(new, module) is None:
            yield f"imported: {module}\n  it is gone in {version}"


def _places() -> dict[str, list[Reach]]:
    places: dict[str, list[Reach]] = {}
    for reach in REACHES:
        places.setdefault(reach.source or reach.target, []).append(reach)
    return places


def _change(old: Path, place: str, source: str | None, version: str) -> Iterator[str]:
    if source is None:
        yield f"  it is gone in {version}"
        return
    before = source_in(old, place) or ""
    yield from difflib.unified_diff(before.splitlines(), source.splitlines(), nvflare.__version__, version, lineterm="")
    yield f"  digest in {version}: {sha256(source)}"


def download(version: str, folder: Path) -> Path:
    """The unpacked wheel of a version of FLARE. Raises `ConfigError` if the registry has none."""
    if not _VERSION.fullmatch(version):
        raise ConfigError("a version of NVIDIA FLARE is written like 2.9.1 or 2.9.1rc5")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run([*command, "--dest", str(folder), f"nvflare=={version}"], capture_output=True, check=False)
    wheels = list(folder.glob("nvflare-*.whl"))
    if result.returncode or not wheels:
        raise ConfigError(
            f"the registry has no wheel of NVIDIA FLARE {version}, or cannot be reached: "
            "`pip index versions nvflare --pre` lists what it has"
        )
    try:
        with ZipFile(wheels[0]) as wheel:
            wheel.extractall(folder / "wheel")
    except BadZipFile:
        raise ConfigError(f"the wheel of NVIDIA FLARE {version} is damaged: download it again") from None
    return folder / "wheel"


def main(arguments: list[str]) -> int:
    """Prints the comparison; returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m medfedvqa.federation.flare.compare VERSION", file=sys.stderr)
        return 2
    (version,) = arguments
    with tempfile.TemporaryDirectory() as folder:
        try:
            new = download(version, Path(folder))
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
        changes = list(differences(Path(nvflare.__file__).parents[1], new, version))
    print("\n\n".join([*changes, _summary(version, len(changes))]))
    return 1 if changes else 0


def _summary(version: str, changed: int) -> str:
    tested = " or ".join(TESTED)
    if changed:
        return f"{changed} places differ from {tested}: servers refuse to start with {version}"
    return f"all {len(_places())} sources are those of {tested}: servers start with {version}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
