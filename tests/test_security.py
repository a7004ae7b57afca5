"""SECURITY.md: its table of threats names tests that exist, and leaves no class of STRIDE and LINDDUN out."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "SECURITY.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.partition("## Threats, answers, tests")[2].splitlines()
    if line.startswith("| ")
][1:]
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
STRIDE = {
    *("spoofing", "tampering", "repudiation", "information disclosure", "denial of service", "elevation of privilege"),
}
LINDDUN = {
    *("linking", "identifying", "non-repudiation", "detecting", "data disclosure", "unawareness", "non-compliance"),
}


def defined(path: Path) -> set[str]:
    """The test functions of a file, in classes as well."""
    return {
        node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_threat_names_tests_that_exist(row: list[str]) -> None:
    """A row has a class, an attempt, an answer and at least one test; a test that was renamed is noticed here."""
    assert len(row) == 5 and all(row)
    named = NAMED.findall(row[4])
    assert named and len(named) == row[4].count("`") // 2
    for file, test in named:
        assert test in defined(TESTS / file), (file, test)


def test_no_class_of_threat_is_left_out() -> None:
    """Each class of STRIDE and of LINDDUN has a row."""
    assert {one.strip() for row in ROWS for one in row[1].split(",")} == STRIDE | LINDDUN
