"""Who takes part in a step, and with how many rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from privacy import PatientSampler, RepeatableRandomness, SecureRandomness


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=60), st.floats(0.05, 1), st.integers(1, 5), st.integers(0, 1000)
)
def test_a_patient_comes_with_its_own_rows_only_and_with_at_most_the_cap(
    patients: list[int], rate: float, cap: int, seed: int
) -> None:
    """Every draw is of one patient, no patient is drawn twice, and rows up to the cap are all there."""
    owners = torch.tensor(patients)
    drawn = PatientSampler(owners, rate, cap, RepeatableRandomness(seed)).sample()
    seen = [int(owners[rows[0]]) for rows in drawn]
    assert len(set(seen)) == len(seen)
    for patient, rows in zip(seen, drawn, strict=True):
        assert set(owners[rows].tolist()) == {patient} and len(set(rows.tolist())) == len(rows)
        assert len(rows) == min(cap, patients.count(patient))


def test_everybody_takes_part_at_rate_one() -> None:
    """Poisson sampling with probability 1 is the whole cohort."""
    drawn = PatientSampler(torch.tensor([5, 5, 2, 9]), 1.0, 8, SecureRandomness()).sample()
    assert [rows.tolist() for rows in drawn] == [[2], [0, 1], [3]]


def test_each_patient_takes_part_independently_with_the_stated_probability() -> None:
    """The number drawn is binomial: its mean and its variance are those of 400 independent coins."""
    sampler = PatientSampler(torch.arange(400).repeat(2), 0.25, 1, SecureRandomness())
    sizes = np.array([len(sampler.sample()) for _ in range(400)])
    mean, variance = 100.0, 75.0
    assert abs(sizes.mean() - mean) < 5 * (variance / 400) ** 0.5
    assert variance / 1.5 < sizes.var() < variance * 1.5


def test_an_empty_sample_is_possible() -> None:
    """A step in which nobody takes part is a step like others."""
    sampler = PatientSampler(torch.tensor([0, 1]), 0.01, 1, SecureRandomness())
    assert [] in [sampler.sample() for _ in range(50)]


def test_rows_beyond_the_cap_are_drawn_anew_each_time() -> None:
    """No row is left out for good."""
    sampler = PatientSampler(torch.zeros(6, dtype=torch.int64), 1.0, 2, SecureRandomness())
    seen = {row for _ in range(200) for rows in sampler.sample() for row in rows.tolist()}
    assert seen == set(range(6))


def test_sampling_ignores_every_seed_that_a_job_can_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decisions come from the secure source alone."""

    class Never(SecureRandomness):
        def uniform(self, count: int) -> NDArray[np.float64]:
            return np.ones(count) - 2**-53

    torch.manual_seed(0)
    assert PatientSampler(torch.arange(100), 0.999, 1, Never()).sample() == []
