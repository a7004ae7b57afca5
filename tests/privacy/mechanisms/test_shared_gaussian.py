"""Noise that sites share: what it costs by two accountants, what a sum of it is, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from privacy import DPSettings, PrivateStep, SecureRandomness, SettingsError, spent
from privacy.errors import AccountingError
from privacy.mechanisms import DPEvent
from privacy.mechanisms.base import Use
from privacy.mechanisms.sampled_gaussian import SampledGaussian
from privacy.mechanisms.shared_gaussian import SharedGaussian, site_share
from privacy.settings import Cost

DELTA = 1e-5


@settings(max_examples=examples(30))
@given(st.floats(0.05, 1), st.floats(1, 8), st.integers(2, 50), st.integers(0, 10), st.integers(1, 300))
def test_it_costs_what_one_site_s_noise_of_the_same_size_costs_and_a_hundredth_of_a_percent_more_at_most(
    rate: float, noise: float, sites: int, colluders: int, steps: int
) -> None:
    """Never less: the total's noise is only nearly that of one Gaussian."""
    shared = spent([SharedGaussian(rate, site_share(noise, sites), sites, colluders, steps)], DELTA)
    alone = spent([SampledGaussian(rate, site_share(noise, sites) * math.sqrt(sites), steps)], DELTA)
    assert alone.rdp < shared.rdp < alone.rdp + 1e-4 * (1 + alone.rdp)
    assert alone.epsilon <= shared.epsilon < alone.epsilon + 1e-4 * (1 + alone.epsilon)


@settings(max_examples=examples(30))
@given(st.integers(2, 50), st.integers(1, 10))
def test_against_the_server_alone_the_colluders_noise_counts_as_well(sites: int, colluders: int) -> None:
    """Each site adds the same noise, whoever colludes, so the second epsilon is the smaller one."""
    event = SharedGaussian(0.3, 1.5 / math.sqrt(sites), sites, colluders, 40, Use.GRADIENTS)
    outside = event.against(0)
    assert (outside.site_noise, outside.sites, outside.colluders) == (event.site_noise, sites + colluders, 0)
    assert event.against(colluders) == outside.against(colluders) == event
    assert spent([outside], DELTA).epsilon < spent([event], DELTA).epsilon
    assert DPEvent.from_dict(event.to_dict()) == event


@pytest.mark.parametrize(
    "unfit", [{"sites": 1}, {"sites": 0, "colluders": 3}, {"colluders": -1}, {"sites": 2000}, {"site_noise": 0.0}]
)
def test_noise_that_protects_nobody_is_refused(unfit: dict[str, float]) -> None:
    """One site shares with nobody; noise that is too small for its grid has no epsilon at all."""
    with pytest.raises(AccountingError):
        SharedGaussian(**{"rate": 0.3, "site_noise": 1.5, "sites": 3, **unfit})  # type: ignore[arg-type]
    assert spent([SharedGaussian(0.3, 0.06, 400)], DELTA).epsilon == math.inf


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_the_noise_of_a_sum_has_the_variance_of_its_sites_however_many_drop_within_the_number(dropped: int) -> None:
    """Six sites of which four are counted on: with all of them there is more noise, with four exactly as much as is
    charged. Each is whole grid steps, as the masked sum takes them."""
    dp, values = DPSettings(noise=2.0, count_noise=1.0, sharers=4, colluders=2, clip=0.5), 40_000
    noise, totals = dp.levels(Cost(steps=1)), np.zeros(values)
    for _ in range(6 - dropped):
        value = torch.zeros(values, requires_grad=True)
        step = PrivateStep([value], dp.clip, dp.sharers)
        noisy = step.finish(noise.gradients, 1.0, SecureRandomness())[value]
        assert torch.equal(noisy, noisy.round()) and noisy.abs().max() < 2**50
        totals += noisy.numpy() * step.rounded_sums[0]
    charged = noise.gradients * dp.clip
    assert totals.std() == pytest.approx(charged * math.sqrt((6 - dropped) / 4), rel=0.02)
    assert noise.of_one_site == pytest.approx(noise.gradients / 2)


@pytest.mark.parametrize(
    "unfit", [{"sharers": 0}, {"sharers": 1, "colluders": 1}, {"sharers": 600, "colluders": 600}, {"colluders": -1}]
)
def test_settings_that_nobody_can_keep_are_refused(unfit: dict[str, int]) -> None:
    """In a sentence that says what to write."""
    with pytest.raises(SettingsError, match="'sharers'|colluders"):
        DPSettings(epsilon=3.0, **unfit)  # type: ignore[arg-type]


def test_noise_is_calibrated_whatever_number_of_sites_shares_it() -> None:
    """To the target and not beyond it, also where less noise would be too little for a site's grid."""
    for sharers, epsilon, least in ((2, 1.0, 0.97), (50, 8.0, 0.97), (200, 40.0, 0.3)):
        dp, job = DPSettings(epsilon=epsilon, sharers=sharers, colluders=3), Cost(steps=30)
        levels = dp.levels(job)
        assert least * epsilon < spent(dp.events(job, levels), dp.delta).epsilon <= epsilon
        assert levels.of_one_site == pytest.approx(levels.gradients / math.sqrt(sharers))
