"""One-run auditing: the bound itself, against published figures, exact enumeration and mechanisms that are tight."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from audits.epsilon_lower_bound import (
    EmpiricalError,
    Guesses,
    binomial,
    epsilon_lower_bound,
    guess,
    log_odds,
    p_value,
    rate_interval,
    rate_p_value,
)

EPSILONS = st.floats(0, 6)
DELTAS = st.sampled_from([0.0, 1e-6, 1e-4, 1e-2])


@st.composite
def counted(draw: st.DrawFn) -> Guesses:
    canaries = draw(st.integers(1, 120))
    guessed = draw(st.integers(0, canaries))
    return Guesses(canaries, guessed, draw(st.integers(0, guessed)))


@pytest.mark.parametrize(
    ("guesses", "delta", "published"),
    [(Guesses(1000, 100, 75), 1e-4, 0.673), (Guesses(100_000, 1510, 1439), 1e-5, 2.675)],
)
def test_the_bound_is_the_papers_to_its_last_printed_digit(guesses: Guesses, delta: float, published: float) -> None:
    """Steinke et al., 2023: the example of Appendix D, and that of section 7."""
    assert epsilon_lower_bound(guesses, delta, 0.95) == pytest.approx(published, abs=1e-3)


def test_all_right_without_delta_has_a_closed_form() -> None:
    """The largest q whose q**r is below the level: nothing else is proved by r right guesses."""
    q = 0.05 ** (1 / 64)
    assert epsilon_lower_bound(Guesses(64, 64, 64), 0.0, 0.95) == pytest.approx(math.log(q / (1 - q)), abs=1e-6)


@settings(max_examples=examples(60))
@given(counted(), EPSILONS)
def test_without_delta_guesses_are_dominated_by_a_binomial(guesses: Guesses, epsilon: float) -> None:
    """The p-value is the tail of Binomial(r, e^epsilon / (1 + e^epsilon)), summed with exact binomial coefficients."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    r = guesses.guessed
    tail = math.fsum(math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(guesses.correct, r + 1))
    assert p_value(guesses, epsilon, 0.0) == pytest.approx(min(1.0, tail), rel=1e-9, abs=1e-12)


@settings(max_examples=examples(60))
@given(counted(), EPSILONS, DELTAS)
def test_deltas_part_is_the_worst_of_all_shifts_computed_one_by_one(
    guesses: Guesses, epsilon: float, delta: float
) -> None:
    """2 m delta max_i P[v - i <= W < v] / i, by the definition."""
    likely = binomial(guesses.guessed, 1 / (1 + math.exp(-epsilon)))
    v = guesses.correct
    steepest = max((likely[max(0, v - i) : v].sum() / i for i in range(1, guesses.canaries + 1)), default=0.0)
    expected = min(1.0, likely[v:].sum() + 2 * guesses.canaries * delta * steepest)
    assert p_value(guesses, epsilon, delta) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=examples(60))
@given(counted(), EPSILONS, DELTAS)
def test_more_right_guesses_never_prove_less(guesses: Guesses, epsilon: float, delta: float) -> None:
    """Nor does a larger delta, a stricter confidence or a canary without a guess ever prove more."""
    bound = epsilon_lower_bound(guesses, delta, 0.95)
    if guesses.correct:
        fewer = Guesses(guesses.canaries, guesses.guessed, guesses.correct - 1)
        assert epsilon_lower_bound(fewer, delta, 0.95) <= bound + 1e-9
    assert epsilon_lower_bound(guesses, min(1.0, 2 * delta), 0.95) <= bound + 1e-9
    assert epsilon_lower_bound(guesses, delta, 0.99) <= bound + 1e-9
    more = Guesses(guesses.canaries + 10, guesses.guessed, guesses.correct)
    assert epsilon_lower_bound(more, delta, 0.95) <= bound + 1e-9


@settings(max_examples=examples(40))
@given(st.integers(1, 150), st.floats(0, 4), st.sampled_from([0.9, 0.95, 0.99]))
def test_randomised_response_is_accused_at_most_at_the_stated_rate(r: int, epsilon: float, confidence: float) -> None:
    """Summed exactly over all outcomes of the mechanism that is tight: the bound exceeds the truth that rarely."""
    likely = binomial(r, 1 / (1 + math.exp(-epsilon)))
    accused = [epsilon_lower_bound(Guesses(r, r, v), 0.0, confidence) > epsilon + 1e-9 for v in range(r + 1)]
    assert likely[accused].sum() <= 1 - confidence + 1e-12


