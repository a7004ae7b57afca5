"""How many of those who took part can be found: a bound, and not much more than one."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from privacy import DPEvent, Laplace, SampledGaussian
from privacy.accounting import AccountingError
from privacy.report.build import most_found

SETTINGS = [
    (0.9, 6.0, 5),
    *(
        pytest.param(*setting, marks=pytest.mark.slow)
        for setting in (
            *((0.05, 1.0, 300), (0.01, 0.6, 50), (0.1, 30.0, 300), (0.25, 1.45, 8), (0.3, 3.0, 40)),
            *((0.5, 2.0, 12), (0.02, 0.8, 1000), (0.001, 1.0, 2000), (0.2, 0.7, 20)),
        )
    ),
]
"""Rate, noise, steps."""
EPSILONS = np.concatenate([np.linspace(0, 4, 81), np.linspace(4.2, 15, 55)])


def found_by_pld(rate: float, noise: float, steps: int, wrongly: float) -> float:
    """The same share from Google's privacy loss distributions, in both directions, over a fine grid of epsilons."""
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    deltas = np.array(PLDAccountant(value_discretization_interval=1e-3).compose(event).get_delta(EPSILONS.tolist()))
    above = np.exp(EPSILONS) * wrongly + deltas
    below = 1 - np.exp(-EPSILONS) * np.maximum(0, 1 - deltas - wrongly)
    return float(min(above.min(), below.min(), 1.0))


@pytest.mark.parametrize("rate, noise, steps", SETTINGS)
def test_the_bound_is_that_of_an_independent_accountant(rate: float, noise: float, steps: int) -> None:
    """Never below the one from privacy loss distributions, beyond its rounding, and at most 4 percent above it."""
    mine, theirs = most_found([SampledGaussian(rate, noise, steps)], 0.05), found_by_pld(rate, noise, steps, 0.05)
    assert theirs - 5e-4 <= mine <= 1.04 * theirs + 2e-3


@pytest.mark.parametrize("mu", [0.01, 0.1, 0.5, 1.0, 2.0, 3.5, 6.0])
@pytest.mark.parametrize("wrongly", [0.0, 0.01, 0.05, 0.5, 1.0])
def test_a_gaussian_mechanism_of_known_strength_is_never_stronger_than_the_bound(mu: float, wrongly: float) -> None:
    """Its best test is known: Phi(Phi^-1(a) + mu). The bound is above it, and by at most 0.03."""
    exact = float(norm.cdf(norm.ppf(wrongly) + mu))
    assert exact - 1e-9 <= most_found([SampledGaussian(1.0, 1 / mu)], wrongly) <= exact + 0.03


def test_an_attack_on_a_known_mechanism_finds_no_more_than_the_bound() -> None:
    """The likelihood ratio, the strongest attack, on 200,000 draws with and without one patient, at 5 of 100 wrong."""
    generator, noise, steps, rate, draws = np.random.default_rng(7), 1.5, 6, 0.5, 200_000

    def ratios(took_part: bool) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        drawn = (generator.random((draws, steps)) < rate) & took_part
        seen = drawn + noise * generator.standard_normal((draws, steps))
        return np.asarray(np.log1p(rate * np.expm1((2 * seen - 1) / (2 * noise**2))).sum(axis=1))

    threshold = np.quantile(ratios(False), 0.95)
    found, bound = float((ratios(True) > threshold).mean()), most_found([SampledGaussian(rate, noise, steps)], 0.05)
    assert found - 0.003 <= bound <= found + 0.02


def test_laplace_noise_is_bounded_by_its_pure_epsilon() -> None:
    """One release finds at most e^epsilon times what guessing finds, and no more than the best test of its noise."""
    assert most_found([Laplace(1.0)], 0.05) <= math.e * 0.05 + 1e-12
    assert most_found([Laplace(1.0)], 0.05) >= math.e * 0.05 - 1e-3


def test_more_is_found_by_more_and_guessing_alone_finds_what_it_accuses() -> None:
    """Nothing released: 5 of 100. More steps never find fewer; no noise to speak of finds everybody."""
    assert most_found([], 0.05) == 0.05
    shares = [most_found([SampledGaussian(0.2, 1.0, steps)], 0.05) for steps in (1, 10, 100, 1000)]
    assert shares == sorted(shares) and shares[-1] <= 1
    little: list[DPEvent] = [SampledGaussian(1.0, 1e-4)]
    assert most_found(little, 0.05) == 1.0
    with pytest.raises(AccountingError, match="from 0 to 1"):
        most_found([], 1.5)
