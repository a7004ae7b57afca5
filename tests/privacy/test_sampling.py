"""Who takes part in a step, and with how many rows."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tiers import examples

from privacy import PatientSampler, RepeatableRandomness, SecureRandomness

KEYS = [f"patient {number}" for number in range(400)]
PATIENTS = st.lists(st.integers(0, 12), min_size=1, max_size=60)


@settings(max_examples=examples(50))
@given(PATIENTS, st.floats(0.05, 1), st.integers(1, 5), st.integers(0, 1000))
def test_a_patient_comes_with_its_rows_only_and_with_at_most_the_cap(
    patients: list[int], rate: float, cap: int, seed: int
) -> None:
    """Every draw is of one patient, no patient is drawn twice, and rows up to the cap are all there."""
    owners = torch.tensor(patients)
    drawn = PatientSampler(owners, KEYS, rate, cap, RepeatableRandomness(seed)).sample()
    seen = [int(owners[rows[0]]) for rows in drawn]
    assert len(set(seen)) == len(seen)
    for patient, rows in zip(seen, drawn, strict=True):
        assert set(owners[rows].tolist()) == {patient} and len(set(rows.tolist())) == len(rows)
        assert len(rows) == min(cap, patients.count(patient))


@settings(max_examples=examples(80))
@given(st.data(), PATIENTS, st.floats(0.05, 1), st.integers(1, 5), st.integers(0, 1000))
def test_a_patients_coin_and_rows_depend_on_no_other_patient(
    data: st.DataObject, patients: list[int], rate: float, cap: int, seed: int
) -> None:
    """Without some patients, and under other numbers, the others take part as before and with the same rows."""

    def sampled(rows: torch.Tensor, numbers: dict[int, int]) -> list[dict[int, list[int]]]:
        """For three steps: places among its own rows, by patient."""
        keys = [""] * 20
        for patient, number in numbers.items():
            keys[number] = KEYS[patient]
        owners = torch.tensor([numbers[patients[row]] for row in rows.tolist()])
        sampler = PatientSampler(owners, keys, rate, cap, RepeatableRandomness(seed))
        steps = []
        for _ in range(3):
            drawn = [rows[part].tolist() for part in sampler.sample()]
            steps.append({patients[part[0]]: part for part in drawn})
        return steps

    everybody = torch.arange(len(patients))
    whole = sampled(everybody, {patient: patient for patient in range(13)})
    gone = data.draw(st.sets(st.sampled_from(patients), max_size=len(set(patients)) - 1))
    order = data.draw(st.permutations(range(20)))
    kept = everybody[[patient not in gone for patient in patients]]
    some = sampled(kept, {patient: order[patient] for patient in range(13)})
    assert some == [{patient: rows for patient, rows in step.items() if patient not in gone} for step in whole]


def test_everybody_takes_part_at_rate_one() -> None:
    """Poisson sampling with probability 1 is the whole cohort."""
    drawn = PatientSampler(torch.tensor([5, 5, 2, 9]), KEYS, 1.0, 8, SecureRandomness()).sample()
    assert [rows.tolist() for rows in drawn] == [[2], [0, 1], [3]]


def test_each_patient_takes_part_independently_with_the_stated_probability() -> None:
    """The number drawn is binomial, and so is how often each patient is drawn: mean, variance and a chi-square."""
    owners = torch.arange(400).repeat(2)
    sampler = PatientSampler(owners, KEYS, 0.25, 1, RepeatableRandomness(7))
    drawn = np.zeros((400, 400))
    for step in drawn:
        step[[int(owners[rows[0]]) for rows in sampler.sample()]] = 1
    mean, variance = 100.0, 75.0
    for counts in (drawn.sum(0), drawn.sum(1)):
        assert abs(counts.mean() - mean) < 5 * (variance / 400) ** 0.5
        assert 1e-4 < stats.chi2.cdf(((counts - mean) ** 2).sum() / variance, 400) < 1 - 1e-4
    assert abs(np.corrcoef(drawn[1:].ravel(), drawn[:-1].ravel())[0, 1]) < 5 / drawn.size**0.5


def test_an_empty_sample_is_possible() -> None:
    """A step in which nobody takes part is a step like others."""
    sampler = PatientSampler(torch.tensor([0, 1]), KEYS, 0.01, 1, RepeatableRandomness(0))
    assert [] in [sampler.sample() for _ in range(50)]


def test_rows_beyond_the_cap_are_drawn_anew_each_time_and_evenly() -> None:
    """No row is left out for good, and none is favoured."""
    sampler = PatientSampler(torch.zeros(6, dtype=torch.int64), KEYS, 1.0, 2, RepeatableRandomness(3))
    seen = np.bincount(torch.cat([rows for _ in range(1000) for rows in sampler.sample()]).numpy(), minlength=6)
    assert seen.sum() == 2000 and stats.chisquare(seen).pvalue > 1e-4


@settings(max_examples=examples(20))
@given(st.integers(0, 2**31))
def test_no_seed_of_a_job_reaches_who_takes_part(seed: int) -> None:
    """Seeding torch and NumPy changes nothing, and drawing moves neither of their generators."""
    owners = torch.arange(100).repeat(3)
    expected = PatientSampler(owners, KEYS, 0.5, 2, RepeatableRandomness(5)).sample()
    torch.manual_seed(seed)
    np.random.seed(seed)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    result = PatientSampler(owners, KEYS, 0.5, 2, RepeatableRandomness(5)).sample()
    assert [rows.tolist() for rows in result] == [rows.tolist() for rows in expected]
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # type: ignore[index]


def test_real_samples_never_repeat() -> None:
    """The secret of each step is fresh from the operating system, in one sampler and in another."""
    owners = torch.arange(400)
    samplers = [PatientSampler(owners, KEYS, 0.5, 1, SecureRandomness()) for _ in range(2)]
    drawn = {tuple(int(rows[0]) for rows in sampler.sample()) for sampler in samplers for _ in range(5)}
    assert len(drawn) == 10
