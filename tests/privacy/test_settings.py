"""What a job asks for, and the noise that follows from it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy import Cost, DPEvent, DPSettings, NoiseLevels, SettingsError, spent


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
    assert DPSettings(noise=1.5, count_noise=7.0).levels(Cost(10, 2)) == NoiseLevels(1.5, 7.0)


@pytest.mark.parametrize("job", [Cost(40, 10), Cost(40, 0), Cost(0, 10)])
def test_the_whole_job_stays_within_the_target_and_uses_it(job: Cost) -> None:
    """Steps and counts together; counts alone keep within their share."""
    dp = DPSettings(epsilon=3.0, sample_rate=0.2)
    levels = dp.levels(job)
    total = spent(dp.events(job, levels), dp.delta).epsilon
    assert 0.95 * 3.0 < total <= 3.0
    if job.steps and job.counts:
        assert spent(dp.events(Cost(counts=job.counts), levels), dp.delta).epsilon <= dp.count_share * 3.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=6))
def test_tasks_charge_together_what_the_job_costs(tasks: list[tuple[int, int]]) -> None:
    """Nothing is lost between the plan, charged task by task, and the calibration, made for the sum."""
    dp, levels = DPSettings(noise=1.0, count_noise=2.0), NoiseLevels(1.0, 2.0)
    costs = [Cost(*task) for task in tasks]
    apart = [event for cost in costs for event in dp.events(cost, levels)]
    together = dp.events(sum(costs, Cost()), levels)

    def steps(events: Any) -> dict[tuple[float, float], int]:
        found: dict[tuple[float, float], int] = {}
        for event in events:
            found[event.rate, event.noise] = found.get((event.rate, event.noise), 0) + event.steps
        return found

    assert steps(apart) == steps(together)


def test_a_task_that_costs_nothing_has_no_events() -> None:
    """And a count is the mechanism with everybody in it."""
    dp = DPSettings(noise=1.0, count_noise=2.0, sample_rate=0.5)
    assert dp.events(Cost(), NoiseLevels(1.0, 2.0)) == ()
    assert dp.events(Cost(3, 1), NoiseLevels(1.0, 2.0)) == (DPEvent(0.5, 1.0, 3), DPEvent(1.0, 2.0, 1))
