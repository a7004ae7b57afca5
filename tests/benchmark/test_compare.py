"""What the benchmark's figures mean, on outcomes made up for the purpose."""

import random
from dataclasses import replace

import pytest

from medfedvqa.benchmark.outcome import RunOutcome, numbered_patients
from medfedvqa.benchmark.statistics import average, by_site, holm, p_value


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
    assert by_site(few)["a"].interval == by_site(many)["a"].interval


def test_a_large_difference_is_found_and_none_is_not() -> None:
    good, bad = [drawn(1, 0.9)], [drawn(2, 0.5)]
    assert p_value(good, bad) < 0.001
    assert p_value(good, good) == 1
    assert p_value(good, bad) == pytest.approx(p_value(bad, good), abs=0.01)


def test_alike_systems_are_told_apart_as_often_as_the_level_says() -> None:
    """Under the null the p-value is uniform: of 200 pairs about 20 lie below 0.1, and hardly ever above 38."""
    below = sum(p_value([drawn(seed, 0.6)], [drawn(1000 + seed, 0.6)], seed) < 0.1 for seed in range(200))
    assert 5 <= below <= 38


def test_rows_of_one_patient_count_together() -> None:
    """One patient with all the difference is one observation, whatever its rows: nothing can be told from it."""
    patients = {"a": [0] * 30 + list(range(1, 31))}
    one = [outcome(patients, {"a": [True] * 60})]
    other = [outcome(patients, {"a": [False] * 30 + [True] * 30})]
    assert p_value(one, other) == 1


def test_a_patient_counts_once_over_seeds_that_test_the_same_rows() -> None:
    """Five patients, all better: the smallest p is that of 5 signs, 2 of 32, however many seeds there are."""
    patients = {"a": [0, 0, 1, 2, 3, 4]}
    good = [replace(outcome(patients, {"a": [True] * 6}), seed=seed) for seed in range(6)]
    bad = [replace(outcome(patients, {"a": [False] * 6}), seed=seed) for seed in range(6)]
    assert p_value(good, bad) == pytest.approx(1 / 16, abs=0.01)
    drawn_anew = [replace(each, cohort=each.seed) for each in good]
    assert p_value(drawn_anew, bad) < 0.001


def test_patients_keep_their_numbers_whatever_else_a_site_holds() -> None:
    """Numbers follow from the test rows alone: a site numbers its training patients too, which seeds may change."""
    assert numbered_patients([17, 17, 4, 9, 4]) == numbered_patients([3, 3, 8, 1, 8]) == [0, 0, 1, 2, 1]


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
