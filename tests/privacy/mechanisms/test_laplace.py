"""The Laplace mechanism: its noise is what is charged, exactly, and its figures are the divergences that it names."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, stats

from privacy import AccountingError, Laplace, RepeatableRandomness, SecureRandomness
from privacy.mechanisms import laplace
from privacy.mechanisms.base import UNITS


def rounded_probability(value: int, halves: int) -> float:
    """Of a Laplace variable of scale `halves` / 2 that is rounded to a whole number."""
    if value == 0:
        return -math.expm1(-1 / halves)
    return math.exp(-2 * abs(value) / halves) * math.sinh(1 / halves)


@pytest.mark.parametrize("halves", [1, 5, *(pytest.param(halves, marks=pytest.mark.slow) for halves in (2, 12))])
def test_noise_is_a_rounded_laplace_variable(halves: int) -> None:
    """Frequencies of whole numbers on a grid that is as coarse as the noise, where a wrong step would show."""
    randomness, draws = RepeatableRandomness(halves), 12_000
    scale = halves / (2 * UNITS)
    drawn = [laplace._rounded_laplace(scale, randomness) for _ in range(draws)]
    values = range(-halves, halves + 1)
    expected = [rounded_probability(value, halves) for value in values]
    counted = [drawn.count(value) for value in values]
    rest = [draws - sum(counted)], [draws * (1 - sum(expected))]
    result, wanted = [*counted, *rest[0]], [*(draws * item for item in expected), *rest[1]]
    assert stats.chisquare(result, wanted).pvalue > 1e-4


def test_noise_on_the_grid_in_use_has_the_scale_that_is_charged() -> None:
    """A Laplace variable in units of patients, for both counts alike."""
    randomness, mechanism = SecureRandomness(), Laplace(3.0)
    pairs = np.array([mechanism.noisy((7 * UNITS, 0), randomness) for _ in range(3000)])
    assert stats.kstest(pairs[:, 0] - 7, stats.laplace(scale=3.0).cdf).pvalue > 1e-5
    assert stats.kstest(pairs[:, 1], stats.laplace(scale=3.0).cdf).pvalue > 1e-5
    assert abs(stats.spearmanr(pairs[:, 0], pairs[:, 1]).statistic) < 0.1
    assert np.all(pairs * UNITS == np.round(pairs * UNITS))


class Words:
    """Uniform numbers from a list of 53-bit words."""

    void = True

    def __init__(self, words: Sequence[int]) -> None:
        self._words = list(words)

    def uniform(self, count: int) -> NDArray[np.float64]:
        taken, self._words = self._words[:count], self._words[count:]
        return np.array(taken, dtype=np.float64) * 2.0**-53


@given(st.integers(1, 2**130), st.lists(st.integers(0, 2**53 - 1), min_size=60, max_size=60))
def test_whole_numbers_are_uniform(most: int, words: list[int]) -> None:
    """A word is taken modulo the bound, and refused where that would favour small numbers."""
    count = most.bit_length() // 53 + 1
    span = 2 ** (53 * count)
    whole = [
        sum(word << 53 * place for place, word in enumerate(reversed(words[at : at + count])))
        for at in range(0, len(words) - count + 1, count)
    ]
    fit = [number for number in whole if number < span - span % most]
    if fit:
        assert laplace._below(most, Words(words)) == fit[0] % most


@pytest.mark.parametrize(("words", "drawn"), [([2**53 - 1, 5], 2), ([2**53 - 2, 6], 0), ([2**53 - 3, 0], 2)])
def test_the_last_words_are_drawn_again_where_they_would_favour_small_numbers(words: list[int], drawn: int) -> None:
    """2^53 is 2 more than a multiple of 3: of its last three words two are refused."""
    assert laplace._below(3, Words(words)) == drawn


@pytest.mark.parametrize(("top", "bottom"), [(0, 3), (1, 1), (1, 2), (9, 10)])
def test_coins_fall_with_an_exponential_probability(top: int, bottom: int) -> None:
    """exp(-top / bottom)."""
    randomness, throws = RepeatableRandomness(5), 4000
    heads = sum(laplace._coin(top, bottom, randomness) for _ in range(throws))
    assert stats.binomtest(heads, throws, math.exp(-top / bottom)).pvalue > 1e-4


@pytest.mark.parametrize("order", [1.1, 1.5, 2, 8, 63])
@pytest.mark.parametrize("scale", [0.5, 2.0, 30.0])
def test_the_renyi_divergence_is_the_integral_that_defines_it(scale: float, order: float) -> None:
    """Of two Laplace densities one sensitivity apart."""

    def density(x: float) -> float:
        return math.exp(-(order * abs(x) + (1 - order) * abs(x - 1)) / scale) / (2 * scale)

    moment = sum(integrate.quad(density, *ends)[0] for ends in ((-math.inf, 0), (0, 1), (1, math.inf)))
    assert Laplace(scale).rdp([order])[0] == pytest.approx(math.log(moment) / (order - 1), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_extreme_divergences_are_finite_and_below_the_pure_one(scale: float) -> None:
    """No order overflows, and none loses its digits: of much noise it is order / (2 b^2)."""
    result = Laplace(scale).rdp([1.1, 2, 1024])
    assert np.all(result > 0) and np.all(result <= 1 / scale) and np.all(np.diff(result) >= 0)
    if scale == 1e4:
        assert result[1] == pytest.approx(2 / (2 * scale**2), rel=1e-3)


@pytest.mark.parametrize("scale", [0.3, 1.0, 25.0])
def test_the_privacy_loss_is_that_of_two_laplace_densities(scale: float) -> None:
    """Distribution and mean, against draws."""
    loss, largest = Laplace(scale).loss(-100.0, 100.0), 1 / scale
    noise = np.random.default_rng(3).laplace(scale=scale, size=200_000)
    losses = (np.abs(noise + 1) - np.abs(noise)) / scale  # of noise around 0 against noise around -1
    points = np.linspace(-largest * 1.1, largest * 1.1, 41)
    drawn = np.array([np.mean(losses <= point + 1e-9) for point in points])
    assert np.allclose(loss.cdf(points + 1e-9), drawn, atol=5e-3)
    assert loss.mean() == pytest.approx(losses.mean(), abs=5e-3 * largest)
    assert loss.cdf(np.array([largest]))[0] == 1 and loss.cdf(np.array([-largest - 1e-9]))[0] == 0


@pytest.mark.parametrize("part", [0.05, 0.3, 0.5])
@pytest.mark.parametrize("units", [4, 40])
def test_a_patient_split_over_both_counts_costs_no_more_than_in_one(part: float, units: int) -> None:
    """The released pair, with rounded noise, against the continuous mechanism that is charged, at every epsilon."""
    scale, first = 1.3, round(part * units)
    values = np.arange(-40 * units, 41 * units)
    halves = math.ceil(scale * 2 * units)
    noise = np.array([rounded_probability(int(value), halves) for value in values])

    def moved(by: int) -> NDArray[np.float64]:
        return np.roll(noise, by)

    with_patient = np.outer(moved(first), moved(units - first))
    without = np.outer(noise, noise)
    for epsilon in np.linspace(0, 1.1 / scale, 12):
        pair = np.maximum(with_patient - math.exp(epsilon) * without, 0).sum()
        single = max(0.0, -math.expm1((epsilon - 1 / scale) / 2))
        assert pair <= single + 1e-9


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, math.inf, True, "1", None, 5e-324])
def test_unfit_scales_are_refused(scale: float) -> None:
    """No event outside of what can be accounted for is made."""
    with pytest.raises(AccountingError):
        Laplace(scale)


@pytest.mark.parametrize("scale", [0.3, 1.3, 7.0])
def test_the_chi_squared_divergence_is_that_of_two_laplace_variables_one_apart(scale: float) -> None:
    """By numerical integration of the square of one density over the other; steps add it up."""
    ratio = integrate.quad(
        lambda x: math.exp((abs(x - 1) - 2 * abs(x)) / scale) / (2 * scale), -60 * scale, 60 * scale, points=[0, 1]
    )
    assert Laplace(scale, 3).mu_squared == pytest.approx(3 * (ratio[0] - 1), rel=1e-6)


def test_the_deviation_is_that_of_the_noise() -> None:
    """Which reports and forecasts state: the square root of the mean square of many draws."""
    mechanism, randomness = Laplace(2.0), RepeatableRandomness(3)
    drawn = mechanism.noisy([0] * 20_000, randomness)
    assert mechanism.deviation == pytest.approx(np.sqrt(np.mean(np.square(drawn))), rel=0.03)
