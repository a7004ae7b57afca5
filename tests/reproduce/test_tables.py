"""A paper's table beside runs: whose models stand in which column, on which sites, and which rows cannot run."""

from dataclasses import replace
from pathlib import Path

import pytest

from medfedvqa.errors import ConfigError
from medfedvqa.research.benchmark.benchmark_table import beside_printed
from medfedvqa.research.benchmark.grid import Grid
from medfedvqa.research.benchmark.printed import Place, PrintedRow, PrintedTable
from medfedvqa.research.benchmark.results_file import RunOutcome
from medfedvqa.research.benchmark.systems import systems_named
from medfedvqa.research.reproduce.catalogue import PAPERS, entry_of, paper_of
from medfedvqa.research.reproduce.entries import PaperTable
from medfedvqa.research.reproduce.papers import feddat, fedp3
from medfedvqa.research.reproduce.tables import labels_of, on_backbone, on_paper_s_sites, runnable, with_budget


def outcome(right: dict[str, list[bool]]) -> RunOutcome:
    return RunOutcome(right, {}, {site: list(range(len(rows))) for site, rows in right.items()}, 0, 0, 1, 1)


def test_a_printed_table_takes_personal_models_where_sites_train_and_the_mean_where_they_do_not() -> None:
    """By hand: the personal row has 75 % at a and b; site c is unseen. A dash of the paper is one of ours."""
    table = PrintedTable(
        "a table",
        {"A": Place(of="seen", number=0), "local": Place(of="seen"), "global": Place(of="unseen"), "x": Place("x")},
        (PrintedRow("one", (1.0, 2.0, 3.0, 4.0), "M", "this"), PrintedRow("two", (1.0, 2.0, None, 4.0), "M", "")),
        personal=True,
    )
    shared = outcome({"a": [False, False], "b": [True, False], "c": [True, False]})
    personal = outcome({"a": [True, True], "b": [True, False], "c": [True, False]})
    text = beside_printed(table, {"M": [shared], "M (personal)": [personal]}, ("c",))
    assert (
        "|  | A (paper) | a (here) | local (paper) | local (here) | global (paper) | global (here) | x (paper) |"
        in text
    )
    assert "| one | 1.00 | 100.00 | 2.00 | 75.00 | 3.00 | 50.00 | 4.00 | – | this |" in text
    assert "| two | 1.00 | 100.00 | 2.00 | 75.00 | – | – | 4.00 | – |  |" in text
    assert "| one | 1.00 | 0.00 | 2.00 | 25.00 |" in beside_printed(
        replace(table, personal=False), {"M": [shared], "M (personal)": [personal]}, ("c",)
    )


def test_feddat_s_rows_stand_beside_runs_of_their_own_backbone() -> None:
    """A CLIP or a ViLT has the lines of ViLT, others their own; the other lines say what to run for them."""
    lines = {"vilt-b32": ("ViLT", 9), "vault-b32": ("VAuLT", 9), "albef-b16": ("ALBEF", 8)}
    for backbone in ("medclip2-slake", *(f"{architecture}@mine" for architecture in lines)):
        rows, own = on_backbone(feddat.TABLE_2, backbone).rows, lines.get(backbone.partition("@")[0], ("ViLT", 9))
        assert {row.name.partition(":")[0] for row in rows if row.label} == {own[0]}
        for architecture, (_, count) in lines.items():
            others = sum(f"--backbone {architecture}@LABEL" in row.differs for row in rows)
            assert others == (0 if lines[architecture] == own else count)
    labels = labels_of(PaperTable(feddat.TABLE_2, {}))
    assert len(labels) == len(set(labels)) == 9 and labels_of(PaperTable(feddat.TABLE_2, {}), "VAuLT: FedDAT") == [
        "FedDAT"
    ]


TABLES_WITH_UNSEEN = ("table2", "table3", "table4", "table6")


