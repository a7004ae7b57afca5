"""Epsilon of Gaussian and Laplace mechanisms together, by both accountants."""

import math
from collections.abc import Sequence

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiers import examples

from privacy import DPEvent, Laplace, SampledGaussian, Use, spent
from privacy.accounting import PRV_ERROR, PRV_RELATIVE_ERROR

DELTA = 1e-5
MIXED: dict[str, list[DPEvent]] = {
    "one release": [Laplace(2.0)],
    "ten releases": [Laplace(2.0, 10)],
    "a hundred releases": [Laplace(50.0, 100)],
    "two scales": [Laplace(1.0), Laplace(4.0, 3)],
    "a job": [SampledGaussian(0.25, 2.0, 20), Laplace(16.67, 5)],
    "a long job": [SampledGaussian(0.05, 1.0, 300), Laplace(20.0, 30)],
    "everybody": [SampledGaussian(1.0, 5.0, 3), Laplace(3.0, 2)],
    "mostly counts": [SampledGaussian(0.1, 20.0, 3), Laplace(0.5)],
    "mostly training": [SampledGaussian(0.3, 0.8, 10), Laplace(8.0, 5)],
    "three mechanisms": [SampledGaussian(0.05, 1.0, 300), Laplace(1.0), Laplace(4.0, 3), SampledGaussian(1.0, 20.0, 5)],
    "much noise": [SampledGaussian(0.1, 1.0, 10), Laplace(1e4, 5)],
    "little noise": [SampledGaussian(0.1, 2.0, 3), Laplace(0.2, 3)],
}
few_events = st.lists(
    st.builds(SampledGaussian, st.sampled_from([0.1, 1.0]), st.sampled_from([1.5, 6.0]), st.integers(1, 20))
    | st.builds(Laplace, st.sampled_from([1.0, 5.0, 30.0]), st.integers(1, 10)),
    min_size=1,
    max_size=3,
)


def google(events: Sequence[DPEvent], delta: float) -> float:
    """Epsilon by the privacy loss distributions of dp_accounting."""
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for event in events:
        step: dp_accounting.DpEvent
        if isinstance(event, Laplace):
            step = dp_accounting.LaplaceDpEvent(event.scale)
        else:
            assert isinstance(event, SampledGaussian)
            step = dp_accounting.PoissonSampledDpEvent(event.rate, dp_accounting.GaussianDpEvent(event.noise))
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, event.steps))
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize("delta", [1e-5, pytest.param(1e-7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("events", MIXED.values(), ids=MIXED)
def test_both_accountants_bound_googles_loss_distributions(events: list[DPEvent], delta: float) -> None:
    """Neither is below, but for Google's own error; PRV is above by no more than its stated error each way."""
    cost, theirs = spent(events, delta), google(events, delta)
    assert cost.rdp >= theirs - 1e-3 and cost.prv >= theirs - 1e-3
    assert cost.prv <= theirs + 2 * max(PRV_ERROR, PRV_RELATIVE_ERROR * cost.rdp) + 1e-3 * theirs
    assert cost.epsilon == min(cost.rdp, cost.prv)


@given(events=few_events, data=st.data())
@settings(max_examples=examples(10))
def test_order_grouping_and_use_do_not_matter(events: list[DPEvent], data: st.DataObject) -> None:
    """The same mechanisms cost the same to the last bit, whatever they were applied to."""
    single = [event.times(1) for event in events for _ in range(event.steps)]
    used = [type(event)(**event.parameters, use=data.draw(st.sampled_from([None, *Use]))) for event in single]
    assert spent(data.draw(st.permutations(used)), DELTA) == spent(events, DELTA)


@given(few_events, st.integers(1, 5))
@example([Laplace(1.0, 3), SampledGaussian(0.1, 6.0, 1), SampledGaussian(1.0, 1.5, 1)], 1)
@settings(max_examples=examples(10))
def test_more_steps_cost_no_less(events: list[DPEvent], more: int) -> None:
    """By either accountant, whichever mechanism is repeated.

    PRV's epsilon is above the true one by at most twice its error, which a further step may use up.
    """
    before = spent(events, DELTA)
    slack = 2 * max(PRV_ERROR, PRV_RELATIVE_ERROR * before.rdp)
    for place, event in enumerate(events):
        after = spent([*events[:place], event.times(event.steps + more), *events[place + 1 :]], DELTA)
        assert after.rdp > before.rdp and after.prv > before.prv - slack and after.mu > before.mu


@pytest.mark.parametrize("beside", [[], [SampledGaussian(0.1, 1.5, 20)]], ids=["alone", "beside training"])
def test_more_noise_costs_no_more(beside: list[DPEvent]) -> None:
    """Over scales from almost none to the most that counts."""
    costs = [spent([Laplace(scale, 3), *beside], DELTA) for scale in (0.1, 0.5, 2.0, 10.0, 100.0, 1e4, 1e6)]
    for name in ("epsilon", "rdp", "prv", "mu"):
        figures = [getattr(cost, name) for cost in costs]
        assert figures == sorted(figures, reverse=True), name


@pytest.mark.parametrize("scale", [0.5, 2.0, 40.0])
@pytest.mark.parametrize("releases", [1, 7])
def test_towards_delta_0_laplace_costs_one_over_its_scale_per_release(scale: float, releases: int) -> None:
    """It is pure: epsilon reaches that limit, and never exceeds it at any delta."""
    pure = releases / scale
    assert spent([Laplace(scale, releases)], 1e-300).epsilon == pytest.approx(pure, rel=1e-12)
    assert spent([Laplace(scale, releases)], 1e-5).epsilon <= pure
    assert spent([Laplace(scale), Laplace(scale, releases)], 1e-300).rdp == pytest.approx(pure + 1 / scale)


def test_next_to_no_noise_is_no_privacy() -> None:
    """The figure is huge, or infinite beside a mechanism without one; never small."""
    assert spent([Laplace(1e-300)], DELTA).epsilon > 1e299
    assert spent([Laplace(1.0), SampledGaussian(1.0, 1e-3)], DELTA).epsilon == math.inf
