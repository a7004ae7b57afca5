"""`--as-printed`, and the column "what differs", which follow from each paper's table of settings and the run's job."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.core import method_type
from medfedvqa.research.benchmark.grid import Grid
from medfedvqa.research.benchmark.printed import Place
from medfedvqa.research.benchmark.single_run import Regime
from medfedvqa.research.benchmark.systems import systems_named
from medfedvqa.research.reproduce.catalogue import PAPERS
from medfedvqa.research.reproduce.entries import FACT, PaperTable, Trunks
from medfedvqa.research.reproduce.papers import feddat, fedp3, prompt_pfl, unicon
from medfedvqa.research.reproduce.tables import (
    as_printed,
    common,
    differences,
    fitted,
    labels_of,
    on_paper_s_sites,
    sentences,
    with_budget,
    with_differences,
)

TABLES = [
    pytest.param(paper, entry, id=f"{paper.name}-{entry.name}")
    for paper in PAPERS
    for entry in paper.entries
    if paper.settings and isinstance(entry.protocol, PaperTable | Trunks)
]


def grid_of(protocol: Any, labels: list[str], **changes: Any) -> Grid:
    grid = Grid("slake", None, Path(), systems_named(labels), 1, {}, ("lung", "brain", "others"), "", **changes)
    return with_budget(grid, protocol, {})


@pytest.mark.parametrize(("paper", "entry"), TABLES)
def test_as_printed_leaves_no_option_that_differs_but_what_makes_a_row_its_own(paper: Any, entry: Any) -> None:
    """Every row of every table: each printed option of its method is that of the job, unless the row varies it."""
    settings = (*paper.settings, *entry.settings)
    grid = as_printed(grid_of(entry.protocol, labels_of(entry.protocol)), settings, {})
    usual = {system.label: system.options for system in grid_of(entry.protocol, labels_of(entry.protocol)).systems}
    for system in grid.systems:
        made = method_type(system.method).config_type.model_validate(system.with_budget(dict(grid.budget)))
        for each in settings:
            if hasattr(made, each.option) and (not each.methods or system.method in each.methods):
                varied = usual[system.label].get(each.option, each.instead) != each.instead
                assert getattr(made, each.option) == each.value or varied, (system.label, each.option)


def test_fedp3_s_lambda_is_that_of_the_paper_but_in_the_figure_over_lambda() -> None:
    """FedP3's own 0.03 becomes 1; the row of lambda 0.5 keeps it; the weight of SP is another thing."""
    labels = ["FedP3", "FedP3 lambda = 0.5", "FedP3 N = 5", "SP"]
    before = grid_of(fedp3.PAPER.entries[1].protocol, labels)
    after = {each.label: each.options for each in as_printed(before, fedp3.SETTINGS, {}).systems}
    assert [after[label].get("weight") for label in labels] == [1.0, 0.5, 1.0, None]
    assert [after[label]["learning_rate"] for label in labels] == [1e-4] * 4
    assert [after[label].get("top") for label in labels] == [20, 20, 5, None]
    own = {each.label: each.options for each in as_printed(before, fedp3.SETTINGS, {"weight": 0.2}).systems}
    assert [own[label].get("weight") for label in labels] == [0.2, 0.5, 0.2, None]


def test_a_backbone_with_fewer_blocks_than_printed_is_tuned_in_those_that_it_has_and_the_page_says_so() -> None:
    """Of six blocks, four; not a number that the user gives, nor one that makes a row its own."""
    settings = [replace(each, value=6, printed="6") if each.option == "blocks" else each for each in fedp3.SETTINGS]
    before = as_printed(grid_of(fedp3.PAPER.entries[1].protocol, ["FedP3", "prompt_pfl r = 9", "ridge"]), settings, {})
    after = fitted(before, settings, {})
    assert [each.options.get("blocks") for each in before.systems] == [6, 9, None]
    assert [each.options.get("blocks") for each in after.systems] == [4, 9, None]
    own = differences(replace(after, systems=after.systems[:1]), settings)["FedP3"]
    assert "tuned layers: 4 in place of 6 (section 4.2)" in map(str, own)
    assert fitted(before, settings, {"blocks": 6}) == before


