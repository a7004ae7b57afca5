"""Every table and figure of the founding papers has an entry, and every entry runs, or says why nothing does."""

import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from medfedvqa.errors import ConfigError
from medfedvqa.research.benchmark.printed import PrintedTable
from medfedvqa.research.benchmark.systems import systems_named
from medfedvqa.research.reproduce.catalogue import PAPERS, TESTED_BY, command_of, entry_of, lines, paper_of
from medfedvqa.research.reproduce.entries import Absent, PaperEntry, PaperTable, Program, Trunks
from medfedvqa.research.reproduce.papers import feddat, fedp3
from medfedvqa.research.reproduce.tables import labels_of

CAPTIONS = {"fedp3": (6, 8), "feddat": (4, 6), "prompt-pfl": (2, 5), "unicon": (3, 7), "creamfl": (0, 0)}
"""Tables and figures with captions in each paper. Of CreamFL's the project has notes, which name two measurements."""
ENTRIES = [(paper, entry) for paper in PAPERS for entry in paper.entries]
TABLES = {
    (paper.name, entry.name): entry.protocol.printed
    for paper, entry in ENTRIES
    if isinstance(entry.protocol, PaperTable)
}
ROOT = Path(__file__).parents[2]


def test_every_caption_of_the_papers_has_an_entry() -> None:
    """Tables and figures by their numbers; what has no number comes besides."""
    for paper in PAPERS:
        tables, figures = CAPTIONS[paper.name]
        wanted = {f"table{number}" for number in range(1, 1 + tables)}
        wanted |= {f"fig{number}" for number in range(1, 1 + figures)}
        names = [entry.name for entry in paper.entries]
        assert wanted <= set(names) and len(names) == len(set(names))
        others = set(names) - wanted
        assert not [name for name in others if name.startswith(("table", "fig"))]
    assert [paper.number for paper in PAPERS] == list(range(5))


@pytest.mark.parametrize(("paper", "entry"), ENTRIES, ids=lambda each: getattr(each, "name", ""))
def test_an_entry_has_a_command_or_a_reason_and_says_what_differs(paper: Any, entry: PaperEntry) -> None:
    """Labels are systems of the benchmark, and programs are there; what runs differs from the paper in something."""
    protocol = entry.protocol
    if isinstance(protocol, Absent):
        assert protocol.reason and not command_of(paper, entry)
        return
    assert command_of(paper, entry).startswith(f"medfedvqa reproduce {paper.name} {entry.name}")
    assert entry.differs or (paper.settings and isinstance(protocol, PaperTable | Trunks))
    if isinstance(protocol, Program):
        assert (ROOT / "benchmarks" / f"{protocol.name}.py").is_file()
    else:
        labels = labels_of(protocol)
        assert {system.label for system in systems_named(labels)} == set(labels)


@pytest.mark.parametrize("printed", TABLES.values(), ids=map(" ".join, TABLES))
def test_rows_have_a_figure_for_each_column_and_another_name_each(printed: PrintedTable) -> None:
    """A row without a system says why."""
    assert all(len(row.figures) == len(printed.columns) for row in printed.rows)
    assert len({row.name for row in printed.rows}) == len(printed.rows)
    assert all(row.label or row.differs for row in printed.rows)


def test_methods_that_are_not_built_stand_in_their_tables_with_the_reason() -> None:
    """M2I2 in the prompt paper's tables, FedGKT in CreamFL's; no system runs for them."""
    for table, name in (
        (("prompt-pfl", "table1"), "M2I2"),
        (("prompt-pfl", "table2"), "M2I2"),
        (("creamfl", "global"), "FedGKT"),
    ):
        (row,) = [row for row in TABLES[table].rows if row.name == name]
        assert not row.label and row.differs.startswith("not built: ")


def test_feddat_s_averages_are_those_of_its_columns() -> None:
    """Table 2 but for one row, whose printed average is another, and Table 1, to the rounding of two digits."""
    off = []
    for table in (feddat.TABLE_1, feddat.TABLE_2):
        for row in table.rows:
            *parts, average = (figure for figure in row.figures if figure is not None)
            off += [row.name] if abs(fmean(parts) - average) > 0.011 else []
    assert off == []


def test_fedp3_s_ablations_agree_with_the_tables_of_its_scenes() -> None:
    """FedAvg, soft targets (KP at T = 2) and FedP3, but for FedP3's global average in Table 4."""
    off = []
    for scenes, ablation in ((fedp3.TABLE_2, fedp3.TABLE_4), (fedp3.TABLE_3, fedp3.TABLE_6)):
        by_method = {row.name: row.figures for row in scenes.rows}
        by_setting = {row.name: row.figures for row in ablation.rows}
        for method, setting in (("FedAvg", "FedAvg"), ("ST", "KP, T = 2"), ("FedP3", "Equ. (11), which is Eq. 12")):
            means = fmean(by_method[method][:4]), fmean(by_method[method][4:])
            for place, (mean, printed) in enumerate(zip(means, by_setting[setting], strict=True)):
                off += [(ablation.title[:7], method, place)] if abs(mean - printed) > 0.011 else []
    assert off == [("Table 4", "FedP3", 1)]


def test_papers_and_entries_are_found_as_one_would_write_them() -> None:
    """By name or number; as `Table 2`, `Fig. 5` or `Figure 5`."""
    assert {paper_of(name).name for name in ("prompt-pfl", "prompt_pfl", "2", "002", "Prompt-pFL")} == {"prompt-pfl"}
    paper = paper_of("fedp3")
    assert {entry_of(paper, name).name for name in ("table2", "Table 2", "tab. 2")} == {"table2"}
    assert {entry_of(paper, name).name for name in ("fig5", "Fig. 5", "Figure 5", "figure-5")} == {"fig5"}
    with pytest.raises(ConfigError, match="there is no paper 'fedp4': did you mean 'fedp3'"):
        paper_of("fedp4")
    with pytest.raises(ConfigError, match="there is no table 'table7' of 'fedp3'"):
        entry_of(paper, "table 7")


@pytest.mark.parametrize(
    ("tier", "selected"), [pytest.param("slow", "slow and not release", marks=pytest.mark.slow), ("release", "release")]
)
def test_pytest_starts_the_entries_that_the_list_marks_in_the_tier_that_it_names(tier: str, selected: str) -> None:
    """As pytest itself selects them: each entry by its command, a program of the source tree by its own test."""
    files = ["tests/reproduce/test_every_entry.py", "tests/benchmark/test_programs.py"]
    words = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", selected, *files]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    started = {match[1] for match in re.finditer(r"::test_\w+\[([\w-]+)\]$", done.stdout, re.MULTILINE)}
    marked = [line for line in lines() if line["tested_by"] == TESTED_BY[tier]]
    assert marked and all(bool(line["tested_by"]) is not bool(line["reason"]) for line in lines())
    names = {line["program"] and Path(line["program"]).stem or f"{line['paper']}-{line['entry']}" for line in marked}
    others = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert names - others == {name for name in started if name not in others} and names & others <= started
