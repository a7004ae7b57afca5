"""Epsilon, replayed from events by two accountants."""

import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.analysis.rdp import compute_rdp
from scipy import integrate, optimize, stats
from tiers import examples

from privacy import DPEvent, SampledGaussian
from privacy.accounting import (
    LEAST_NOISE,
    ORDERS,
    PRV_ERROR,
    PRV_RELATIVE_ERROR,
    AccountingError,
    calibrate,
    fitting,
    spent,
)

DELTA = 1e-5
WHOLE_ORDERS = [order for order in ORDERS if order > 1 and float(order).is_integer()]
KNOWN = {
    "training": [SampledGaussian(0.05, 1.0, 300)],
    "little noise": [SampledGaussian(0.01, 0.6, 50)],
    "much noise": [SampledGaussian(0.1, 30.0, 300)],
    "everybody": [SampledGaussian(1.0, 5.0, 3)],
    "training and counts": [SampledGaussian(0.1, 1.5, 30), SampledGaussian(1.0, 20.0, 30)],
}
PLANS = {
    "training": (2.0, lambda noise: [SampledGaussian(0.05, noise, 300)]),
    "everybody": (1.0, lambda noise: [SampledGaussian(1.0, noise, 10)]),
    "beside fixed counts": (1.0, lambda noise: [SampledGaussian(0.05, noise, 20), SampledGaussian(1.0, 20.0, 5)]),
}

few_events = st.lists(
    st.builds(
        SampledGaussian, st.sampled_from([0.02, 0.1, 1.0]), st.sampled_from([1.5, 4.0, 20.0]), st.integers(1, 20)
    ),
    min_size=1,
    max_size=4,
)


def google(accountant: Any, events: Sequence[DPEvent]) -> float:
    """Epsilon by an accountant of dp_accounting."""
    for event in events:
        step = dp_accounting.PoissonSampledDpEvent(event.rate, dp_accounting.GaussianDpEvent(event.noise))
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, event.steps))
    return float(accountant.get_epsilon(DELTA))


def opacus(accountant: Any, events: Sequence[DPEvent], **options: Any) -> float:
    """Epsilon by an accountant of Opacus."""
    accountant.history = [(event.noise, event.rate, event.steps) for event in events]
    with np.errstate(divide="ignore"):
        return float(accountant.get_epsilon(DELTA, **options))


def prv_error(rdp: float) -> float:
    return max(PRV_ERROR, PRV_RELATIVE_ERROR * rdp)


def gaussian_epsilon(mu: float) -> float:
    """The exact epsilon of mu-GDP: Balle and Wang, "Improving the Gaussian Mechanism for DP", 2018, Theorem 8."""

    def excess(epsilon: float) -> float:
        spread = stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return float(stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + spread) - DELTA)

    return float(optimize.brentq(excess, 0.0, 200.0, xtol=1e-12))


def sampled_rdp(rate: float, noise: float, order: float) -> float:
    """The Renyi divergence of the sampled Gaussian by quadrature of its definition."""

    def density(x: float) -> float:
        ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * noise**2))
        return float(stats.norm.pdf(x, scale=noise)) * ratio**order

    moment, _ = integrate.quad(density, -12 * noise, 12 * noise + order, limit=500, points=[0.0, 1.0, order])
    return math.log(moment) / (order - 1)


@pytest.mark.filterwarnings("ignore:Optimal order is the")
@pytest.mark.parametrize("events", KNOWN.values(), ids=KNOWN)
def test_both_figures_are_those_of_opacus(events: list[DPEvent]) -> None:
    """The events reach Opacus' accountants as they are, and the smaller of the two upper bounds binds."""
    cost = spent(events, DELTA)
    assert cost.rdp == pytest.approx(opacus(RDPAccountant(), events, alphas=list(ORDERS)), abs=1e-9)
    assert cost.prv == pytest.approx(opacus(PRVAccountant(), events, eps_error=prv_error(cost.rdp)), abs=1e-9)
    assert cost.epsilon == min(cost.rdp, cost.prv) and cost.delta == DELTA


@pytest.mark.filterwarnings("ignore:Optimal order is the")
@pytest.mark.parametrize("events", KNOWN.values(), ids=KNOWN)
def test_rdp_agrees_with_google(events: list[DPEvent]) -> None:
    """At whole orders to 1e-6. At fractional ones Google sums absolute values of an alternating series, which is
    looser; so over all orders ours is not above Google's, and the next test checks the fractional ones."""
    neighbours = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    at_whole_orders = opacus(RDPAccountant(), events, alphas=WHOLE_ORDERS)
    theirs = google(RdpAccountant(WHOLE_ORDERS, neighbours), events)
    assert at_whole_orders == pytest.approx(theirs, abs=1e-6)
    assert spent(events, DELTA).rdp <= theirs + 1e-9


