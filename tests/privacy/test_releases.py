"""Accuracies under differential privacy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy import RepeatableRandomness, SecureRandomness, noisy_share

SHARES = st.lists(st.floats(0, 1), max_size=30)


class Recorded(RepeatableRandomness):
    """Adds nothing, and remembers what it was asked for."""

    def normal(self, shape: object, std: float) -> torch.Tensor:
        self.asked = (shape, std)
        return torch.zeros(2)


def pair(shares: list[float]) -> np.ndarray:
    """The sums that the noise is added to."""
    array = np.array(shares)
    return np.array([array.sum(), (1 - array).sum()])


@settings(deadline=None)
@given(SHARES, st.floats(0, 1))
def test_one_patient_moves_the_pair_by_at_most_one(shares: list[float], one: float) -> None:
    """The sensitivity that the noise is measured in, whatever share the patient has."""
    assert np.linalg.norm(pair([*shares, one]) - pair(shares)) <= 1 + 1e-12


@settings(deadline=None)
@given(SHARES, st.floats(0.1, 50))
def test_the_noise_is_the_multiplier_times_that_sensitivity_and_the_result_is_a_share(
    shares: list[float], noise: float
) -> None:
    """Two numbers are noised once, with exactly the standard deviation that is charged."""
    randomness = Recorded(0)
    assert 0 <= noisy_share(torch.tensor(shares, dtype=torch.float64), noise, randomness) <= 1
    assert randomness.asked == ((2,), noise)


def test_with_many_patients_the_share_is_right() -> None:
    """Noise that is small beside the cohort leaves the accuracy as it is."""
    shares = torch.full((100_000,), 0.75, dtype=torch.float64)
    assert noisy_share(shares, 1.0, SecureRandomness()) == pytest.approx(0.75, abs=1e-3)


def test_with_few_patients_the_share_is_drawn_to_one_half() -> None:
    """A figure that is all noise says nothing, instead of saying 0 or 1."""
    shares = [noisy_share(torch.ones(3), 30.0, RepeatableRandomness(seed)) for seed in range(300)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)
    assert noisy_share(torch.ones(0), 5.0, Recorded(0)) == 0.5
