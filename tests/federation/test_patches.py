"""What this project reaches behind FLARE's interface: it is all in one table, and another source of it is refused."""

import ast
import hashlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import nvflare
import pytest
from nvflare.fuel.utils.fobs.fobs import Packer
from packaging.requirements import Requirement
from packaging.version import Version
from typer.testing import CliRunner

from medfedvqa.cli import app
from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.compare import differences, download, source_in
from medfedvqa.federation.flare.kit_contents import kit_problem

ROOT = Path(__file__).parents[2]
SOURCES = [path for package in ("medfedvqa", "privacy", "audits") for path in sorted((ROOT / package).rglob("*.py"))]
INSTALLED = Path(nvflare.__file__).parents[1]
SITE_LIST = {"ClientRequestProcessors.request_processors"}
NAMES = {id(row): name for name, row in vars(patches).items() if isinstance(row, patches.Reach)}


@pytest.fixture
def kits(site_kits: Path) -> dict[str, Path]:
    return {"site": site_kits / "chest", "server": site_kits / "localhost"}


@pytest.mark.parametrize("row", patches.REACHES, ids=lambda row: row.name)
def test_the_installed_source_is_the_one_in_the_table(row: patches.Reach) -> None:
    """By the object in memory, by the file, and by the version that the table names for the digest."""
    place = row.source or row.target
    text = inspect.getsource(resolve_name(place))
    assert row.has_tested_source() and nvflare.__version__ in row.digests[hashlib.sha256(text.encode()).hexdigest()]
    assert source_in(INSTALLED, place) == text


def test_the_table_covers_exactly_the_tested_versions() -> None:
    """Every row names every tested version once."""
    for row in patches.REACHES:
        assert sorted(version for versions in row.digests.values() for version in versions) == sorted(patches.TESTED)


def test_the_required_range_has_no_end_and_the_lock_a_tested_release() -> None:
    """A site takes FLARE's fixes when they come; a server looks at the version itself. The page says the range."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    training = project["optional-dependencies"]["train"]
    (wanted,) = [Requirement(text) for text in training if text.startswith("nvflare")]
    finals = [version for version in map(Version, patches.TESTED) if not version.is_prerelease]
    assert all(wanted.specifier.contains(version) for version in (*finals, "2.9.1", "2.10.0", "3.0.0"))
    assert not wanted.specifier.contains("2.8.3")
    locked = re.search(r"^nvflare==(\S+)", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    assert locked is not None and Version(locked[1]) in finals
    (text,) = [text for text in training if text.startswith("nvflare")]
    assert f"`{text}`" in (ROOT / "docs" / "flare.md").read_text(encoding="utf-8")


def test_the_page_lists_the_table() -> None:
    """Each row with its kind and reason, and the numbers of rows of each kind."""
    page = (ROOT / "docs" / "flare.md").read_text(encoding="utf-8")
    for row in patches.REACHES:
        assert f"| `{row.name}` | {row.kind} | {row.why} |" in page
    count = Counter(row.kind for row in patches.REACHES)
    assert (
        f"{count['replaced']} functions are replaced, {count['written']} states of FLARE written, "
        f"{len(patches.PRIVATE_MODULES)} private modules imported, and {len(patches.REACHES)} digests held" in page
    )
    assert all(version in page for version in patches.TESTED)


def root_name(node: ast.AST) -> str | None:
    """The name that a chain of attributes and indices begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def of_flare(tree: ast.AST) -> dict[str, str]:
    """What each name of a file that holds something of FLARE holds: a module, a class, or one of its attributes."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if (module or alias.name).split(".")[0] == "nvflare":
                    names[alias.asname or alias.name.split(".")[0]] = alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and root_name(node.value) in names:
            held = f"{names[str(root_name(node.value))]}.{node.value.attr}"
            names |= {target.id: held for target in node.targets if isinstance(target, ast.Name)}
    return names


def instances(tree: ast.AST, names: dict[str, str]) -> dict[str, str]:
    """The classes of FLARE of a file's parameters, annotated names, and names of what is made of them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            found[node.arg] = names.get(str(root_name(node.annotation)), "")
        elif isinstance(node, ast.AnnAssign):
            found[str(root_name(node.target))] = names.get(str(root_name(node.annotation)), "")
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = names.get(str(root_name(node.value.func)), "")
            found |= {str(root_name(target)): made for target in node.targets if made[:1].isupper()}
    return {name: held for name, held in found.items() if held and name not in ("None", "self")}


