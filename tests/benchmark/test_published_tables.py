"""The tables in docs/benchmark.md are those of the raw results beside it."""

from pathlib import Path

import pytest

from medfedvqa.benchmark.benchmark_table import markdown
from medfedvqa.benchmark.comparison import compared
from medfedvqa.benchmark.results_file import read

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["slake", "vqa-rad", "slake-all", "vqa-rad-all"])
def test_a_published_table_is_what_the_command_makes_of_its_raw_results(name: str) -> None:
    """To the letter: every figure, interval and p value, and the sentences below them."""
    results, left_out = read([DOCS / "benchmark" / f"{name}.jsonl"])
    made = markdown(compared(results)).split("\n## ")[0]
    assert not left_out
    assert made.strip() in (DOCS / "benchmark.md").read_text(encoding="utf-8")