@pytest.mark.parametrize("order", [1.3, 2.5, 4.1, 6.7])
@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.6), (0.1, 1.0), (0.3, 3.0)])
def test_fractional_orders_agree_with_quadrature(rate: float, noise: float, order: float) -> None:
    """The divergence at orders that are not whole is the integral that defines it."""
    ours = compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=order)
    assert ours == pytest.approx(sampled_rdp(rate, noise, order), rel=1e-6)


@pytest.mark.parametrize("events", KNOWN.values(), ids=KNOWN)
def test_prv_agrees_with_googles_loss_distributions(events: list[DPEvent]) -> None:
    """PRV's upper estimate is not below Google's, and above it by no more than the stated error each way."""
    cost = spent(events, DELTA)
    theirs = google(PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE), events)
    assert theirs - 1e-3 <= cost.prv <= theirs + 2 * prv_error(cost.rdp)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 4.0])
def test_without_sampling_both_bound_the_exact_figure(mu: float) -> None:
    """With everybody in each step, mu is exact; both figures are above the analytic epsilon, PRV by its error."""
    steps = 25
    cost = spent([SampledGaussian(1.0, math.sqrt(steps) / mu, steps)], DELTA)
    exact = gaussian_epsilon(mu)
    assert cost.mu == pytest.approx(mu)
    assert exact <= cost.epsilon <= cost.rdp
    assert cost.prv == pytest.approx(exact + prv_error(cost.rdp), abs=prv_error(cost.rdp) / 2)


def test_mu_composes_in_squares_and_follows_the_central_limit() -> None:
    """mu of sampled steps is q sqrt(T (exp(1 / sigma^2) - 1)), and different events add their squares."""
    sampled, full = SampledGaussian(0.1, 2.0, 400), SampledGaussian(1.0, 4.0, 4)
    expected = 0.1 * math.sqrt(400 * (math.exp(1 / 4) - 1))
    assert spent([sampled], DELTA).mu == pytest.approx(expected)
    assert spent([sampled, full], DELTA).mu == pytest.approx(math.hypot(expected, 0.5))


def test_an_accountant_made_anew_each_round_understates() -> None:
    """Thirty rounds cost what their events cost together: several times what a fresh accountant says of the last."""
    rounds = [SampledGaussian(0.1, 1.0, 10)] * 30
    total, last = spent(rounds, DELTA), spent(rounds[-1:], DELTA)
    assert total.rdp == pytest.approx(opacus(RDPAccountant(), [SampledGaussian(0.1, 1.0, 300)], alphas=list(ORDERS)))
    assert total.epsilon > 4 * last.epsilon


@given(events=few_events, data=st.data())
@settings(max_examples=examples(8))
def test_order_and_grouping_do_not_matter(events: list[DPEvent], data: st.DataObject) -> None:
    """Live or replayed, merged or step by step, the same events cost the same to the last bit."""
    single = [SampledGaussian(event.rate, event.noise) for event in events for _ in range(event.steps)]
    assert spent(data.draw(st.permutations(single)), DELTA) == spent(events, DELTA)
    assert spent(iter(events), DELTA) == spent(events, DELTA)


@given(few_events)
@settings(max_examples=examples(10))
def test_events_survive_json(events: list[DPEvent]) -> None:
    """An event read back from its record is the event."""
    assert [DPEvent.from_dict(json.loads(json.dumps(event.to_dict()))) for event in events] == events


GROWING = {
    "steps": [SampledGaussian(0.1, 1.2, steps) for steps in (1, 2, 5, 20, 100)],
    "rate": [SampledGaussian(rate, 1.2, 20) for rate in (0.01, 0.05, 0.2, 0.6, 1.0)],
    "noise": [SampledGaussian(0.1, noise, 20) for noise in (40.0, 5.0, 2.0, 1.0, 0.5)],
}


@pytest.mark.parametrize("series", GROWING.values(), ids=GROWING)
def test_cost_grows(series: list[DPEvent]) -> None:
    """More steps, a larger rate and less noise never cost less; nor does a smaller delta."""
    costs = [spent([event], DELTA) for event in series]
    for name in ("epsilon", "rdp", "prv", "mu"):
        figures = [getattr(cost, name) for cost in costs]
        assert figures == sorted(figures), name
    assert spent(series[-1:], DELTA / 100).epsilon > costs[-1].epsilon


