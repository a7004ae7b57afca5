"""The three sentences below a table follow from its figures, and claim no difference that the intervals do not show."""

from typing import Any

import pytest

from medfedvqa.evaluation.accuracy import Proportion, late_gain, rounds_since_best
from medfedvqa.evaluation.accuracy_table import difference, explained


def entry(correct: int, rows: int = 400) -> dict[str, Any]:
    share = Proportion(correct, rows)
    return {"accuracy": share.value, "interval": list(share.wilson())}


def results(prior: int, alone: int | None, method: int | None, majority: int = 100) -> dict[str, Any]:
    """The part of `results.json` that is read."""
    baselines = {"majority": entry(majority), "question_prior": entry(prior), "alone": alone and entry(alone)}
    released = entry(method) if method else {"accuracy": None, "interval": None}
    return {"method": "prompt_pfl", "average": {**released, "baselines": baselines}}


def test_each_sentence_has_its_figures_and_says_where_a_difference_is_not_shown() -> None:
    """60 %, 80 % and 81 % of 400: training alone is above what is free, sharing not above training alone."""
    free, alone, shared = explained(results(240, 320, 324))
    assert (
        free.startswith("What is free: the most frequent answer to the same question") and "60.0 % [55.1, 64.7]" in free
    )
    assert "80.0 % [75.8, 83.6]" in alone and "+20.0 points [13.7, 26.1] against what is free." in alone
    assert "81.0 %" in shared and "against training alone, which these test rows do not tell apart from none." in shared


def test_a_loss_is_called_one() -> None:
    """With its sign, and without the words that there is no difference."""
    *_, shared = explained(results(240, 320, 200))
    assert "-30.0 points" in shared and shared.endswith("against training alone.")


def test_missing_figures_give_no_sentence() -> None:
    """Without training alone, sharing is compared with what is free; with scores that stay at the sites, nothing is."""
    two = explained(results(240, None, 324))
    assert len(two) == 2 and "against what is free." in two[1]
    assert explained(results(240, 320, None)) == []
    assert "the most frequent answer, which" in explained(results(240, 320, 324, majority=250))[0]


def test_the_interval_of_a_difference_is_newcombe_s() -> None:
    """His worked example: 56 of 70 against 48 of 80 (Statist. Med. 17, 1998, table II a, method 10)."""
    gain, (low, high) = difference(entry(56, 70), entry(48, 80))
    assert (gain, low, high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


@pytest.mark.parametrize(
    ("curve", "since"), [([], 0), ([0.5], 0), ([0.5, 0.5], 1), ([0.5, 0.6], 0), ([0.7, 0.6, 0.7, 0.1], 3)]
)
def test_rounds_since_the_best_one(curve: list[float], since: int) -> None:
    """The first of equal rounds is the best one."""
    assert rounds_since_best(curve) == since


@pytest.mark.parametrize(
    ("curve", "gained"), [([], 0), ([0.5], 0), ([0.5, 0.4, 0.7], 0.2), ([0.2, 0.6, 0.1, 0.6], 0), ([0.9, 0.1, 0.4], 0)]
)
def test_what_the_last_third_of_the_rounds_gains(curve: list[float], gained: float) -> None:
    """The best of all rounds against the best of the first two of three, or of four."""
    assert late_gain(curve) == pytest.approx(gained)
