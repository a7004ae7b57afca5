"""Changes the code of audits, privacy and vault in many small ways, one at a time, and asks whether a test notices.

    python tests/mutants.py --count 200 --seed 0

A change is drawn among the places where a comparison, a sum, a number, a condition, a `raise` or a returned value
stands. On a copy of the project those fast tests of the packages run that reach the changed line. A change that no test
notices is printed with its place; it is a test to write, or code that nobody needs.
"""

import argparse
import ast
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import pytest
from coverage import CoverageData

ROOT = Path(__file__).parents[1]
PACKAGES = ("audits", "privacy", "medfedvqa/vault")
"""The packages whose code is changed."""
NEAREST = 5
"""Files of tests that are asked last, because a line may run in another process than the test."""
LIMIT, MEMORY = 300, 8 << 30
"""Seconds and bytes, beyond which a change that makes the tests hang, or fill the memory, counts as noticed."""
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the text between two offsets of a line, and what takes its place."""

    path: Path
    """In the project."""
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
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
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


class Reach:
    """Which tests reach which line, by one run of the unchanged project under coverage."""

    def __init__(self, root: Path) -> None:
        """Runs the fast tests of the packages in a copy of the project.

        Raises:
            SystemExit: One of them fails without any change.
        """
        self._root = root
        folders = [folder for package in PACKAGES if (folder := root / "tests" / Path(package).name).is_dir()]
        options = ["-n", str(os.cpu_count()), "--dist", "loadfile", "--cov-context=test", "--cov-report="]
        if fails([*options, *(f"--cov={package}" for package in PACKAGES), *map(str, folders)], root, limit=None):
            raise SystemExit("a test fails without any change: mend it first")
        self._data = CoverageData(str(root / ".coverage"))
        self._data.read()

    def tests(self, mutant: Mutant) -> list[str]:
        """Tests that reach the changed lines, those first whose file is named after the changed one.

        Where a line is reached while a fixture is set up, all tests of the file may need it.
        """
        contexts = self._data.contexts_by_lineno(str(self._root / mutant.path))
        tests = set()
        for line in range(mutant.first[0] + 1, mutant.last[0] + 2):
            for context in filter(None, contexts.get(line, [])):
                test, phase = context.rsplit("|", 1)
                tests.add(test if phase == "run" else test.split("::")[0])
        stem = mutant.path.stem
        return sorted(tests, key=lambda test: (stem not in test, test))


def nearest(path: Path, root: Path) -> list[str]:
    """The files of tests that import a file of the project, then those that name most of what it defines."""
    tree = ast.parse((root / path).read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    word = re.compile(rf"\b({'|'.join(sorted(names | {path.stem}))})\b")
    imported = f"from {'.'.join(path.with_suffix('').parts)} import"

    def distance(test: Path) -> tuple[bool, int]:
        text = test.read_text(encoding="utf-8")
        return imported not in text, -len({*word.findall(text)})

    files = sorted(sorted((root / "tests").rglob("test_*.py")), key=distance)
    return [str(test.relative_to(root)) for test in files[:NEAREST]]


def is_noticed(mutant: Mutant, tests: list[str], copies: Queue[Path]) -> bool:
    """Whether a test fails, or hangs, once a copy of the project has the change, which is then taken back.

    First the tests are asked that reach the line, then the nearest files: the line may run in another process.
    """
    root = copies.get()
    path = root / mutant.path
    text = path.read_text(encoding="utf-8")
    try:
        path.write_text(mutant.applied(text), encoding="utf-8")
        return any(fails(["-x", *some], root) for some in (tests, nearest(mutant.path, root)) if some)
    finally:
        path.write_text(text, encoding="utf-8")
        copies.put(root)


def fails(arguments: list[str], root: Path, limit: float | None = LIMIT) -> bool:
    """Whether one of these tests fails, or hangs for more than `limit` seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not release"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(root), "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [*command, *arguments], cwd=root, env=environment, capture_output=True, timeout=limit, check=False
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
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    paths = [path.relative_to(ROOT) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    every = list(dict.fromkeys(mutant for path in paths for mutant in mutants_of(path)))
    drawn = random.Random(given.seed).sample(every, min(given.count, len(every)))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # a test of the vault runs the project by another account
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "site")
        copies: Queue[Path] = Queue()
        for number in range(os.cpu_count() or 1):
            copies.put(Path(shutil.copytree(ROOT, Path(folder) / str(number) / "main", ignore=ignored)))
        reach = Reach(copies.queue[0])
        noticed = []
        with ThreadPoolExecutor(copies.qsize()) as pool:
            results = pool.map(lambda mutant: is_noticed(mutant, reach.tests(mutant), copies), drawn)
            for number, (mutant, result) in enumerate(zip(drawn, results, strict=True), 1):
                noticed.append(result)
                if not result:
                    line = (ROOT / mutant.path).read_text(encoding="utf-8").splitlines()[mutant.first[0]].strip()
                    print(f"{mutant.path}:{mutant.first[0] + 1}: `{line}` with {mutant.after!r}: no test noticed")
                print(f"{number} of {len(drawn)}: {sum(noticed)} noticed", file=sys.stderr, flush=True)
    print(f"{sum(noticed)} of {len(drawn)} changes noticed ({sum(noticed) / len(drawn):.0%}), of {len(every)}")
    if sum(noticed) < given.least * len(drawn):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
