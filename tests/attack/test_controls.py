"""Rates over repetitions: faults of the mechanism are caught, and a sound one is not accused."""

from dataclasses import replace

import pytest

from audits.epsilon_lower_bound import epsilon_lower_bound
from medfedvqa.attack.controls import ControlRun, Fault

pytestmark = pytest.mark.slow

CONFIDENCE = 0.95
SOUND = ControlRun(noise=12.06)
"""Claims epsilon 1."""
LESS = ControlRun(noise=6.487)
"""Claims epsilon 2."""
ONE_ROUND = ControlRun(noise=2.514)
"""Claims epsilon 1 for a single round."""


def bounds(trial: ControlRun, fault: Fault, repetitions: int) -> list[float]:
    """Lower bounds from as many trainings with canaries of their own."""
    return [epsilon_lower_bound(trial.run(fault, seed), trial.delta, CONFIDENCE) for seed in range(repetitions)]


@pytest.mark.parametrize(("trial", "fault"), [(SOUND, Fault.SILENT), (ONE_ROUND, Fault.FORGETFUL), (SOUND, Fault.ROWS)])
def test_a_broken_mechanism_is_caught_in_every_training(trial: ControlRun, fault: Fault) -> None:
    """Noise off, the accountant forgetting earlier rounds, rows in the place of patients: eight of eight each."""
    claimed = trial.claimed(fault)
    assert claimed == pytest.approx(1.0, abs=0.01)
    assert min(bounds(trial, fault, 8)) > claimed


@pytest.mark.parametrize(("trial", "epsilon"), [(SOUND, 1.0), (LESS, 2.0)])
def test_a_sound_mechanism_is_never_accused_though_the_attack_learns_something(
    trial: ControlRun, epsilon: float
) -> None:
    """Of twenty trainings one might be at the stated rate; none is, since accountants and attack leave room."""
    assert trial.claimed(Fault.NONE) == pytest.approx(epsilon, abs=0.01)
    found = bounds(trial, Fault.NONE, 20)
    assert max(found) <= trial.claimed(Fault.NONE)
    assert sum(bound > 0 for bound in found) >= 8  # by chance alone one in twenty is


def test_patients_of_one_row_do_not_show_that_rows_were_bounded() -> None:
    """What catches that fault is that patients have many rows: with one each it is no fault."""
    assert max(bounds(replace(SOUND, rows=1), Fault.ROWS, 4)) <= 1.0