def planned(paper: str, name: str, out: Path, organs: tuple[str, ...], reader: str = "phantom") -> Grid:
    protocol = entry_of(paper_of(paper), name).protocol
    systems = systems_named(labels_of(protocol))
    grid = Grid(reader, None, out, systems, 1, {}, organs)
    return on_paper_s_sites(with_budget(grid, protocol, {"rounds": 1}), protocol)


def test_a_table_has_the_paper_s_sites_and_budget(tmp_path: Path) -> None:
    """Six drawn sites, two of them unseen; of four organs of a set one is. A user's rounds come before the paper's."""
    drawn = planned("fedp3", "table2", tmp_path, ("chest", "abdomen", "head"))
    assert len(drawn.sites) == 6 and drawn.regime.unseen == ("site-005", "site-006")
    real = planned("fedp3", "table2", tmp_path, ("lung", "abdomen", "brain", "others"), "slake")
    assert real.regime.unseen == ("others",)
    assert real.budget["rounds"] == 1 and real.budget["local_epochs"] == 2 and real.budget["answers"] == "public"


@pytest.mark.slow
def test_every_row_of_every_table_can_run_or_says_why_not(tmp_path: Path) -> None:
    """On the phantom set with the bundled backbone, only prompts in more blocks than it has are left out."""
    left_out = []
    for paper in PAPERS:
        for entry in paper.entries:
            if isinstance(entry.protocol, PaperTable):
                left_out += runnable(planned(paper.name, entry.name, tmp_path, ("chest", "abdomen", "head")))[1]
    assert [remark.split(". ")[0] for remark in left_out] == [f"Left out: prompt_pfl r = {blocks}" for blocks in (6, 9)]
    assert "6 blocks are to be tuned" in left_out[0]


def test_a_table_without_a_row_that_can_run_is_refused(tmp_path: Path) -> None:
    """With the first reason."""
    with pytest.raises(ConfigError, match="no row of this table can run so"):
        runnable(replace(planned("prompt-pfl", "r", tmp_path, ("chest",)), systems=systems_named(["prompt_pfl r = 9"])))


def test_rows_are_named_by_their_numbers_and_by_names_that_hold_commas() -> None:
    """Every row of every printed table is reached both ways, also beside others."""
    for protocol in (entry.protocol for paper in PAPERS for entry in paper.entries):
        if isinstance(protocol, PaperTable):
            rows = [row for row in protocol.printed.rows if row.label]
            for number, row in enumerate(rows, 1):
                assert labels_of(protocol, row.name) == labels_of(protocol, f" {number} ") == [row.label]
            pair = [rows[0].label, rows[-1].label]
            assert labels_of(protocol, f"{rows[-1].name},1") == list(dict.fromkeys(reversed(pair)))
    table = next(entry.protocol for entry in fedp3.PAPER.entries if entry.name == "table4")
    assert labels_of(table, "KP, T = 1,FedAvg") == ["KP T = 1", "FedAvg last 3 blocks (public answers)"]
    for twice in ("1,1", "1,FedAvg", "KP, T = 1,2"):
        with pytest.raises(ConfigError, match="is named twice in --rows: name it once"):
            labels_of(table, twice)
    for wrong in ("KP", "0", "99", "1,,2"):
        with pytest.raises(ConfigError, match="1 FedAvg; 2 KP, T = 1"):
            labels_of(table, wrong)


def test_a_second_table_of_a_paper_has_other_unseen_sites(tmp_path: Path) -> None:
    """Tables 2 and 3 of FedP3, and 4 and 6, leave other scenes out."""
    organs = tuple("abcdef")
    unseen = {name: planned("fedp3", name, tmp_path, organs, "slake").regime.unseen for name in TABLES_WITH_UNSEEN}
    assert unseen == {"table2": ("e", "f"), "table3": ("a", "b"), "table4": ("e", "f"), "table6": ("a", "b")}
