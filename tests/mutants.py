"""Changes the code of audits, privacy and vault in many small ways, one at a time, and asks whether a test notices.

    python tests/mutants.py --count 200 --seed 0

A change is drawn among the places where a comparison, a sum, a number, a condition, a `raise` or a returned value
stands. The fast tests of its package run on a copy of the project, those nearest to it first: which import its file, or
name most of what it defines. A change that no test notices is printed with its place; it is a test to write, or code
that nobody needs.
"""

import argparse
import ast
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("audits", "privacy", "medfedvqa/vault")
"""The packages whose code is changed."""
NEAREST = 5
"""Files of tests that are run first."""
LIMIT = 600
"""Seconds, after which a change that makes the tests hang counts as noticed."""
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the text between two offsets of a line, and what takes its place."""

    path: Path
    first: tuple[int, int]
    """Line from 0, and the offset within it in bytes."""
    last: tuple[int, int]
    after: str

    def applied(self, text: str) -> str:
        """The file with the change."""
        lines = [line.encode() for line in text.splitlines(keepends=True)]
        before = b"".join([*lines[: self.first[0]], lines[self.first[0]][: self.first[1]]])
        behind = b"".join([lines[self.last[0]][self.last[1] :], *lines[self.last[0] + 1 :]])
        return (before + self.after.encode() + behind).decode()


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All changes of a file, none of which touches a docstring, an annotation or an import for types."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                for node in ast.walk(statement):
                    if (after := changed(node)) is not None:
                        yield Mutant(path, *place(node), ast.unparse(after))


def place(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where a node begins and ends."""
    assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None and node.end_col_offset is not None
    return (node.lineno - 1, node.col_offset), (node.end_lineno - 1, node.end_col_offset)


def changed(node: ast.AST) -> ast.AST | None:
    """The node with one change, in parentheses where it is an expression; None if it has no place for one."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
        return ast.Compare(node.left, [SWAPPED[type(node.ops[0])]()], node.comparators)  # type: ignore[list-item]
    if (
        isinstance(node, ast.BinOp)
        and type(node.op) in SWAPPED
        and not isinstance(node.left, ast.Constant | ast.JoinedStr)
    ):
        return ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)  # type: ignore[arg-type]
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(SWAPPED[type(node.op)](), node.values)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ast.Constant(node.value + 1)
    if isinstance(node, ast.Raise) and node.exc is not None:
        return ast.Pass()
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        return ast.Return(ast.Constant(None))
    return None


def tests_of(path: Path, root: Path) -> tuple[list[str], list[str]]:
    """The files of tests that are nearest to a file of the project, and the others of its package.

    Nearest are those of the package that import the file, then those that name most of what it defines; a test that
    imports a file which imports it counts as if it named two things more.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    word = re.compile(rf"\b({'|'.join(sorted(names | {path.stem}))})\b")
    folders = path.relative_to(root).parent.parts

    def is_near(test: Path, text: str, file: Path) -> bool:
        return file.stem in test.stem or imported(file) in text

    def imported(file: Path) -> str:
        return f"from {'.'.join(file.relative_to(root).with_suffix('').parts)} import"

    files = [other for package in PACKAGES for other in (root / package).rglob("*.py") if other.name != "__init__.py"]
    importers = [other for other in files if imported(path) in other.read_text(encoding="utf-8")]

    def is_in_package(test: Path) -> bool:
        return test.relative_to(root / "tests").parts[0] in folders

    def distance(test: Path) -> tuple[bool, bool, int, int]:
        text = test.read_text(encoding="utf-8")
        shared = sum(folder in test.relative_to(root / "tests").as_posix() for folder in folders)
        indirect = 2 * any(is_near(test, text, importer) for importer in importers)
        names = len({*word.findall(text)})
        return not is_near(test, text, path), not is_in_package(test), -shared, -names - indirect

    ranked = sorted(sorted((root / "tests").rglob("test_*.py")), key=distance)
    nearest, others = ranked[:NEAREST], [test for test in ranked[NEAREST:] if is_in_package(test)]
    return [str(test.relative_to(root)) for test in nearest], [str(test.relative_to(root)) for test in others]


def is_noticed(mutant: Mutant, root: Path) -> bool:
    """Whether a test fails, or hangs, once a copy of the project has the change, which is then taken back."""
    text = mutant.path.read_text(encoding="utf-8")
    try:
        mutant.path.write_text(mutant.applied(text), encoding="utf-8")
        return any(fails(tests, root) for tests in tests_of(mutant.path, root) if tests)
    finally:
        mutant.path.write_text(text, encoding="utf-8")


def fails(tests: list[str], root: Path) -> bool:
    """Whether one of these files of tests fails, or hangs."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not release"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(root), "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [*command, *tests], cwd=root, env=environment, capture_output=True, timeout=LIMIT, check=False
        )
        return done.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
    return True


def main() -> None:
    """Draws changes, tries each, prints those that nobody noticed, and fails below the share that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, default=0.85, help="share that must be noticed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "main"
        root.parent.chmod(0o755)  # a test of the vault runs the project by another account
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "site")
        shutil.copytree(ROOT, root, ignore=ignored)
        every = [m for package in PACKAGES for path in sorted((root / package).rglob("*.py")) for m in mutants_of(path)]
        drawn = random.Random(given.seed).sample(every, min(given.count, len(every)))
        needed = {test for path in {m.path for m in drawn} for tests in tests_of(path, root) for test in tests}
        folders = {Path(test).parts[1] for test in needed}
        if any(fails([test for test in sorted(needed) if Path(test).parts[1] == folder], root) for folder in folders):
            raise SystemExit("a test fails without any change: mend it first")
        noticed = 0
        for number, mutant in enumerate(drawn, 1):
            if is_noticed(mutant, root):
                noticed += 1
            else:
                line = mutant.path.read_text(encoding="utf-8").splitlines()[mutant.first[0]].strip()
                place = f"{mutant.path.relative_to(root)}:{mutant.first[0] + 1}"
                print(f"{place}: `{line}` with {mutant.after!r}: no test noticed", flush=True)
            print(f"{number} of {len(drawn)}: {noticed} noticed", file=sys.stderr, flush=True)
    print(f"{noticed} of {len(drawn)} changes noticed ({noticed / len(drawn):.0%}), of {len(every)} that there are")
    if noticed < given.least * len(drawn):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
