"""Decoding of updates, and what the attacks of a whole job report."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from medfedvqa.attack.empirical_audit import decode

PARAMETERS = 400


def directions(count: int, common: float, seed: int) -> torch.Tensor:
    """Random directions with a part in common, [count, PARAMETERS]."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(count, PARAMETERS, generator=generator, dtype=torch.float64)
    return own + common * torch.randn(PARAMETERS, generator=generator, dtype=torch.float64)


@settings(max_examples=examples(20))
@given(st.floats(0, 3), st.integers(0, 1000))
def test_an_update_without_noise_is_decoded_whatever_its_directions_have_in_common(common: float, seed: int) -> None:
    """Every direction that is in the sum scores above every one that is not, where an inner product would mix them."""
    found = directions(40, common, seed)
    inside = torch.rand(40, generator=torch.Generator().manual_seed(seed)) < 0.5
    inside[:2] = torch.tensor([True, False])
    scores = decode((found / found.norm(dim=1, keepdim=True))[inside].sum(0), found)
    assert scores[inside].min() > scores[~inside].max()


def test_noise_makes_the_decoding_no_worse_than_inner_products() -> None:
    """With noise of twenty times the update the ridge takes over: the rank of scores is that of inner products."""
    found = directions(40, 1.0, 3)
    units = found / found.norm(dim=1, keepdim=True)
    noise = torch.randn(PARAMETERS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    update = units[:20].sum(0) + 20 * noise
    ranks = torch.stack([decode(update, found).argsort().argsort(), (units @ update).argsort().argsort()]).double()
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.8


@pytest.mark.parametrize("update", [torch.zeros(PARAMETERS), torch.ones(PARAMETERS)])
def test_scores_are_finite_where_there_is_nothing_to_decode(update: torch.Tensor) -> None:
    """No update, directions that are the same, and a direction of length 0."""
    found = directions(6, 0.0, 1)
    found[1], found[2] = found[0], 0.0
    assert decode(update, found).isfinite().all()
