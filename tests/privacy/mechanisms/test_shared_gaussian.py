"""Noise that sites share: what it costs by two accountants, what a sum of it is, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privacy import DPSettings, PrivateStep, SecureRandomness, SettingsError, spent
from privacy.errors import AccountingError
from privacy.mechanisms import DPEvent
from privacy.mechanisms.base import Use
from privacy.mechanisms.sampled_gaussian import SampledGaussian
from privacy.mechanisms.shared_gaussian import SharedGaussian, site_share
from privacy.settings import Cost

DELTA = 1e-5


@given(st.floats(0.05, 1), st.floats(0.8, 8), st.integers(2, 50), st.integers(0, 10), st.integers(1, 300))
def test_it_costs_what_one_site_s_noise_of_the_same_size_costs_and_a_hundredth_of_a_percent_more_at_most(
    rate: float, noise: float, sites: int, colluders: int, steps: int
) -> None:
    """Never less: the total's noise is only nearly that of one Gaussian."""
    shared = spent([SharedGaussian(rate, noise, sites, colluders, steps)], DELTA)
    alone = spent([SampledGaussian(rate, noise, steps)], DELTA)
    assert alone.rdp < shared.rdp < alone.rdp + 1e-4 * (1 + alone.rdp)
    assert alone.epsilon <= shared.epsilon < alone.epsilon + 1e-4 * (1 + alone.epsilon)


@given(st.integers(2, 50), st.integers(1, 10))
def test_against_the_server_alone_the_colluders_noise_counts_as_well(sites: int, colluders: int) -> None:
    """Each site adds the same noise, whoever colludes, so the second epsilon is the smaller one."""
    event = SharedGaussian(0.3, 1.5, sites, colluders, 40, Use.GRADIENTS)
    outside = event.against_server
    assert site_share(outside.noise, outside.sites) == pytest.approx(site_share(event.noise, event.sites))
    assert spent([outside], DELTA).epsilon < spent([event], DELTA).epsilon
    assert DPEvent.from_dict(event.to_dict()) == event


@pytest.mark.parametrize(
    "unfit", [{"sites": 1}, {"colluders": -1}, {"sites": 2000}, {"noise": 0.05, "sites": 4}, {"noise": 0.0}]
)
def test_noise_that_protects_nobody_is_refused(unfit: dict[str, float]) -> None:
    """One site shares with nobody; a part that is too small has too coarse a grid."""
    with pytest.raises(AccountingError):
        SharedGaussian(**{"rate": 0.3, "noise": 1.5, "sites": 3, **unfit})  # type: ignore[arg-type]


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_the_noise_of_a_sum_has_the_variance_of_its_sites_however_many_drop_within_the_number(dropped: int) -> None:
    """Six sites of which four are counted on: with all of them there is more noise, with four exactly as much as is
    charged. Each is whole grid steps, as the masked sum takes them."""
    settings, values = DPSettings(noise=2.0, count_noise=1.0, sharers=4, colluders=2, clip=0.5), 40_000
    noise, totals = settings.levels(Cost(steps=1)), np.zeros(values)
    for _ in range(6 - dropped):
        value = torch.zeros(values, requires_grad=True)
        step, noisy = PrivateStep([value], settings.clip, settings.sharers).finish(
            noise.gradients, 1.0, SecureRandomness()
        )
        assert torch.equal(noisy[value], noisy[value].round()) and noisy[value].abs().max() < 2**50
        totals += noisy[value].numpy() * step
    charged = noise.gradients * settings.clip
    assert totals.std() == pytest.approx(charged * math.sqrt((6 - dropped) / 4), rel=0.02)
    assert noise.of_one_site == pytest.approx(noise.gradients / 2)


@pytest.mark.parametrize(
    "unfit", [{"sharers": 0}, {"sharers": 1, "colluders": 1}, {"sharers": 600, "colluders": 600}, {"colluders": -1}]
)
def test_settings_that_nobody_can_keep_are_refused(unfit: dict[str, int]) -> None:
    """In a sentence that says what to write."""
    with pytest.raises(SettingsError, match="'sharers'|colluders"):
        DPSettings(epsilon=3.0, **unfit)  # type: ignore[arg-type]
