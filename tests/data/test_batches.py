"""An epoch of batches, on any set of patients."""

import pytest
import tiers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from medfedvqa.data import Examples, batches
from medfedvqa.errors import ConfigError


def examples(patients: list[int]) -> Examples:
    numbers = torch.zeros(len(patients), dtype=torch.int64)
    return Examples(("q",) * len(patients), numbers, numbers, torch.tensor(patients, dtype=torch.int64))


def epoch(patients: list[int], rows: int, seed: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in batches(examples(patients), rows, torch.Generator().manual_seed(seed))]


some_patients = st.lists(st.integers(0, 9), max_size=60)


@settings(max_examples=tiers.examples(40))
@given(some_patients, st.integers(1, 20), st.integers(0, 3))
def test_every_row_comes_once_in_batches_of_the_asked_size(patients: list[int], rows: int, seed: int) -> None:
    result = epoch(patients, rows, seed)
    assert sorted(row for batch in result for row in batch) == list(range(len(patients)))
    assert all(1 <= len(batch) <= rows for batch in result)


@settings(max_examples=tiers.examples(40))
@given(some_patients, st.integers(1, 20), st.integers(0, 3))
def test_a_patient_that_fits_is_in_one_batch(patients: list[int], rows: int, seed: int) -> None:
    result = epoch(patients, rows, seed)
    for patient in set(patients):
        held = sum(any(patients[row] == patient for row in batch) for batch in result)
        if patients.count(patient) <= rows:
            assert held == 1


@settings(max_examples=tiers.examples(40))
@given(some_patients, st.integers(1, 20))
def test_no_two_neighbouring_batches_would_fit_in_one(patients: list[int], rows: int) -> None:
    """A batch ends only because the next patient, or the next part of one, would overfill it."""
    result = epoch(patients, rows)
    for batch, following in zip(result, result[1:], strict=False):
        first = [row for row in following if patients[row] == patients[following[0]]]
        assert len(batch) + len(first) > rows


def test_the_order_is_the_generators() -> None:
    patients = [row // 3 for row in range(60)]
    assert epoch(patients, 6, seed=1) == epoch(patients, 6, seed=1) != epoch(patients, 6, seed=2)


def test_a_generator_goes_on_to_another_order_in_the_next_epoch() -> None:
    generator, data = torch.Generator().manual_seed(0), examples([row // 3 for row in range(60)])
    first, second = ([batch.tolist() for batch in batches(data, 6, generator)] for _ in range(2))
    assert first != second


def test_a_batch_without_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 row"):
        next(batches(examples([0, 1]), 0, torch.Generator()))
