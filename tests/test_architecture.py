"""The plan of the house: which floor may import which, and how long a file may be."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS = [
    {
        "medfedvqa.answer_types",
        *("audits", "medfedvqa.backbone_names", "medfedvqa.bounds", "medfedvqa.checking", "medfedvqa.code_identity"),
        "medfedvqa.devices",
        "medfedvqa.errors",
        *("medfedvqa.atomic_files", "medfedvqa.figures", "medfedvqa.installed_code", "medfedvqa.plugins"),
        *("medfedvqa.guarded_http", "medfedvqa.pending_files"),
        *("medfedvqa.near_miss", "medfedvqa.outside_files", "medfedvqa.public_answers", "medfedvqa.version"),
        "medfedvqa.shape_cards",
    },
    {"privacy"},
    {"medfedvqa.models", "medfedvqa.ingest"},
    {"medfedvqa.data", "medfedvqa.dicomweb"},
    {"medfedvqa.evaluation"},
    {"medfedvqa.training"},
    {"medfedvqa.core"},
    {"medfedvqa.methods", "medfedvqa.pretraining"},
    {"medfedvqa.federation", "medfedvqa.vault"},
    {"medfedvqa.attack"},
    {"medfedvqa.answering", "medfedvqa.backup", "medfedvqa.benchmark", "medfedvqa.report"},
    {"medfedvqa.library", "medfedvqa.reproduce"},
    {"medfedvqa.cli"},
]
PACKAGES = ("audits", "privacy", "medfedvqa")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def room(module: str) -> str | None:
    """The room that a module of ours belongs to, None for others' modules."""
    parts = module.split(".")
    if parts[0] in ("audits", "privacy"):
        return parts[0]
    return ".".join(parts[:2]) if parts[0] == "medfedvqa" and len(parts) > 1 else None


def floor(name: str) -> int:
    return next(level for level, rooms in enumerate(FLOORS) if name in rooms)


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


def test_no_package_takes_a_name_from_elsewhere_that_one_of_its_files_has() -> None:
    """Importing the file would put it in the name's place, depending on who imports first."""
    for init in (path for path in SOURCES if path.name == "__init__.py"):
        files = {path.stem for path in init.parent.glob("*.py")}
        for node in ast.parse(init.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                given = {alias.asname or alias.name for alias in node.names} - {str(node.module).rpartition(".")[2]}
                assert not given & files, (init, given & files)


def test_no_file_is_longer_than_400_lines() -> None:
    """A file holds one idea, tests as well; 400 lines are the most."""
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (*SOURCES, *TESTS)}
    assert not {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > 400}


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
