"""The tables in the documents are those of the raw results beside them."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.benchmark.benchmark_table import markdown
from medfedvqa.benchmark.comparison import compared
from medfedvqa.benchmark.results_file import read
from medfedvqa.benchmark.systems import systems_named
from medfedvqa.benchmark.tuning_search import Choice

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SEARCHED = set(Choice.model_fields)


def without(options: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slake", "vqa-rad", "slake-all", "vqa-rad-all"])
def test_a_published_table_is_what_the_command_makes_of_its_raw_results(name: str) -> None:
    """To the letter: every figure, interval and p value, and the sentences below them."""
    results, left_out = read([DOCS / "benchmark" / f"{name}.jsonl"])
    made = markdown(compared(results)).split("\n## ")[0]
    assert not left_out
    assert made.strip() in (DOCS / "benchmark.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((DOCS / "benchmark").glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_published_line_ran_with_the_options_of_its_label(path: Path) -> None:
    """With these and no others, but for what a search chose and what the whole table has in common."""
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["method"]:
            (system,) = systems_named([record["system"]])
            named = json.loads(json.dumps(system.options))
            of_table = {*record["budget"], "decay_after"}
            if record["split"]["questions"] == "all":
                of_table.add("answers")
            elsewhere = SEARCHED | (of_table - named.keys())
            assert record["method"] == system.method
            assert without(record["options"], elsewhere) == without(named, elsewhere)


def test_the_published_table_of_many_sites_is_what_the_program_makes_of_its_records() -> None:
    """Line by line, and no line more."""
    lines = (DOCS / "measured" / "scale.jsonl").read_text(encoding="utf-8").splitlines()
    made = runpy.run_path(str(ROOT / "benchmarks" / "scale.py"))["table"]([json.loads(line) for line in lines])
    table = "\n".join(made)
    assert f"\n\n{table}\n\n" in (DOCS / "benchmarks.md").read_text(encoding="utf-8")
