"""Intervals against published figures, exact coverage, and their properties."""

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medfedvqa.evaluation.accuracy import Proportion, mean_accuracy, percent

NEWCOMBE = [  # Newcombe, "Two-sided confidence intervals for the single proportion", Statist. Med. 1998, table I
    (81, 263, 0.2553, 0.3662),
    (15, 148, 0.0624, 0.1605),
    (0, 20, 0.0000, 0.1611),
    (1, 29, 0.0061, 0.1718),
]


@st.composite
def proportions(draw: st.DrawFn) -> Proportion:
    rows = draw(st.integers(1, 5000))
    return Proportion(draw(st.integers(0, rows)), rows)


@pytest.mark.parametrize(("correct", "rows", "low", "high"), NEWCOMBE)
def test_wilson_agrees_with_the_published_table(correct: int, rows: int, low: float, high: float) -> None:
    assert Proportion(correct, rows).wilson() == pytest.approx((low, high), abs=5e-5)


def test_a_higher_confidence_is_a_wider_interval() -> None:
    """The 99 % interval of 5 of 10, by hand: (5 + z^2/2 -+ z sqrt(2.5 + z^2/4)) / (10 + z^2), z = 2.5758."""
    assert Proportion(5, 10).wilson(0.99) == pytest.approx((0.1842, 0.8158), abs=5e-5)


@given(proportions(), st.floats(0.5, 0.999))
def test_bounds_lie_in_0_to_1_around_the_estimate(proportion: Proportion, confidence: float) -> None:
    low, high = proportion.wilson(confidence)
    assert proportion.value is not None
    assert 0 <= low <= proportion.value <= high <= 1


@given(proportions())
def test_right_and_wrong_answers_have_mirrored_intervals(proportion: Proportion) -> None:
    low, high = proportion.wilson()
    wrong_low, wrong_high = Proportion(proportion.rows - proportion.correct, proportion.rows).wilson()
    assert (wrong_low, wrong_high) == pytest.approx((1 - high, 1 - low), abs=1e-15)


@given(proportions())
def test_more_rows_of_the_same_accuracy_narrow_the_interval(proportion: Proportion) -> None:
    low, high = proportion.wilson()
    more_low, more_high = Proportion(10 * proportion.correct, 10 * proportion.rows).wilson()
    assert more_high - more_low < high - low


def test_without_rows_nothing_is_known() -> None:
    assert Proportion(0, 0).value is None
    assert Proportion(0, 0).wilson() == (0.0, 1.0)


@pytest.mark.parametrize(("correct", "rows"), [(-1, 3), (4, 3), (0, -1)])
def test_what_is_no_proportion_is_refused(correct: int, rows: int) -> None:
    with pytest.raises(ValueError, match="not a proportion"):
        Proportion(correct, rows)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, float("nan")])
def test_what_is_no_confidence_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Proportion(1, 2).wilson(confidence)


@given(proportions())
def test_the_mean_of_one_site_is_that_site(proportion: Proportion) -> None:
    found = mean_accuracy([proportion])
    assert found is not None
    assert found[0] == proportion.value
    assert found[1] == pytest.approx(proportion.wilson(), abs=1e-12)


@given(st.lists(proportions(), min_size=1, max_size=6))
def test_the_mean_counts_sites_alike_and_lies_in_its_interval(sites: list[Proportion]) -> None:
    found = mean_accuracy(sites)
    assert found is not None
    mean, (low, high) = found
    assert mean == pytest.approx(sum(site.correct / site.rows for site in sites) / len(sites))
    assert 0 <= low <= mean <= high <= 1


def test_the_mean_s_interval_holds_what_it_promises() -> None:
    """Exact coverage, over every outcome of two sites whose true accuracies differ."""
    rows, truths = (54, 102), (0.45, 0.7)

    def chance(correct: int, site: int) -> float:
        count, truth = rows[site], truths[site]
        return comb(count, correct) * truth**correct * (1 - truth) ** (count - correct)

    covered = 0.0
    for first in range(rows[0] + 1):
        for second in range(rows[1] + 1):
            found = mean_accuracy([Proportion(first, rows[0]), Proportion(second, rows[1])])
            assert found is not None
            low, high = found[1]
            if low <= sum(truths) / 2 <= high:
                covered += chance(first, 0) * chance(second, 1)
    assert 0.94 <= covered <= 0.96


@pytest.mark.parametrize("sites", [[], [Proportion(0, 0)], [Proportion(1, 2), Proportion(0, 0)]])
def test_there_is_no_mean_while_a_site_has_no_rows(sites: list[Proportion]) -> None:
    assert mean_accuracy(sites) is None


def test_percent_rounds_to_one_digit() -> None:
    assert [percent(share) for share in (0, 0.61207, 1)] == ["0.0 %", "61.2 %", "100.0 %"]