def test_as_printed_a_table_has_the_paper_s_sites_and_leaves_the_others_out() -> None:
    """Of seven organs four train and two are unseen; without it all take part."""
    protocol = fedp3.PAPER.entries[1].protocol
    grid = replace(grid_of(protocol, ["FedP3"]), organs=tuple("abcdefg"))
    printed = on_paper_s_sites(grid, protocol, printed=True)
    assert printed.sites == tuple("abcdef") and printed.regime.unseen == ("e", "f")
    assert on_paper_s_sites(grid, protocol).sites == tuple("abcdefg")
    assert not [each for each in differences(printed, fedp3.SETTINGS)["FedP3"] if "sites" in each.setting.words]


def test_what_differs_names_an_option_that_is_left_as_it_is() -> None:
    """UniCon's warm-up: printed steps that no run here reaches are no setting of the run; its own number is named."""
    grid = as_printed(grid_of(unicon.PAPER.entries[1].protocol, ["UniCon butd"], regime=Regime()), unicon.SETTINGS, {})
    (system,) = grid.systems
    assert "warmup" not in system.options
    warm = replace(grid, systems=(replace(system, options=system.options | {"warmup": 37}),))
    for each, steps in ((grid, 0), (warm, 37)):
        words = f"steps of warm-up: {steps} in place of 10,000 of 693,400 (section 4.2)"
        assert words in map(str, differences(each, unicon.SETTINGS)["UniCon butd"])


def test_what_differs_is_computed_from_the_run() -> None:
    """The project's rows name their rate and lambda; as printed they do not, and a change of the user's comes back."""
    labels = ["FedAvg last 3 blocks", "FedP3"]
    grid = grid_of(fedp3.PAPER.entries[1].protocol, labels, regime=Regime(unseen=("others",)))
    by_row = differences(grid, fedp3.SETTINGS)
    assert any(str(each).startswith("lambda: 0.03 in place of 1") for each in by_row["FedP3"])
    assert not any("lambda" in str(each) for each in by_row["FedAvg last 3 blocks"])
    assert {each.setting.option for each in common(by_row)} >= {"learning_rate", f"{FACT}backbone", f"{FACT}data"}
    table = with_differences(fedp3.TABLE_2, by_row)
    assert {row.name: row.differs for row in table.rows}["FedP3"] == "lambda: 0.03 in place of 1 (section 4.2)"
    printed = differences(as_printed(grid, fedp3.SETTINGS, {}), fedp3.SETTINGS)
    names = {each.setting.option for each in printed["FedP3"]}
    assert names == {"", *(f"{FACT}{name}" for name in ("data", "backbone", "training sites", "unseen sites"))}
    changed = differences(as_printed(grid, fedp3.SETTINGS, {"weight": 0.2}), fedp3.SETTINGS)
    assert "lambda: 0.2 in place of 1 (section 4.2)" in map(str, changed["FedP3"])
    assert "your own count first: weight" in sentences(changed, {"weight": 0.2}, True)[0]
    assert "settings that the paper prints" not in " ".join(sentences(by_row, {}, False))


@pytest.mark.parametrize("paper", [fedp3, feddat, prompt_pfl, unicon])
def test_a_table_of_settings_names_options_that_exist(paper: Any) -> None:
    """Each option is one of a method of the paper's tables, each says what it is and where the paper has it."""
    labels = {label for entry in paper.PAPER.entries for label in labels_of(entry.protocol)}
    fields = {
        name for each in systems_named(sorted(labels)) for name in method_type(each.method).config_type.model_fields
    }
    options = [each.option for each in paper.SETTINGS if each.option]
    assert all(name in fields or name.startswith(FACT) for name in options) and len(options) == len(set(options))
    assert all(each.words and each.printed and each.section for each in paper.SETTINGS)
    assert all(each.option or each.instead for each in paper.SETTINGS)


def test_a_column_stands_where_the_sites_are_cut_as_it_says() -> None:
    """FedDAT's Function is for sites by question type, not for organs, whose average stood there."""
    function = feddat.TABLE_3.columns["Function"]
    assert function.sites(("type-size", "type-color")) == ("type-size", "type-color")
    assert function.sites(("lung", "brain")) == () and function.sites(("halves-1of2", "halves-2of2")) == ()
    assert Place().sites(("lung",)) == ("lung",)