def test_randomised_response_is_accused_nearly_at_the_stated_rate() -> None:
    """So the bound is not merely safe: a tight mechanism with little more epsilon than claimed is found out."""
    r, likely = 400, binomial(400, 1 / (1 + math.exp(-1.0)))
    bounds = np.array([epsilon_lower_bound(Guesses(r, r, v), 0.0, 0.95) for v in range(r + 1)])
    assert 0.02 < likely[bounds > 1.0].sum() <= 0.05
    assert float(likely @ bounds) > 0.75


def test_half_right_and_no_guess_prove_nothing() -> None:
    """An attack that failed, or said nothing."""
    assert epsilon_lower_bound(Guesses(100, 100, 50), 0.0, 0.95) == 0.0
    assert epsilon_lower_bound(Guesses(100, 0, 0), 0.0, 0.95) == 0.0
    assert p_value(Guesses(0, 0, 0), 1.0, 1e-5) == 1.0


def test_guesses_are_in_for_the_highest_scores_and_out_for_the_lowest() -> None:
    """Nothing is said about those between, and the number of guesses follows from the share alone."""
    scores = [5.0, 1.0, 3.0, 4.0, 2.0, 0.0, 6.0, 7.0]
    inserted = [True, True, False, False, False, False, True, False]
    assert guess(scores, inserted, 0.5) == Guesses(8, 4, 2)
    assert guess(scores, inserted, 1.0) == Guesses(8, 8, 5)
    assert guess(scores, [not item for item in inserted], 1.0) == Guesses(8, 8, 3)


def test_an_attack_without_a_clue_is_right_in_half_of_its_guesses() -> None:
    """Over 400 draws of canaries, whatever its scores."""
    generator = np.random.default_rng(0)
    rounds = [
        guess(generator.standard_normal(40).tolist(), (generator.random(40) < 0.5).tolist(), 0.5) for _ in range(400)
    ]
    assert sum(item.correct for item in rounds) / sum(item.guessed for item in rounds) == pytest.approx(0.5, abs=0.02)


@settings(max_examples=examples(15))
@given(st.integers(1, 60), st.floats(0.02, 0.98))
def test_the_interval_of_a_rate_covers_it_at_least_as_often_as_stated(trials: int, rate: float) -> None:
    """Clopper and Pearson, summed exactly over all outcomes."""
    inside = [
        low - 1e-9 <= rate <= high + 1e-9 for low, high in (rate_interval(v, trials, 0.9) for v in range(trials + 1))
    ]
    assert binomial(trials, rate)[inside].sum() >= 0.9 - 1e-9


def test_the_interval_of_a_rate_has_the_published_figures() -> None:
    """Five of twenty, and the closed form for none."""
    assert rate_interval(5, 20, 0.95) == pytest.approx((0.086571, 0.491046), abs=1e-6)
    assert rate_interval(0, 20, 0.95) == pytest.approx((0.0, 1 - 0.025**0.05), abs=1e-9)
    assert rate_p_value(0, 20, 0.5) == pytest.approx(1.0)
    assert rate_p_value(20, 20, 0.5) == pytest.approx(2.0**-20)


def test_log_odds_are_the_epsilon_of_the_best_guess() -> None:
    """Nothing at or below one half, no limit at one."""
    assert log_odds(0.75) == pytest.approx(math.log(3))
    assert log_odds(0.5) == log_odds(0.2) == log_odds(0.0) == 0.0
    assert log_odds(1.0) == math.inf


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Guesses(10, 11, 5),
        lambda: Guesses(10, 5, 6),
        lambda: guess([1.0, math.nan], [True, False], 0.5),
        lambda: guess([1.0], [True, False], 0.5),
        lambda: guess([1.0, 2.0], [True, False], 0.0),
        lambda: p_value(Guesses(1, 1, 1), -1.0, 0.0),
        lambda: p_value(Guesses(1, 1, 1), 1.0, 2.0),
        lambda: epsilon_lower_bound(Guesses(1, 1, 1), 0.0, 1.0),
        lambda: rate_interval(3, 2, 0.9),
        lambda: binomial(-1, 0.5),
    ],
)
def test_figures_that_no_audit_can_have_are_refused(wrong: object) -> None:
    """In one sentence, before they become a bound."""
    with pytest.raises(EmpiricalError):
        wrong()  # type: ignore[operator]
