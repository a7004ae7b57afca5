"""The plan of the house: which floor may import which, how long a file may be, and no files in a circle."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from audits.lazy_imports import places

ROOT = Path(__file__).parents[1]
FLOORS = [
    {
        *("audits", "medfedvqa.backbone_names", "medfedvqa.bounds", "medfedvqa.checking", "medfedvqa.code_identity"),
        "medfedvqa.devices",
        "medfedvqa.errors",
        *("medfedvqa.atomic_files", "medfedvqa.figures", "medfedvqa.installed_code", "medfedvqa.plugins"),
        "medfedvqa.guarded_http",
        *("medfedvqa.near_miss", "medfedvqa.public_answers", "medfedvqa.version"),
        "medfedvqa.shape_cards",
    },
    {"privacy"},
    {"medfedvqa.models", "medfedvqa.ingest"},
    {"medfedvqa.data", "medfedvqa.dicomweb"},
    {"medfedvqa.evaluation"},
    {"medfedvqa.training"},
    {"medfedvqa.core"},
    {"medfedvqa.methods", "medfedvqa.papers"},
    {"medfedvqa.federation", "medfedvqa.vault"},
    {"medfedvqa.attack"},
    {"medfedvqa.answering", "medfedvqa.backup", "medfedvqa.report"},
    {"medfedvqa.library", "medfedvqa.research"},
    {"medfedvqa.cli"},
]
PACKAGES = ("audits", "privacy", "medfedvqa")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
BORROWERS = {"test_approvals", "test_backup", "test_privacy_store", "test_withdraw"}
"""Test files that still import another one. No more may follow."""


def room(module: str) -> str | None:
    """The room that a module of ours belongs to, None for others' modules."""
    parts = module.split(".")
    if parts[0] in ("audits", "privacy"):
        return parts[0]
    return ".".join(parts[:2]) if parts[0] == "medfedvqa" and len(parts) > 1 else None


def floor(name: str) -> int:
    return next(level for level, rooms in enumerate(FLOORS) if name in rooms)


@cache
def nodes(path: Path) -> tuple[ast.stmt, ...]:
    """Imports and classes of a file, wherever they stand in it."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(node for node in tree if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef))


def imported(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def modules_above(path: Path) -> set[str]:
    """The modules that a file imports from floors above its own."""
    importer = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
    if importer in (None, "medfedvqa.__init__"):
        return set()
    return {module for module in imported(path) if (r := room(module)) and floor(r) > floor(importer)}


def test_no_room_imports_from_a_floor_above() -> None:
    """Lower floors know nothing of higher ones, so that a method or an engine can change without them."""
    above = {str(path.relative_to(ROOT)): modules for path in SOURCES if (modules := modules_above(path))}
    assert len(SOURCES) > 200 and not above


def test_only_commands_and_research_import_the_papers_and_only_commands_research() -> None:
    """What a hospital runs can be read without either: a paper's method or network is imported where a job names it."""
    importers: dict[str | None, set[str | None]] = {"medfedvqa.papers": set(), "medfedvqa.research": set()}
    for path in SOURCES:
        for module in imported(path):
            importers.get(room(module), set()).add(room(".".join(path.relative_to(ROOT).with_suffix("").parts)))
    assert importers["medfedvqa.papers"] == {"medfedvqa.papers", "medfedvqa.research", "medfedvqa.cli"}
    assert importers["medfedvqa.research"] == {"medfedvqa.research", "medfedvqa.cli"}


def test_no_name_of_a_package_is_hidden_by_a_module() -> None:
    """`from package import name` gives a module of this name once anything has imported it. So a name that one of the
    package's modules has too is of this very module, and imported at once, after which it stays."""
    hidden = []
    for path in (path for path in SOURCES if path.name == "__init__.py"):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        modules = {other.stem for other in path.parent.iterdir() if other.suffix == ".py" or other.is_dir()}
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module != package:
                names = {alias.asname or alias.name for alias in node.names} & modules
                hidden += [name for name in names if node.module != f"{package}.{name}" or node not in tree.body]
    assert not hidden


def executed(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports when it runs, within functions too: those that have the names it takes
    from a package."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = [
        node.body for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    for_types = {id(node) for body in blocks for statement in body for node in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES and id(node) not in for_types:
            at_use = places(str(MODULES[node.module]))  # a package's names that are imported when they are used
            for alias in node.names:
                module = at_use.get(alias.name, (f"{node.module}.{alias.name}",))[0]
                yield module if module in MODULES else node.module


MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}


def circle_in(imports: dict[str, set[str]]) -> tuple[str, ...]:
    """The modules that import each other in a circle, or are between circles; none if there is no circle."""
    before, remaining = 0, dict(imports)
    while len(remaining) != before:
        before = len(remaining)
        others = {other for module in remaining for other in remaining[module]}
        remaining = {m: remaining[m] for m in remaining if m in others and remaining[m] & remaining.keys()}
    return tuple(sorted(remaining))


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports within functions count, those for types alone do not. Whoever reads a file can read what it stands on."""
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ("a", "b", "c")
    assert circle_in({module: set(executed(path)) - {module} for module, path in MODULES.items()}) == ()


LONGER = {"Ledger"}
"""Classes of more than 300 lines that still have to be parted."""


def test_no_test_file_imports_another() -> None:
    """What several share is in a module without `test_` beside them, or a fixture of `conftest.py`."""
    names = {path.stem for path in TESTS if path.stem.startswith("test_")}
    found = {path.stem for path in TESTS if names & set(imported(path))}
    assert found <= BORROWERS


def test_no_file_is_longer_than_600_lines_and_no_class_than_300() -> None:
    """A file holds one idea; 600 lines are the most, 400 for tests, and 300 for a class."""
    for path in (*SOURCES, *TESTS):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= (600 if path in SOURCES else 400), path
        classes = (node for node in nodes(path) if isinstance(node, ast.ClassDef))
        long = {node.name for node in classes if (node.end_lineno or 0) - node.lineno >= 300}
        assert not long - LONGER, (path, long)


def test_no_two_public_classes_have_one_name() -> None:
    """In the packages and in `benchmarks`: a name in an error or a search means one class."""
    places = [*SOURCES, *sorted((ROOT / "benchmarks").glob("*.py"))]
    names = [node.name for path in places for node in nodes(path) if isinstance(node, ast.ClassDef)]
    assert not {name for name in names if names.count(name) > 1 and not name.startswith("_")}