def reaches(tree: ast.AST) -> Iterator[str]:
    """Writes to something of FLARE, and uses of its private names, as `Class.name`.

    Items of an instance, such as a message's, are set freely.
    """
    names = of_flare(tree)
    made = instances(tree, names)
    both = made | names
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            if root_name(node.args[0]) in both:
                yield ast.unparse(node)
        elif isinstance(node, ast.Attribute) and root_name(node) in both:
            private = node.attr.startswith("_") and not node.attr.endswith("__")
            if private or not isinstance(node.ctx, ast.Load):
                yield f"{both[str(root_name(node))]}.{node.attr}"
        elif isinstance(node, ast.Subscript) and root_name(node) in names and not isinstance(node.ctx, ast.Load):
            yield names[str(root_name(node))]


def test_nothing_else_reaches_behind_flares_interface() -> None:
    """Searched in all syntax trees: writes, private names, private modules; and each row of the table is in use."""
    found, modules, replaced = set[str](), set[str](), set[str]()
    for path in SOURCES:
        if "nvflare" not in (text := path.read_text(encoding="utf-8")):
            continue
        tree = ast.parse(text)
        found |= set(reaches(tree))
        modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        replaced |= set(re.findall(r"patches\.([A-Z_]+)\.replace\(", text))
    # At a site, the guard stands before FLARE's processors: a change of FLARE's makes it refuse, and needs no digest.
    assert found == {row.name for row in patches.REACHES if row.kind in ("written", "read")} | SITE_LIST
    # A private module's own members are modules too: `from nvflare.private import admin_defs`.
    private = {module for module in modules if module.startswith("nvflare.private.")}
    assert private | {"nvflare.private.admin_defs"} == patches.PRIVATE_MODULES
    assert replaced == {NAMES[id(row)] for row in patches.REACHES if row.kind == "replaced"}
    assert len(NAMES) == len(patches.REACHES)


@pytest.mark.parametrize(
    ("code", "reached"),
    [
        ("from nvflare.a import B\nB.c = 1", {"B.c"}),
        ("from nvflare.a import B as D\ndel D.c", {"B.c"}),
        ("import nvflare.a\nnvflare.a.b = 1", {"nvflare.a.b"}),
        ("from nvflare.a import B\nx = B.c\nx[:] = []", {"B.c"}),
        ("from nvflare.a import B\ndef f(b: B):\n    b.c += 1", {"B.c"}),
        ("from nvflare.a import B\nb = B()\nb.c = b['d'] = 1", {"B.c"}),
        ("from nvflare.a import B\nb: B = f()\nb.c = 1", {"B.c"}),
        ("from nvflare.a import B\nB._c()", {"B._c"}),
        ("from nvflare.a import B\nsetattr(B, 'c', 1)", {"setattr(B, 'c', 1)"}),
        ("from nvflare.a import B\nB.c(B.d)", set()),
        ("from other import B\nB.c = B._d", set()),
    ],
)
def test_the_search_finds_what_it_looks_for(code: str, reached: set[str]) -> None:
    """Assignments and deletions, aliases, annotated parameters, private names, `setattr`."""
    assert set(reaches(ast.parse(code))) == reached


@pytest.mark.parametrize("row", patches.REACHES, ids=lambda row: row.name)
def test_an_unknown_digest_refuses_at_the_server_alone(
    monkeypatch: pytest.MonkeyPatch, kits: dict[str, Path], row: patches.Reach
) -> None:
    """With a sentence that says what to install; a site takes any version."""
    others = tuple(other for other in patches.REACHES if other is not row)
    monkeypatch.setattr(patches, "REACHES", (*others, replace(row, digests={"0" * 64: patches.TESTED})))
    reason = kit_problem(kits["server"], "server")
    assert kit_problem(kits["site"], "site") is None
    assert reason is not None and row.name in reason and f"FLARE {nvflare.__version__}" in reason
    assert all(version in reason for version in patches.TESTED)


