"""Accuracies under differential privacy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privacy import (
    CountsMechanism,
    Laplace,
    RepeatableRandomness,
    SampledGaussian,
    SecureRandomness,
    SettingsError,
    noisy_share,
)
from privacy.mechanisms.base import UNITS
from privacy.noisy_counts import pair_of

SHARES = st.lists(st.floats(0, 1), max_size=30)
KINDS = pytest.mark.parametrize("kind", [SampledGaussian, Laplace])


class Recorded(RepeatableRandomness):
    """Adds nothing, and remembers what it was asked for."""

    def rounded_normal(self, count: int, deviation: float) -> torch.Tensor:
        self.asked = (count, deviation)
        return torch.zeros(count, dtype=torch.float64)


def tensor(shares: list[float]) -> torch.Tensor:
    return torch.tensor(shares, dtype=torch.float64)


@given(SHARES, st.floats(allow_nan=False, allow_infinity=False))
def test_one_patient_moves_the_pair_by_exactly_one(shares: list[float], one: float) -> None:
    """In the L1 norm, and so by at most 1 in the L2 norm, whatever share the patient has and however it is rounded."""
    before, after = pair_of(tensor(shares)), pair_of(tensor([*shares, one]))
    moved = [new - old for new, old in zip(after, before, strict=True)]
    assert sum(moved) == UNITS and min(moved) >= 0
    assert moved[0] / UNITS == pytest.approx(min(1, max(0, one)), abs=1 / UNITS)


@given(SHARES, st.floats(0.1, 50))
def test_gaussian_noise_is_the_multiplier_times_that_sensitivity(shares: list[float], noise: float) -> None:
    """Two whole numbers are noised once, with exactly the standard deviation that is charged, in their own parts."""
    randomness = Recorded(0)
    assert 0 <= noisy_share(tensor(shares), SampledGaussian.for_counts(noise), randomness) <= 1
    assert randomness.asked == (2, noise * UNITS)


@KINDS
@given(shares=SHARES, noise=st.floats(0.01, 1e4), seed=st.integers(0, 10**6))
def test_the_result_is_a_share(kind: type[CountsMechanism], shares: list[float], noise: float, seed: int) -> None:
    """However large the noise is, and without any patient."""
    assert 0 <= noisy_share(tensor(shares), kind.for_counts(noise), RepeatableRandomness(seed)) <= 1


@KINDS
def test_with_many_patients_the_share_is_right(kind: type[CountsMechanism]) -> None:
    """Noise that is small beside the cohort leaves the accuracy as it is."""
    shares = torch.full((100_000,), 0.75, dtype=torch.float64)
    assert noisy_share(shares, kind.for_counts(1.0), SecureRandomness()) == pytest.approx(0.75, abs=1e-3)


@KINDS
def test_with_few_patients_the_share_is_drawn_to_one_half(kind: type[CountsMechanism]) -> None:
    """A figure that is all noise says nothing, instead of saying 0 or 1."""
    counts = kind.for_counts(30.0)
    shares = [noisy_share(torch.ones(3), counts, RepeatableRandomness(seed)) for seed in range(300)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)


def test_without_patients_and_noise_the_share_is_one_half() -> None:
    """Nothing is known, and that is said."""
    assert noisy_share(torch.ones(0), SampledGaussian.for_counts(5.0), Recorded(0)) == 0.5


def test_a_release_that_no_noise_was_made_for_is_refused() -> None:
    """An accuracy never leaves without noise."""
    with pytest.raises(SettingsError, match="include its counts"):
        noisy_share(torch.ones(3), None, SecureRandomness())
