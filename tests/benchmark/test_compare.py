"""What the benchmark's figures mean, on outcomes made up for the purpose."""

import random
from dataclasses import replace

import pytest

from medfedvqa.research.benchmark.results_file import RunOutcome, numbered_patients
from medfedvqa.research.benchmark.statistics import average, by_site, gain, holm


def outcome(patients: dict[str, list[int]], right: dict[str, list[bool]]) -> RunOutcome:
    return RunOutcome(right, {}, patients, 0.0, 0.0, 0.0, 1)


def drawn(seed: int, chance: float, rows: int = 60) -> RunOutcome:
    """Two sites, 3 rows a patient, each right with this chance."""
    draw = random.Random(seed)
    patients = {site: [row // 3 for row in range(rows)] for site in ("a", "b")}
    return outcome(patients, {site: [draw.random() < chance for _ in own] for site, own in patients.items()})


def test_means_and_deviations_are_over_seeds_and_sites_count_the_same() -> None:
    patients = {"a": [0, 1], "b": [0, 1, 2, 3]}
    seeds = [
        outcome(patients, {"a": [True, False], "b": [True] * 4}),
        outcome(patients, {"a": [True, True], "b": [False] * 4}),
    ]
    assert by_site(seeds)["a"].mean == 0.75
    assert by_site(seeds)["a"].deviation == pytest.approx(0.35355, abs=1e-5)
    assert average(seeds).mean == pytest.approx((0.75 + 0.5) / 2)
    assert average(seeds[:1]).deviation == 0


def test_more_seeds_do_not_make_the_interval_narrower() -> None:
    """The test rows are the same ones: seeds tell nothing about other rows."""
    few, many = [drawn(0, 0.5)] * 2, [drawn(0, 0.5)] * 20
    assert by_site(few)["a"].interval == pytest.approx(by_site(many)["a"].interval)


def test_a_large_difference_is_noticed_and_none_is_not() -> None:
    good, bad = [drawn(1, 0.9)], [drawn(2, 0.5)]
    assert gain(good, bad).p < 0.001
    assert gain(good, good).p == 1
    assert gain(good, bad).p == pytest.approx(gain(bad, good).p)


def test_one_interval_excludes_0_just_if_p_is_below_its_level() -> None:
    """Both come from the same t: of 200 pairs, whose p lies on both sides of 0.05."""
    pairs = [gain([drawn(seed, 0.6)], [drawn(1000 + seed, 0.5)]) for seed in range(200)]
    sides = [each.p < 0.05 for each in pairs]
    assert sides == [each.interval is not None and not each.interval[0] <= 0 <= each.interval[1] for each in pairs]
    assert 20 < sum(sides) < 180


def test_rows_of_one_patient_count_together() -> None:
    """One patient with all the difference is one observation, whatever its rows: nothing can be told from it."""
    patients = {"a": [0] * 30 + list(range(1, 31))}
    one = [outcome(patients, {"a": [True] * 60})]
    other = [outcome(patients, {"a": [False] * 30 + [True] * 30})]
    assert gain(one, other).p > 0.05


def test_seeds_that_disagree_make_the_interval_wider() -> None:
    """Two trainings that are far apart say little of a third: by Student's t with one degree of freedom, nothing."""
    patients = {"a": list(range(100))}
    rights = [[True] * 90 + [False] * 10, [True] * 60 + [False] * 40]
    seeds = [replace(outcome(patients, {"a": right}), seed=seed) for seed, right in enumerate(rights)]
    alike = [replace(seeds[1], seed=seed) for seed in range(2)]
    low, high = average(seeds).interval
    narrow = average(alike).interval
    assert low < 0.2 and high > 0.95 and narrow[1] - narrow[0] < 0.25
    bad = [replace(outcome(patients, {"a": [True] * 50 + [False] * 50}), seed=seed) for seed in range(2)]
    assert gain(seeds, bad).p > 0.2 and gain(alike, bad).p < 0.01


def test_drawn_rows_of_each_seed_are_patients_of_their_own() -> None:
    """A mean over cohorts is as uncertain as their means differ, whatever the number of their patients."""
    seeds = [replace(drawn(seed, 0.7, 600), seed=seed, cohort=seed) for seed in range(3)]
    low, high = average(seeds).interval
    assert 0 < low < average(seeds).mean < high < 1
    assert gain(seeds, [replace(drawn(10 + seed, 0.3, 600), seed=seed, cohort=seed) for seed in range(3)]).p < 0.01


def test_patients_keep_their_numbers_whatever_else_a_site_holds() -> None:
    """Numbers follow from the test rows alone: a site numbers its training patients too, which seeds may change."""
    assert numbered_patients([17, 17, 4, 9, 4]) == numbered_patients([3, 3, 8, 1, 8]) == [0, 0, 1, 2, 1]


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
