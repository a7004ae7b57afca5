"""Prints how many tests each tier holds, and by file the claims that `make test` leaves to the others: a program."""

import ast
import contextlib
import io
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TIERS = {"test": "`make test`", "slow": "`make test-all` only", "release": "`make test-release` only"}


class Collected:
    """A pytest plug-in that keeps all tests by tier and file."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[Path, list[pytest.Item]]] = {tier: defaultdict(list) for tier in TIERS}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Release before slow: a test with both marks runs before releases only."""
        for item in session.items:
            tier = next((name for name in ("release", "slow") if item.get_closest_marker(name)), "test")
            self.tests[tier][item.path].append(item)

    def functions(self, tier: str, path: Path) -> set[str]:
        """The names of a file's test functions in a tier."""
        return {item.nodeid.partition("[")[0].rpartition("::")[2].partition("@")[0] for item in self.tests[tier][path]}


def claim(path: Path, function: str) -> str:
    """The test's name as a sentence, and the first line of its docstring."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    node = next(node for node in tree if isinstance(node, ast.FunctionDef) and node.name == function)
    text = (ast.get_docstring(node) or "").partition("\n")[0]
    return f"{function.removeprefix('test_').replace('_', ' ')}. {text}".rstrip()


def main() -> None:
    """Counts first, then the claims of which `make test` tries no case."""
    collected = Collected()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = pytest.main(["--collect-only", "--quiet", str(ROOT / "tests")], plugins=[collected])
    if status:
        raise SystemExit(printed.getvalue())
    for tier, name in TIERS.items():
        print(f"{sum(map(len, collected.tests[tier].values())):6} tests in {name}")
    for tier in ("slow", "release"):
        print(f"\nClaims in {TIERS[tier]}:")
        for path in sorted(collected.tests[tier]):
            if left := collected.functions(tier, path) - collected.functions("test", path):
                print(f"\n{path.relative_to(ROOT)}")
                print(*(f"- {claim(path, function)}" for function in sorted(left)), sep="\n")


if __name__ == "__main__":
    main()
