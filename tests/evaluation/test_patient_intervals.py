"""Intervals over patients and seeds: their coverage where rows of a patient, and of a training, are right together."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from medfedvqa.evaluation.patient_intervals import Estimate, crossed, student, student_p

TRIALS = 2000
PATIENTS = (50, 60, 40)
MEANS = (0.9, 0.6)
"""Of the two systems, in units of the probit."""


def of(right: list[bool], patients: list[int], seeds: int = 1) -> Estimate:
    """The estimate at one site, with the same answers for each seed."""
    return crossed([[(np.tile(np.array(right, np.float64), (seeds, 1)), patients)]])


def held(seeds: int, by_seed: float, by_both: float) -> tuple[float, float, float]:
    """How often the interval of a gain, that of an average, and p < 0.05 of no gain are right, in 0..1.

    Two systems answer the same 1 to 5 rows of each patient at three sites, by a probit with effects of the patient,
    which both share, of the training (`by_seed`, of all its rows), and of both (`by_both`).
    """
    generator = np.random.default_rng(5)
    owners = [np.repeat(np.arange(count), generator.integers(1, 6, count)) for count in PATIENTS]
    scale = np.sqrt(1 + 0.6**2 + by_seed**2 + by_both**2)
    shares = stats.norm.cdf(np.array(MEANS) / scale)
    rows = len(owners) ** 2 / sum(1 / len(each) for each in owners)
    gains = averages = alike = 0
    for _ in range(TRIALS):
        cases = [generator.normal(0, 0.6, count) for count in PATIENTS]

        def answers(mean: float, cases: list[np.ndarray] = cases) -> list[np.ndarray]:
            trained = generator.normal(0, by_seed, (seeds, 1))
            right = []
            for patients, case in zip(owners, cases, strict=True):
                chance = mean + (case + trained + generator.normal(0, by_both, (seeds, len(case))))[:, patients]
                right.append((generator.normal(size=chance.shape) < chance).astype(np.float64))
            return right

        good, bad, same = answers(MEANS[0]), answers(MEANS[1]), answers(MEANS[0])
        less = crossed([[(a - b, each) for a, b, each in zip(good, bad, owners, strict=True)]])
        none = crossed([[(a - b, each) for a, b, each in zip(good, same, owners, strict=True)]])
        low, high = crossed([list(zip(good, owners, strict=True))]).share(rows, seeds)
        # The interval holds what differs from the mean with a p of 0.05 or more.
        gains += replace(less, mean=less.mean - (shares[0] - shares[1])).p >= 0.05
        averages += low <= shares[0] <= high
        alike += none.p >= 0.05
    return gains / TRIALS, averages / TRIALS, alike / TRIALS


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(("by_seed", "by_both"), [(0.0, 0.3), (0.1, 0.0), (0.2, 0.2)], ids=["none", "some", "much"])
def test_intervals_and_p_hold_with_and_without_an_effect_of_the_seed(
    seeds: int, by_seed: float, by_both: float
) -> None:
    """95 +- 1.5 % of the intervals hold the true gain, 95 +- 3 % the true average; p < 0.05 of no gain in 5 +- 1.5 %.

    Intervals by patient alone hold 49 to 76 % of the gains where seeds have an effect.
    """
    gains, averages, alike = held(seeds, by_seed, by_both)
    assert 0.935 <= gains <= 0.965 and 0.92 <= averages <= 0.98 and 0.935 <= alike <= 0.965


@pytest.mark.parametrize("share", [0.6, 0.8])
@pytest.mark.parametrize("sizes", [[4] * 50, [1, 2, 3, 4, 5, 6, 7] * 6], ids=["alike", "unlike"])
def test_intervals_by_patient_hold_what_intervals_by_row_do_not(share: float, sizes: list[int]) -> None:
    """One seed, at a correlation of 0.2 within patients (beta-binomial): 95 +- 2 % hold the truth, by rows below 91."""
    generator = np.random.default_rng(len(sizes))
    patients = np.repeat(np.arange(len(sizes)), sizes)
    by_patient = by_row = 0
    for _ in range(TRIALS):
        chances = generator.beta(4 * share, 4 * (1 - share), len(sizes))
        right = (generator.random(len(patients)) < chances[patients]).tolist()
        low, high = of(right, patients.tolist()).share(len(right), 1)
        by_patient += low <= share <= high
        low, high = of(right, list(range(len(right)))).share(len(right), 1)
        by_row += low <= share <= high
    assert 0.93 <= by_patient / TRIALS <= 0.97
    assert by_row / TRIALS < 0.91


def test_two_way_variance_by_hand() -> None:
    """Two patients with a row each, two seeds: V_s = 1/16, V_p = 1/4, V_ps = 1/16, and Satterthwaite's freedom of 1."""
    estimate = crossed([[(np.array([[1.0, 0.0], [1.0, 1.0]]), [0, 1])]])
    assert estimate.mean == 0.75 and estimate.variance == pytest.approx(1 / 16)
    estimate = crossed([[(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), [0, 1])]])
    assert (estimate.mean, estimate.variance, estimate.freedom) == (0.5, 0.25, 1)


def test_cohorts_are_compared_with_each_other() -> None:
    """Cohorts test other patients with other seeds, so what is known of the mean is how their means differ."""
    cohorts = [[(np.full((1, 4), value), [0, 1, 2, 3])] for value in (0.1, 0.2, 0.6)]
    estimate = crossed(cohorts)
    assert estimate.mean == pytest.approx(0.3) and estimate.freedom == 2
    assert estimate.variance == pytest.approx(np.var([0.1, 0.2, 0.6], ddof=1) / 3)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=1, max_size=60), st.integers(1, 3))
def test_every_interval_holds_its_mean(rows: list[tuple[bool, int]], seeds: int) -> None:
    """Within 0 and 1; a single patient tells nothing."""
    right, patients = [each for each, _ in rows], [patient for _, patient in rows]
    estimate = of(right, patients, seeds)
    low, high = estimate.share(len(right), seeds)
    assert 0 <= low <= sum(right) / len(right) + 1e-12 and sum(right) / len(right) - 1e-12 <= high <= 1
    assert (estimate.freedom == 0) is (len(set(patients)) == 1)


def test_one_patient_tells_nothing_about_others() -> None:
    """Without a second patient there is no interval, and an accuracy may be anything; nor where all differ alike."""
    one = of([True, True], [4, 4])
    assert (one.interval, one.p, one.share(2, 1)) == (None, 1.0, (0.0, 1.0))
    alike = of([True] * 5, [0, 1, 2, 3, 4])
    assert (alike.interval, alike.p) == (None, 1.0) and 0.3 < alike.share(5, 1)[0] < 0.5
    nothing = of([False] * 5, [0, 1, 2, 3, 4])
    assert (nothing.interval, nothing.p) == ((0.0, 0.0), 1.0)


@pytest.mark.parametrize("freedom", [1, 1.7, 2, 3.3, 10, 120, 1e6])
def test_students_distribution_is_that_of_scipy(freedom: float) -> None:
    """Of few and of many degrees of freedom, in the middle and in the tails."""
    assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6)
    for t in (0.0, 0.3, -2.0, 5.0, 200.0):
        assert student_p(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-9)
