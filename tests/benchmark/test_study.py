"""The sharing study: what its sentences say follows from its figures, and every regime runs on the phantom set."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from audits.escaping import for_markdown
from medfedvqa.errors import ConfigError
from medfedvqa.research.benchmark.grid import Grid, results, run
from medfedvqa.research.benchmark.results_file import RESULTS, Result
from medfedvqa.research.benchmark.single_run import EVERY, Regime
from medfedvqa.research.benchmark.study import POOLED, draw, findings, page, sentences, systems_of
from medfedvqa.research.benchmark.systems import System

BUDGET = {"rounds": 2, "local_epochs": 3, "batch_rows": 16, "hidden": 8, "learning_rate": 0.01, "keep": "best"}
TUNING = {"tuning": "classifier"}
SITES = ("site-001", "site-002")
TRIO = (
    System("alone", "local", TUNING),
    System(POOLED, "local", TUNING, baseline=False, centralised=True),
    System("FedAvg classifier", "fedavg", TUNING, alone="alone"),
)


def made_up(regime: str, federated: str, alone: str) -> Iterator[Result]:
    """Results of one site with 60 patients, of a federated system and of training alone."""
    for system, right, pair in (("federated", federated, "alone"), ("alone", alone, "")):
        yield Result(
            **{
                "version": "1",
                "data": "phantom",
                "split": {},
                "backbone": "b",
                "budget": {},
                "job": {},
                "regime": regime,
            },
            **{"system": system, "method": "m", "options": {}, "baseline": not pair, "alone": pair},
            **{"without_picture": "", "seed": 0, "cohort": 0, "validated": {}, "bytes_up": 0, "bytes_down": 0},
            **{"seconds": 0, "parameters": 1, "sites": {"a": {"right": right, "patients": range(60)}}},
        )


def test_a_study_says_where_sharing_pays_and_where_it_costs() -> None:
    """Thirty more rows right are better, thirty fewer worse, and one row more is not told apart."""
    few = [*made_up("10 % of the rows", "1" * 60, "10" * 30), *made_up("50 % of the rows", "10" * 30, "1" * 60)]
    found = findings([*few, *made_up("all rows", "11" + "10" * 29, "10" * 30)])
    assert [each.alone.sign for each in found] == [1, -1, 0]
    texts = sentences(found)
    assert texts[0].startswith("With 10 % of the rows: federated (+50.0 [") and texts[0].endswith(
        "is better than training alone."
    )
    assert "is worse than training alone" in texts[1]
    assert "is not significantly different from training alone" in texts[2]
    assert texts[3].startswith(
        "Sharing pays in 1 of 3 comparisons, most with 10 % of the rows, where federated has +50.0"
    )
    assert f"- {for_markdown(texts[3])}\n" in page(found) and "p < 0.001" in texts[3]


def test_a_study_says_so_if_sharing_never_pays() -> None:
    """No sentence claims a gain that is not told apart from none; nothing to compare is said as well."""
    found = findings(list(made_up("all rows", "11" + "10" * 29, "10" * 30)))
    assert sentences(found)[-1] == "Sharing never pays here: in none of 1 comparisons is it better than training alone."
    assert sentences([])[0].startswith("Nothing can be said")


def test_p_values_are_corrected_over_the_whole_study() -> None:
    """Six regimes with the same difference of 9 rows: each alone is significant, corrected none is."""
    one = list(made_up("r0", "1" * 9 + "0" * 51, "0" * 60))
    assert findings(one)[0].alone.p < 0.01
    many = [each for number in range(6) for each in made_up(f"r{number}", "1" * 6 + "0" * 54, "0" * 60)]
    assert findings(many[:2])[0].alone.p < 0.03 and min(each.alone.p for each in findings(many)) > 0.05


@pytest.mark.slow
def test_a_study_runs_every_kind_of_regime(quick_grid: Callable[..., Grid], tmp_path: Path) -> None:
    """Few rows, two hospitals, one that joins, on two phantom sites; all lines are in one file, nothing runs twice."""
    base = quick_grid("phantom", None, tmp_path, TRIO, 1, BUDGET, SITES)
    kinds = (Regime(0.5), Regime(hospitals=2), Regime(joining=3))
    grids = [systems_of(base, regime) for regime in kinds]
    for grid in grids:
        assert len(list(run(grid, 1))) == 3 and not list(run(grid, 1))
    every = [result for grid in grids for result in results(grid)]
    assert len((tmp_path / RESULTS).read_text().splitlines()) == len(every) == 3 * (3 + 2)
    assert {result.regime for result in every} == {regime.name for regime in kinds}
    by_name = {(result.regime, result.system): result for result in every}
    assert list(by_name[kinds[1].name, "alone"].sites) == ["site-001-1", "site-001-2", "site-002-1", "site-002-2"]
    joined = by_name[kinds[2].name, "FedAvg classifier"].outcome
    assert set(joined.right) == set(joined.personal) == {"site-001", "site-002"} and joined.right != joined.personal
    found = findings(every)
    assert [each.system for each in found] == ["FedAvg classifier", "FedAvg classifier (personal)"] * 3
    assert all(each.pooled is not None for each in found) and len(sentences(found)) == 4
    assert draw(tmp_path / "study.svg", found).read_text().count("<path") > 10


@pytest.mark.slow
def test_a_hospital_joins_what_the_others_trained_whatever_it_has_of_its_own(
    quick_grid: Callable[..., Grid], tmp_path: Path
) -> None:
    """As received, a row is right or not with none, few or all of its patients: one federation, trained once for each.

    With none it keeps the model as received; of a new organ the model is another one.
    """
    base = quick_grid("phantom", None, tmp_path, TRIO[2:], 1, BUDGET, SITES, backbone="")
    outcomes, made = {}, []
    for count in (0, 3, EVERY):
        grid = systems_of(base, Regime(hospitals=2, joining=count))
        list(run(grid, 1))
        (outcomes[count],) = [each.outcome for each in results(grid) if each.system == TRIO[2].label]
        made.append({path: path.stat().st_mtime_ns for path in tmp_path.glob("federations/*/model.npz")})
    assert made[0] == made[1] == made[2] and len(made[0]) == 4
    assert outcomes[0].right == outcomes[3].right == outcomes[EVERY].right == outcomes[0].personal
    assert outcomes[0].right != outcomes[EVERY].personal != outcomes[3].personal
    list(run(systems_of(base, Regime(hospitals=2, joining=3, new_organ=True)), 1))
    assert len([*tmp_path.glob("federations/*/model.npz")]) == 6


def test_a_study_leaves_out_systems_without_a_model_to_join(tmp_path: Path) -> None:
    """prompt_pfl and local heads have no whole model for a hospital that was not there, and nobody trains on no row."""
    prompts = System("prompt_pfl (PM)", "prompt_pfl", {"local_baseline": False}, baseline=False)
    heads = System("local head", "fedavg", {"own": "head"})
    steps = System("FedAdam", "fedadam", {"tuning": "adapter"})
    base = Grid("phantom", None, tmp_path, (*TRIO, steps, prompts, heads), 1, {}, SITES)
    assert systems_of(base, Regime(joining=3)).systems == (*TRIO, steps)
    assert systems_of(base, Regime(joining=0)).systems == (TRIO[2], steps)
    assert systems_of(base, Regime(0.5)).systems == base.systems
    with pytest.raises(ConfigError, match="no chosen system is defined with joining with 3 labelled patients"):
        systems_of(replace(base, systems=(prompts, heads)), Regime(joining=3))
