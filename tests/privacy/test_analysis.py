"""The analysis without Opacus comes to the figures of the one with it."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from privacy import DPEvent, Laplace, SampledGaussian, accounting
from privacy.accounting import ORDERS, PrivacyCost, spent
from privacy.analysis import Analysis, analysis, with_numpy, with_opacus
from privacy.mechanisms import sampled_gaussian
from privacy.report.build import most_found
from privacy.report.replay import TOLERANCE

RATES = [1e-4, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999, 1.0]
events = st.lists(
    st.one_of(
        st.builds(
            SampledGaussian, st.sampled_from(RATES), st.sampled_from([0.3, 0.8, 1.5, 6.0, 300.0]), st.integers(1, 500)
        ),
        st.builds(Laplace, st.sampled_from([1.0, 10.0]), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No figure that one analysis computed is taken for the other's."""
    forget()
    yield
    forget()


def forget() -> None:
    accounting._spent.cache_clear()
    accounting._rdp.cache_clear()


def cost(by: Analysis, spent_on: list[DPEvent], delta: float) -> PrivacyCost:
    forget()
    with pytest.MonkeyPatch.context() as patch:
        for module in (accounting, sampled_gaussian):
            patch.setattr(module, "analysis", lambda: by)
        return spent(spent_on, delta)


@settings(max_examples=examples(40))
@given(events, st.sampled_from([1e-3, 1e-5, 1e-6]))
def test_both_analyses_agree_far_within_the_tolerance_of_a_report(spent_on: list[DPEvent], delta: float) -> None:
    """Renyi divergences to 9 digits, privacy losses to a quarter of the tolerance; infinite where Opacus is."""
    mine, theirs = cost(with_numpy, spent_on, delta), cost(with_opacus, spent_on, delta)
    assert mine.rdp == pytest.approx(theirs.rdp, rel=1e-9, abs=1e-12)
    assert mine.prv == pytest.approx(theirs.prv, rel=TOLERANCE / 4, abs=1e-12)
    assert mine.mu == theirs.mu


@pytest.mark.parametrize(
    "noise", [0.01, 1.0, 1e4, *(pytest.param(noise, marks=pytest.mark.slow) for noise in (0.1, 100.0))]
)
@pytest.mark.parametrize("rate", RATES)
def test_divergences_are_those_of_opacus_at_every_order(rate: float, noise: float) -> None:
    """Whole orders and fractional ones; where Opacus finds none, ours is no number either or the bound is loose."""
    for order in ORDERS:
        try:
            theirs = float(with_opacus.renyi_divergence(rate, noise, [order])[0])
        except (ValueError, ArithmeticError):
            continue
        mine = float(with_numpy.renyi_divergence(rate, noise, [order])[0])
        # At these scales a moment is 1 + rate**2 / noise**2 ...: its logarithm has only the digits beyond the 1.
        assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-11), order


def test_epsilon_of_no_order_is_infinite() -> None:
    """Without a figure there is no protection to claim."""
    assert math.isinf(with_numpy.epsilon_of(np.array([math.nan, math.nan]), (2.0, 3.0), 1e-5))


def test_a_delta_below_rounding_has_no_figure() -> None:
    """The bound is refused where rounding errors alone would be larger than delta."""
    losses: Any = lambda least, most: [with_numpy.sampled_gaussian_loss(0.1, 1.0, least, most)]  # noqa: E731
    with pytest.raises(ValueError), np.errstate(all="ignore"):
        with_numpy.composed_epsilons(losses, [10], 4.0, 1e-3, [1e-17], (1e-20, 0.01))


def test_a_site_charges_by_opacus() -> None:
    """Where Opacus is installed, it is what computes."""
    assert analysis() is with_opacus


def test_a_verifier_without_opacus_comes_to_the_same_people_found() -> None:
    """The figure on a report's first page, within the tolerance with which a report is verified."""
    spent_on: list[DPEvent] = [SampledGaussian(0.25, 1.45, 8), SampledGaussian(1.0, 16.4, 2), Laplace(10.0, 2)]
    found = []
    for by in (with_numpy, with_opacus):
        accounting._curve.cache_clear()
        forget()
        with pytest.MonkeyPatch.context() as patch:
            for module in (accounting, sampled_gaussian):
                patch.setattr(module, "analysis", lambda by=by: by)
            found.append(most_found(spent_on, 0.05))
    accounting._curve.cache_clear()
    assert found[0] == pytest.approx(found[1], rel=TOLERANCE / 4) and 0.14 < found[0] < 0.16
