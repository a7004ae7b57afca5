"""The page of libraries names the modules that import each of them, all of them and no other."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "libraries.md").read_text(encoding="utf-8")
ROWS = {
    name: re.findall(r"`([^`]+)`", places)
    for name, places in re.findall(r"^\| (\w+) \| (`.*?`) \|", PAGE, re.MULTILINE)
}
"""The files and folders that the page names, by library."""
IMPORTED_AS = {"open_clip_torch": "open_clip"}
LOADERS = {"import_module", "find_spec"}


def libraries_of(path: Path) -> Iterator[str]:
    """The packages that a file imports, or asks for by name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in LOADERS:
            yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


@cache
def used() -> dict[str, set[str]]:
    """The packages that each file of the project imports."""
    return {
        str(path.relative_to(ROOT)): set(libraries_of(path))
        for package in ("audits", "privacy", "medfedvqa")
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def test_the_page_has_the_libraries_that_carry_the_project() -> None:
    """Eight, and none without a place."""
    names = {"torch", "open_clip_torch", "opacus", "crypten", "nvflare", "monai", "pydicom", "cryptography"}
    assert ROWS.keys() == names and all(ROWS.values())


@pytest.mark.parametrize("name", ROWS)
def test_a_library_is_imported_where_the_page_says_and_nowhere_else(name: str) -> None:
    """Each file imports it, each folder has one that does, and no other file of the project does."""
    users = {path for path, imported in used().items() if IMPORTED_AS.get(name, name) in imported}
    for place in ROWS[name]:
        assert any(path == place or (place.endswith("/") and path.startswith(place)) for path in users), place
    named = tuple(ROWS[name])
    assert not [p for p in users if p not in named and not p.startswith(tuple(n for n in named if n.endswith("/")))]