def test_another_source_refuses_and_what_this_project_replaced_does_not(
    monkeypatch: pytest.MonkeyPatch, kits: dict[str, Path]
) -> None:
    """The digest is of FLARE's source, also beneath replacements."""

    def unpack(packer: Packer, value: object) -> object:
        return value

    original = Packer.unpack
    monkeypatch.setattr(Packer, "unpack", original)
    for _ in range(2):
        patches.UNPACK.replace(lambda packer, value: value)
        assert patches.UNPACK.replaced() and patches.UNPACK.has_tested_source()
        assert kit_problem(kits["server"], "server") is None
    monkeypatch.setattr(Packer, "unpack", unpack)
    assert "Packer.unpack" in str(kit_problem(kits["server"], "server")) and not patches.UNPACK.replaced()
    monkeypatch.delattr(Packer, "unpack")
    assert "Packer.unpack" in str(kit_problem(kits["server"], "server"))


def test_a_version_whose_reached_code_is_known_starts_and_the_doctor_says_that_it_is_untested(
    monkeypatch: pytest.MonkeyPatch, kits: dict[str, Path]
) -> None:
    """So that FLARE's fixes can be installed at once, and people know what they rely on."""
    monkeypatch.setattr(patches, "TESTED", ("2.8.0",))
    assert kit_problem(kits["server"], "server") is None
    result = CliRunner().invoke(app, ["doctor", str(kits["server"]), "--json"])
    checks = json.loads(result.stdout)["checks"]
    (check,) = [check for check in checks if check["name"] == "FLARE's version" and check["problem"]]
    assert check["ok"] and "tests" in check["problem"] and check["remedy"]


CHANGED = """
import runpy, sys
from nvflare.fuel.utils.fobs.fobs import Packer
def unpack(self, found):
    return found
Packer.unpack = unpack
sys.argv[0] = sys.argv.pop(1)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_a_server_with_another_flare_ends_with_one_sentence(kits: dict[str, Path]) -> None:
    """Before it talks to anybody."""
    kit = kits["server"]
    command = [sys.executable, "-c", CHANGED, "nvflare.private.fed.app.server.server_train", "-m", str(kit)]
    command += ["-s", "fed_server.json", "--set", "secure_train=true", "org=coordinator", "config_folder=config"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=kit, timeout=300)
    (sentence,) = [text for text in done.stderr.splitlines() if "does not start" in text]
    assert done.returncode == 1 and "Packer.unpack" in sentence and "install nvflare" in sentence


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A copy of all that is compared."""
    modules = {(row.source or row.target).partition(":")[0] for row in patches.REACHES} | patches.PRIVATE_MODULES
    for module in modules:
        path = Path(*module.split(".")).with_suffix(".py")
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes((INSTALLED / path).read_bytes())
    return tmp_path


def test_a_comparison_prints_what_changed_and_nothing_else(other: Path) -> None:
    """A changed line with the digest to add; a function and a module that are gone; no other code of the same file."""
    assert list(differences(INSTALLED, other, "9.0")) == []
    packing = other / "nvflare/fuel/utils/fobs/fobs.py"
    text = packing.read_text()
    assert "def unpack" in text
    packing.write_text(
        text.replace("    def unpack(self, ", "    def unpack(me, ").replace("def num_decomposers", "def count")
    )
    streams = other / "nvflare/fuel/f3/streaming/byte_receiver.py"
    streams.write_text(streams.read_text().replace("def _remove_task", "def _remove"))
    (other / "nvflare/private/defs.py").unlink()
    changed = "\n".join(differences(INSTALLED, other, "9.0"))
    assert re.findall(r"^(?:replaced|written|read|relied on|imported): (\S+)", changed, re.MULTILINE) == [
        "Packer.unpack",
        "RxTask.cleanup_timer",
        "RxTask._remove_task",
        "nvflare.private.defs",
    ]
    source = source_in(other, "nvflare.fuel.utils.fobs.fobs:Packer.unpack")
    assert hashlib.sha256(str(source).encode()).hexdigest() in changed
    assert "-    def unpack(self, " in changed and changed.count("it is gone in 9.0") == 2


@pytest.mark.parametrize("version", ["", "--help", "2.9", "2.9.0 --pre", "../2.9.0", "latest", "2.9.0.whl", "9.9.9"])
def test_a_version_that_cannot_be_had_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    """In one sentence, and pip is handed nothing but versions. Here the registry is an empty folder."""
    settings: dict[str, Any] = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="written like|no wheel"):
        download(version, tmp_path)
