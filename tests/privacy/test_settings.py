"""What a job asks for, and the noise that follows from it."""

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy import (
    AccountingError,
    Cost,
    CountsMechanism,
    DPSettings,
    Laplace,
    NoiseLevels,
    SampledGaussian,
    SettingsError,
    Use,
    calibrate,
    merge_steps,
    spent,
)

COUNTS = (SampledGaussian(1.0, 2.0, use=Use.COUNTS), Laplace(2.0, use=Use.COUNTS))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"noise": 1.0},
        {"count_noise": 1.0},
        {"epsilon": 1.0, "noise": 1.0},
        {"epsilon": 1.0, "noise": 1.0, "count_noise": 1.0},
        {"epsilon": 0.0},
        {"epsilon": float("inf")},
        {"epsilon": float("nan")},
        {"noise": 1.0, "count_noise": 0.0},
        {"epsilon": 1.0, "clip": 0.0},
        {"epsilon": 1.0, "sample_rate": 0.0},
        {"epsilon": 1.0, "sample_rate": 1.1},
        {"epsilon": 1.0, "delta": 0.0},
        {"epsilon": 1.0, "delta": 1.0},
        {"epsilon": 1.0, "count_share": 1.0},
        {"epsilon": 1.0, "expected_patients": 0},
        {"epsilon": 1.0, "patient_rows": 0},
        {"epsilon": 1.0, "physical_patients": 0},
    ],
)
def test_settings_that_promise_nothing_are_refused(wrong: dict[str, Any]) -> None:
    """A job that cannot be accounted for is not built."""
    with pytest.raises(SettingsError):
        DPSettings(**wrong)


def test_noise_that_is_given_is_used() -> None:
    """No calibration hides behind it."""
    levels = DPSettings(noise=1.5, count_noise=7.0).levels(Cost(10, 2))
    assert levels == NoiseLevels(1.5, SampledGaussian(1.0, 7.0, use=Use.COUNTS))


@pytest.mark.parametrize("job", [Cost(40, 10), Cost(40, 0), Cost(0, 10)])
def test_the_whole_job_stays_within_the_target_and_uses_it(job: Cost) -> None:
    """Steps and counts together; counts alone keep within their share."""
    dp = DPSettings(epsilon=3.0, sample_rate=0.2)
    levels = dp.levels(job)
    total = spent(dp.events(job, levels), dp.delta).epsilon
    assert 0.95 * 3.0 < total <= 3.0
    if job.steps and job.counts:
        assert spent(dp.events(Cost(counts=job.counts), levels), dp.delta).epsilon <= dp.count_share * 3.0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=6), st.sampled_from(COUNTS))
def test_tasks_charge_together_what_the_job_costs(tasks: list[tuple[int, int]], counts: CountsMechanism) -> None:
    """Nothing is lost between the plan, charged task by task, and the calibration, made for the sum."""
    dp, levels = DPSettings(noise=1.0, count_noise=2.0), NoiseLevels(1.0, counts)
    costs = [Cost(*task) for task in tasks]
    apart = [event for cost in costs for event in dp.events(cost, levels)]
    together = dp.events(sum(costs, Cost()), levels)
    assert set(merge_steps(apart)) == set(together)


def test_a_task_that_costs_nothing_has_no_events() -> None:
    """And a count is the mechanism with everybody in it."""
    dp = DPSettings(noise=1.0, count_noise=2.0, sample_rate=0.5)
    gaussian, laplace = COUNTS
    assert dp.events(Cost(), NoiseLevels(1.0, laplace)) == ()
    training = SampledGaussian(0.5, 1.0, 3, Use.GRADIENTS)
    assert dp.events(Cost(3, 1), NoiseLevels(1.0, gaussian)) == (training, SampledGaussian(1.0, 2.0, 1, Use.COUNTS))
    assert dp.events(Cost(3, 4), NoiseLevels(1.0, laplace)) == (training, Laplace(2.0, 4, Use.COUNTS))


@pytest.mark.parametrize(
    ("epsilon", "job"), [(3.0, Cost(40, 2)), (3.0, Cost(40, 12)), pytest.param(0.5, Cost(0, 3), marks=pytest.mark.slow)]
)
def test_counts_get_the_mechanism_whose_noise_deviates_least(epsilon: float, job: Cost) -> None:
    """Laplace for few releases, Gaussian for many; the other one would deviate more at the same share of epsilon."""
    dp = DPSettings(epsilon=epsilon)
    share = dp.count_share * epsilon if job.steps else epsilon

    def deviation(kind: type[CountsMechanism]) -> float:
        least = calibrate(share, dp.delta, lambda noise: [kind.for_counts(noise).times(job.counts)])
        return kind.for_counts(least).deviation

    gaussian, laplace = deviation(SampledGaussian), deviation(Laplace)
    chosen = dp.levels(job).counts
    assert chosen is not None and chosen.deviation == min(gaussian, laplace)
    assert chosen.mechanism == ("laplace" if job.counts < 6 else "sampled_gaussian")


@pytest.mark.slow
def test_the_choice_is_the_same_in_another_process() -> None:
    """Server and sites arrive at the same figures, whatever their hash seeds."""
    code = "from privacy import *; print(DPSettings(epsilon=3.0).levels(Cost(40, 5)))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] == f"{DPSettings(epsilon=3.0).levels(Cost(40, 5))}\n".encode()


def test_counts_that_no_mechanism_can_afford_are_refused() -> None:
    """Not even the most noise reaches the target."""
    with pytest.raises(AccountingError, match="no amount of noise"):
        DPSettings(epsilon=1e-6).levels(Cost(0, 100))


def test_counts_that_the_noise_was_not_made_for_have_no_events() -> None:
    """A method whose cost forgets its counts cannot charge them as free."""
    with pytest.raises(SettingsError, match="include them in its cost"):
        DPSettings(epsilon=1.0).events(Cost(1, 1), NoiseLevels(1.0))
