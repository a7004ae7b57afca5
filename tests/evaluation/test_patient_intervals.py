"""Intervals by patient: their coverage on rows that are right and wrong together, and their limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medfedvqa.evaluation.accuracy import Proportion
from medfedvqa.evaluation.patient_intervals import design_effect, effective_rows, mean_difference, student

TRIALS = 1500


def drawn(generator: np.random.Generator, patients: np.ndarray, share: float, correlation: float) -> np.ndarray:
    """Rows right with this chance; those of one patient with this correlation (beta-binomial)."""
    scale = (1 - correlation) / correlation
    chances = generator.beta(share * scale, (1 - share) * scale, patients.max() + 1)
    return generator.random(len(patients)) < chances[patients]


@pytest.mark.parametrize("share", [0.6, 0.8])
@pytest.mark.parametrize("sizes", [[4] * 50, [1, 2, 3, 4, 5, 6, 7] * 6], ids=["alike", "unlike"])
def test_intervals_by_patient_hold_what_intervals_by_row_do_not(share: float, sizes: list[int]) -> None:
    """At a correlation of 0.2 within patients, 95 +- 2 % of the intervals hold the truth; by rows less than 91 %."""
    generator = np.random.default_rng(len(sizes))
    patients = np.repeat(np.arange(len(sizes)), sizes)
    by_patient = by_row = 0
    for _ in range(TRIALS):
        right = drawn(generator, patients, share, 0.2)
        correct, rows = int(right.sum()), len(right)
        low, high = Proportion(correct, rows, effective_rows(right.tolist(), patients.tolist())).wilson()
        by_patient += low <= share <= high
        low, high = Proportion(correct, rows).wilson()
        by_row += low <= share <= high
    assert 0.93 <= by_patient / TRIALS <= 0.97
    assert by_row / TRIALS < 0.91


def test_the_interval_of_a_difference_holds_the_truth() -> None:
    """Two systems at two sites, whose rows of one patient are right together: 95 +- 2 % hold the true difference."""
    generator = np.random.default_rng(5)
    patients = [np.repeat(np.arange(40), 3), np.repeat(np.arange(25), 4)]
    covered = 0
    for _ in range(TRIALS):
        differences = [
            drawn(generator, each, 0.75, 0.3).astype(float) - drawn(generator, each, 0.65, 0.3) for each in patients
        ]
        mean, interval = mean_difference([d.tolist() for d in differences], [each.tolist() for each in patients])
        assert interval is not None and interval[0] <= mean <= interval[1]
        covered += interval[0] <= 0.1 <= interval[1]
    assert 0.93 <= covered / TRIALS <= 0.97


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=1, max_size=60))
def test_rows_never_tell_more_than_independent_ones(rows: list[tuple[bool, int]]) -> None:
    """The design effect is at least 1 and effective rows at most all rows; a single patient tells nothing."""
    right, patients = [each for each, _ in rows], [patient for _, patient in rows]
    effective = effective_rows(right, patients)
    assert design_effect(right, patients) >= 1 and 0 <= effective <= len(rows)
    assert (effective == 0) is (len(set(patients)) == 1)
    low, high = Proportion(sum(right), len(rows), effective).wilson()
    assert 0 <= low <= sum(right) / len(rows) <= high <= 1


def test_the_design_effect_by_hand() -> None:
    """Patients whose rows are all alike count as one row each; one row a patient counts as a row."""
    assert design_effect([True, True, True, False, False, False], [0, 0, 0, 1, 1, 1]) == pytest.approx(3)
    assert design_effect([True, False, True], [0, 1, 2]) == 1


def test_one_patient_tells_nothing_about_others() -> None:
    """Without a second patient there is no interval, and an accuracy may be anything."""
    assert mean_difference([[1.0, 1.0]], [[4, 4]]) == (1.0, None)
    assert Proportion(2, 2, effective_rows([True, True], [4, 4])).wilson() == (0, 1)


def test_students_factor_agrees_with_the_published_table() -> None:
    """Two-sided 95 % points of Student's distribution."""
    table = {3: 3.182, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980}
    assert {freedom: student(freedom) for freedom in table} == pytest.approx(table, abs=4e-3)
