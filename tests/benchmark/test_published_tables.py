"""The tables in the documents are those of the raw results beside them."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.research.benchmark.benchmark_table import markdown
from medfedvqa.research.benchmark.results_file import read
from medfedvqa.research.benchmark.statistics import compared
from medfedvqa.research.benchmark.study import findings
from medfedvqa.research.benchmark.systems import systems_named
from medfedvqa.research.benchmark.tuning_search import Choice

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SEARCHED = set(Choice.model_fields)


def without(options: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


FORMER_HEAD = {"local": "head", "shared": "nothing", "bias": "bias", "last": "last"}
"""Values of `own`, by those of the option `head` that earlier lines have in its place."""
FORMER_LINES = "FedAdam adapter (a step a round"
"""The beginning of labels that only lines of earlier versions have."""


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    """The names of the program that makes the figures."""
    return runpy.run_path(str(DOCS / "quoted_figures.py"))


def test_published_tables_and_quoted_figures_are_those_of_the_raw_results(program: dict[str, Any]) -> None:
    """To the letter, sentences below the tables included. If this fails: `python docs/quoted_figures.py`."""
    for path, text in program["documents"]().items():
        assert path.read_text(encoding="utf-8") == text


def test_a_stale_figure_and_one_that_nobody_listed_are_noticed(program: dict[str, Any]) -> None:
    """A figure, an end of an interval, a p value, a count, a new quote and a lost one: the test above can fail."""
    quotes = (("slake", "FedAvg full", "FedAvg full without the picture"),)
    right = "Pictures are worth 8.8 points\n[5.6, 11.9], p < 0.0001."
    updated = program["updated"]
    assert updated(right, quotes) == right
    for wrong in (("8.8", "8.7"), ("5.6", "5.4"), ("11.9", "12.0"), ("< 0.0001", "0.0003")):
        assert updated(right.replace(*wrong), quotes) == right
    for text in ("Nothing.", f"{right} And 1.0 [0.5, 1.5]."):
        with pytest.raises(AssertionError):
            updated(text, quotes)
    counted = program["counts"]("slake")
    assert updated(re.sub(r"\d+ gains", "7 gains", counted), ()) == counted


@pytest.mark.parametrize("name", ["slake", "vqa-rad", "slake-all", "vqa-rad-all"])
def test_the_sections_below_a_published_table_are_those_of_its_raw_results(name: str) -> None:
    """Of closed questions the prompt paper's table and the server's own models, of all questions the literature."""
    results, left_out = read([DOCS / "benchmark" / f"{name}.jsonl"])
    sections = markdown(compared(results)).split("\n## ")[1:]
    wanted = [each for each in sections if each.startswith("Closed and open") is name.endswith("-all")]
    page = (DOCS / "benchmark" / f"{name}.md").read_text(encoding="utf-8")
    assert not left_out and len(wanted) == (1 if name.endswith("-all") else 2)
    assert all(f"## {each.strip()}" in page for each in wanted) and page.count("\n## ") == len(wanted)


def test_the_study_s_page_says_what_its_raw_results_say(program: dict[str, Any]) -> None:
    """In none of its comparisons does sharing differ from training alone by more than chance."""
    found = findings(program["results"]("slake-study"))
    signs = [each.alone.sign for each in found]
    page = " ".join((DOCS / "benchmark.md").read_text(encoding="utf-8").split())
    assert not any(signs)
    assert f"differs significantly from training alone in none of {len(signs)} comparisons" in page


@pytest.mark.parametrize("path", sorted((DOCS / "benchmark").glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_published_line_ran_with_the_options_of_its_label(path: Path) -> None:
    """With these and no others, but for what a search chose and what the whole table, or its sites, have in common."""
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "head" in record["options"]:
            record["options"]["own"] = FORMER_HEAD[record["options"].pop("head")]
        if record["method"] and not record["system"].startswith(FORMER_LINES):
            (system,) = systems_named([record["system"]])
            named = json.loads(json.dumps(system.options))
            of_table = {*record["budget"], "decay_after", "groups"}
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


def test_the_published_accuracies_by_epsilon_are_what_the_program_makes_of_its_raw_lines() -> None:
    """Line by line; and with one more answer right in a line, it is another table."""
    program = runpy.run_path(str(ROOT / "benchmarks" / "dp_accuracy.py"))
    text = (DOCS / "measured" / "dp-accuracy.jsonl").read_text(encoding="utf-8")
    made, other = (
        "\n".join(program["table"](program["cells_of"](list(map(json.loads, lines.splitlines())))))
        for lines in (text, text.replace('"right": {"released": {"chest": "0', '"right": {"released": {"chest": "1'))
    )
    page = (DOCS / "privacy.md").read_text(encoding="utf-8")
    assert f"\n\n{made}\n\n" in page and f"\n\n{other}\n\n" not in page