def test_nothing_costs_nothing() -> None:
    """Without events every figure is zero."""
    cost = spent([], DELTA)
    assert (cost.epsilon, cost.rdp, cost.prv, cost.mu) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("noise", [1e-300, LEAST_NOISE / 2])
def test_next_to_no_noise_is_no_privacy(noise: float) -> None:
    """Where the accountants cannot compute, the cost is infinite and never a small number."""
    cost = spent([SampledGaussian(0.5, noise), SampledGaussian(1.0, 5.0)], DELTA)
    assert cost.epsilon == cost.rdp == cost.prv == math.inf


@pytest.mark.parametrize(
    "event", [SampledGaussian(1.0, 1e300), SampledGaussian(1e-12, 1.0), SampledGaussian(1.0, 50.0, 10**9)]
)
def test_extreme_events_have_a_cost(event: DPEvent) -> None:
    """Huge noise, tiny rates and huge counts end quickly in a finite figure that is not negative."""
    assert 0 <= spent([event], DELTA).epsilon < math.inf


@pytest.mark.parametrize("name", PLANS)
def test_calibrated_noise_is_enough_and_hardly_more(name: str) -> None:
    """The plan costs at most the target, with a thousandth less noise it costs more, and the result repeats."""
    target, plan = PLANS[name]
    noise = calibrate(target, DELTA, plan)
    assert spent(plan(noise), DELTA).epsilon <= target < spent(plan(noise * (1 - 1e-3)), DELTA).epsilon
    assert noise == float(f"{noise:.3e}") == calibrate(target, DELTA, plan)


def test_a_target_out_of_reach_is_refused() -> None:
    """Noise cannot undo what other releases cost."""
    with pytest.raises(AccountingError, match="no amount of noise"):
        calibrate(0.5, DELTA, lambda noise: [SampledGaussian(1.0, noise), SampledGaussian(1.0, 2.0)])


@pytest.mark.parametrize("limit", [0.1, 1.3, 1.6, 100.0])
def test_fitting_counts_every_round_that_fits(limit: float) -> None:
    """The count is what adding rounds one by one until the limit gives, none if what was spent is over it already."""
    already = [SampledGaussian(1.0, 5.0)]
    rounds = [[SampledGaussian(0.1, 2.0, 5), SampledGaussian(1.0, 20.0)]] * 8
    costs = [spent([*already, *sum(rounds[:count], [])], DELTA).epsilon for count in range(1, 9)]
    assert fitting(limit, DELTA, already, rounds) == sum(cost <= limit for cost in costs)
    assert fitting(costs[4], DELTA, already, rounds) == 5
    assert fitting(limit, DELTA, already, []) == 0


@pytest.mark.parametrize(
    "values",
    [
        {"rate": 0.0},
        {"rate": 1.01},
        {"rate": math.nan},
        {"rate": True},
        {"rate": "0.1"},
        {"noise": 0.0},
        {"noise": -1.0},
        {"noise": math.inf},
        {"noise": math.nan},
        {"noise": None},
        {"steps": 0},
        {"steps": 1.0},
        {"steps": True},
        {"surplus": 1},
    ],
    ids=str,
)
def test_unfit_events_are_refused(values: dict[str, Any]) -> None:
    """No event outside of what can be accounted for is made or read back."""
    with pytest.raises(AccountingError):
        DPEvent.from_dict({"rate": 0.1, "noise": 1.0, "steps": 1} | values)


def test_incomplete_records_are_refused() -> None:
    """A record says how many steps it stands for: none is assumed."""
    with pytest.raises(AccountingError):
        DPEvent.from_dict({"rate": 0.1, "noise": 1.0})


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, True])
def test_unfit_deltas_are_refused(delta: float) -> None:
    """Delta is a probability between 0 and 1, for every question, even about nothing."""
    with pytest.raises(AccountingError):
        spent([], delta)
    with pytest.raises(AccountingError):
        calibrate(1.0, delta, lambda noise: [SampledGaussian(1.0, noise)])
    with pytest.raises(AccountingError):
        fitting(1.0, delta, [], [])


def test_calibrated_noise_scales_with_the_unit_that_it_is_given_in() -> None:
    """Down to a hundredth, from which the search begins."""

    def plan(noise: float, unit: float) -> list[DPEvent]:
        return [SampledGaussian(rate=1.0, noise=noise * unit, steps=1)]

    noise = calibrate(1.0, 1e-5, partial(plan, unit=1.0))
    assert 1 < noise < 10 and calibrate(1.0, 1e-5, partial(plan, unit=100.0)) == pytest.approx(noise / 100)
    with pytest.raises(AccountingError):
        calibrate(1.0, 1e-5, partial(plan, unit=1e-4))
