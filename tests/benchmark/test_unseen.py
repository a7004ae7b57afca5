"""Sites that never train: what each kind of system does there, and what the table says of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from medfedvqa.cli.benchmark import regime_with
from medfedvqa.errors import ConfigError
from medfedvqa.research.benchmark.benchmark_table import markdown
from medfedvqa.research.benchmark.grid import OUTCOME, Grid, results, run
from medfedvqa.research.benchmark.results_file import Result
from medfedvqa.research.benchmark.single_run import Regime
from medfedvqa.research.benchmark.statistics import compared
from medfedvqa.research.benchmark.systems import System, systems_named

GOLDEN = Path(__file__).parents[1] / "golden" / "formats-1" / "benchmark.jsonl"
BUDGET = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "hidden": 8}
SHARED = System("FedAvg classifier", "fedavg", {"tuning": "classifier"})
POOLED = System("pooled", "local", {"tuning": "classifier"}, baseline=False, centralised=True)
SITES = ("site-001", "site-002")


@pytest.fixture
def grid(quick_grid: Callable[..., Grid], tmp_path: Path) -> Grid:
    alone = System("alone", "local", {"tuning": "classifier"})
    return quick_grid(
        "phantom", None, tmp_path, (SHARED, POOLED, alone), 1, BUDGET, SITES, regime=Regime(unseen=SITES[1:])
    )


def test_the_job_names_the_unseen_sites_to_methods_that_share_a_model(grid: Grid) -> None:
    """What sends nothing needs no name; what shares no whole model is refused, with its label."""
    shared, pooled, alone = grid.systems
    assert grid.job(shared, 0).options["unseen"] == ["site-002"]
    assert "unseen" not in grid.job(pooled, 0).options and "unseen" not in grid.job(alone, 0).options
    for label, reason in (("prompt_pfl (PM)", "sends no model"), ("UniCon", "sends no model"), ("FedDAT", "unseen")):
        with pytest.raises(ConfigError, match=reason):
            grid.job(systems_named([label])[0], 0)


@pytest.mark.slow
def test_an_unseen_site_trains_nothing_and_tests_the_mean(grid: Grid) -> None:
    """Its personal model is the mean, it has no accuracy by round, and the mean is that of a job without it."""
    assert len(list(run(grid, 1))) == 3
    comparison = compared(results(grid))
    personal, mean = (comparison.rows[f"FedAvg classifier{end}"][0] for end in (" (personal)", ""))
    assert comparison.unseen == ("site-002",) and personal.right["site-002"] == mean.right["site-002"]
    assert personal.right["site-001"] == mean.right["site-001"] and mean.validated.keys() == {"site-001"}
    without = replace(grid, organs=SITES[:1], regime=Regime(), out=grid.out / "without")
    list(run(replace(without, systems=(SHARED,)), 1))
    record = json.loads((without.folder(SHARED, 0) / OUTCOME).read_text())
    assert record["outcome"]["right"]["site-001"] == mean.right["site-001"]
    assert len(comparison.rows["pooled"][0].right["site-002"]) == len(mean.right["site-002"])
    assert "| seen | unseen | average |" in markdown(comparison) and "unseen: over sites that only" in markdown(
        comparison
    )


def test_the_table_has_an_average_of_each_kind_of_site() -> None:
    """By hand: 3 of 4 at the site that trains, 1 of 4 at the one that does not."""
    record = json.loads(GOLDEN.read_text().splitlines()[0])
    sites = {"lung": {"right": "1110", "patients": [0, 1, 2, 3]}, "brain": {"right": "1000", "patients": [0, 1, 2, 3]}}
    line = record | {"sites": sites, "options": {"unseen": ["brain"]}, "regime": "brain unseen", "baseline": True}
    averages = compared([Result.model_validate(line)]).averages(line["system"])
    assert {heading: each.mean for heading, each in averages.items()} == {"seen": 0.75, "unseen": 0.25, "average": 0.5}
    assert "seen" not in compared([Result.model_validate(line | {"options": {}})]).averages(line["system"])


def test_names_of_unseen_sites_are_checked() -> None:
    """Another site, or all of them."""
    grid = Grid("phantom", None, Path(), (), 1, {}, ("a", "b"))
    assert regime_with("b , b,", grid) == Regime(unseen=("b",)) and regime_with("", grid) == Regime()
    with pytest.raises(ConfigError, match="there is no site 'c' in this data: the sites are a, b"):
        regime_with("c", grid)
    with pytest.raises(ConfigError, match="leave at least one to train"):
        regime_with("a,b", grid)
