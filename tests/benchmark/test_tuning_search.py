"""The search for learning rates: successive halving, resumed, and read by the benchmark."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medfedvqa.errors import ConfigError
from medfedvqa.research.benchmark.grid import OUTCOME, Grid
from medfedvqa.research.benchmark.systems import WITHOUT, System
from medfedvqa.research.benchmark.tuning_search import (
    Candidate,
    Trial,
    candidates,
    full_rounds,
    halve,
    halvings,
    read_tuned,
    search,
    with_choices,
)

BUDGET = {"rounds": 4, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "hidden": 8}
SYSTEM = System("local classifier", "local", {"tuning": "classifier", "own": "head"})
PAIRS = candidates([1e-5, 0.01, 0.02, 0.03], [0.0])


@pytest.mark.parametrize(
    ("count", "rounds", "steps"),
    [(8, 30, [(8, 7), (4, 15), (2, 30)]), (1, 10, [(1, 10)]), (3, 10, [(3, 5), (2, 10)]), (4, 1, [(4, 1), (2, 1)])],
)
def test_half_of_the_candidates_train_for_twice_as_many_rounds(
    count: int, rounds: int, steps: list[tuple[int, int]]
) -> None:
    """The last step has the full number of rounds."""
    assert halvings(count, rounds) == steps


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(1, 40))
def test_the_best_candidate_wins_where_rounds_change_no_order(scores: list[float], rounds: int) -> None:
    """And nothing that was dropped trains again. Of equals, the first that is listed wins."""
    pairs = [Candidate(1e-3 * (number + 1), 0.0) for number in range(len(scores))]
    score = dict(zip(pairs, scores, strict=True))

    def train(left: Sequence[Candidate], number: int) -> list[Trial]:
        return [Trial(pair, number, score[pair], 1.0) for pair in left]

    steps = halve(pairs, rounds, train)
    assert steps[-1][0].candidate == pairs[scores.index(max(scores))] and steps[-1][0].rounds == rounds
    for before, after in zip(steps, steps[1:], strict=False):
        assert {trial.candidate for trial in after} <= {trial.candidate for trial in before}


@pytest.mark.slow
def test_an_interrupted_search_goes_on_and_chooses_as_one_in_a_single_go(
    quick_grid: Callable[..., Grid], tmp_path: Path
) -> None:
    """Real runs on the phantom set. The interruption comes after the first step: none of its runs is repeated. The
    benchmark then trains with the choice."""
    grid = quick_grid("phantom", None, tmp_path / "one", (SYSTEM,), 1, BUDGET, ("site-001",))

    def stop(trial: Trial, system: System) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(grid, PAIRS, 1, stop)
    stamps = {path: path.stat().st_mtime_ns for path in grid.out.rglob(OUTCOME)}
    assert len(stamps) == 4 and not (grid.out / "tuned.json").exists()
    trials: list[Trial] = []
    record = search(grid, PAIRS, 1, lambda trial, system: trials.append(trial))
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert [trial.rounds for trial in trials] == [2] * 4 + [4] * 2
    assert json.loads((grid.out / "tuned.json").read_text()) == record
    again = search(replace(grid, out=tmp_path / "two"), PAIRS, 1, lambda trial, system: None)
    assert again["choices"] == record["choices"] and [again["seconds"]] != [{}]
    chosen = record["choices"][SYSTEM.label]
    assert chosen["learning_rate"] > 1e-5, "a rate that learns nothing is not chosen"
    best = max(trials[4:], key=lambda trial: trial.validation)
    assert best.candidate.learning_rate == chosen["learning_rate"]
    tuned = read_tuned(grid.out / "tuned.json")
    (system,) = with_choices([SYSTEM], tuned, "phantom", record["backbone"])
    assert system.options == {**SYSTEM.options, **chosen} and system.label == SYSTEM.label


def test_choices_of_another_search_are_refused(tmp_path: Path) -> None:
    """Other data, another backbone, no choice for a system or its family, a newer or broken file, a wrong value."""
    path = tmp_path / "tuned.json"
    content: dict[str, Any] = {"format": 1, "data": "slake", "backbone": "medclip2-vqa-rad", "more": [],
                               "choices": {SYSTEM.label: {"learning_rate": 0.01, "weight_decay": 0.0}}}  # fmt: skip
    path.write_text(json.dumps(content))
    tuned = read_tuned(path)
    assert with_choices([SYSTEM], tuned, "slake", "medclip2-vqa-rad")[0].options["learning_rate"] == 0.01
    blind = replace(SYSTEM, label=SYSTEM.label + WITHOUT, pictures=False)
    assert with_choices([blind], tuned, "slake", "medclip2-vqa-rad")[0].options["learning_rate"] == 0.01
    kin = replace(SYSTEM, label="another of the family", family=SYSTEM.label)
    assert with_choices([kin], tuned, "slake", "medclip2-vqa-rad")[0].options["learning_rate"] == 0.01
    for data, backbone in (("phantom", "medclip2-vqa-rad"), ("slake", "medclip2-slake")):
        with pytest.raises(ConfigError, match="--tuned is of a search on slake with backbone medclip2-vqa-rad"):
            with_choices([SYSTEM], tuned, data, backbone)
    with pytest.raises(ConfigError, match="no values for other"):
        with_choices([replace(SYSTEM, label="other")], tuned, "slake", "medclip2-vqa-rad")
    for wrong, message in (
        ({**content, "format": 2}, "written by a newer version"),
        ({**content, "choices": {SYSTEM.label: {"learning_rate": -1, "weight_decay": 0}}}, "learning_rate"),
        ([1], "the file of --tuned"),
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match=message):
            read_tuned(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="is missing or is not JSON"):
        read_tuned(path)


def test_the_golden_file_is_read() -> None:
    """Every later version reads what this format's first version wrote."""
    tuned = read_tuned(Path(__file__).parents[1] / "golden" / "formats-1" / "tuned.json")
    choice = tuned.choices["local classifier"]
    assert (tuned.data, tuned.backbone) == ("slake", "medclip-vqarad")
    assert (choice.learning_rate, choice.weight_decay) == (0.001, 0.05)


def test_what_cannot_be_searched_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """Values out of range or given twice, none at all, and a method without these options."""
    for rates in ([0.0], [0.01, 0.01], [], [float("nan")]):
        with pytest.raises(ConfigError):
            candidates(rates, [0.0])
    grid = Grid("phantom", None, tmp_path, (SYSTEM,), 1, BUDGET, ("site-001",))
    assert full_rounds(grid, SYSTEM) == 4 and full_rounds(grid, replace(SYSTEM, options={"rounds": 7})) == 7
    with pytest.raises(ConfigError, match="has no learning rate, weight decay and rounds"):
        full_rounds(grid, System("UniCon", "unicon"))
