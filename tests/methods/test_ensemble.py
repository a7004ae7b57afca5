"""Global-local contrast and the ensemble it weighs, against the paper's equations."""

import math

import pytest
import torch
import torch.nn.functional as F

from medfedvqa.errors import ConfigError
from medfedvqa.methods.moon import contrast
from medfedvqa.papers.methods.creamfl.server_model import aggregate, inter_modal, scores, weights

ITEMS, SPACE = 13, 6


def units(seed: int, items: int = ITEMS) -> torch.Tensor:
    drawn = torch.randn(items, SPACE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(drawn, dim=-1)


SITES = {"here": units(1), "there": units(2), "elsewhere": units(3)}
OTHER = units(4)


def test_the_ensemble_is_the_papers_sum_written_out() -> None:
    """Softmax over sites of log(e^own / sum e^all), item by item."""
    expected = torch.zeros(ITEMS, SPACE, dtype=torch.float64)
    for k in range(ITEMS):
        fit = {
            site: math.log(math.exp(local[k] @ OTHER[k]) / sum(math.exp(local[k] @ each) for each in OTHER))
            for site, local in SITES.items()
        }
        total = sum(map(math.exp, fit.values()))
        for site, local in SITES.items():
            expected[k] += math.exp(fit[site]) / total * local[k]
    assert torch.allclose(aggregate(SITES, OTHER, 1.0), expected, atol=1e-12)


def test_one_site_is_taken_as_it_is_and_like_sites_give_their_mean() -> None:
    """Weights are 1, and 1/n."""
    one = SITES["here"]
    assert torch.equal(aggregate({"here": one}, OTHER, 1.0), one)
    assert torch.allclose(aggregate({"a": one, "b": one, "c": one}, OTHER, 1.0), one, atol=1e-15)


def test_the_order_of_sites_changes_no_bit() -> None:
    """Nor does the order in which they answered."""
    turned = dict(reversed(SITES.items()))
    assert torch.equal(aggregate(turned, OTHER, 1.0), aggregate(SITES, OTHER, 1.0))


def test_weights_sum_to_one_and_a_constant_for_an_item_changes_nothing() -> None:
    """The softmax is over sites, item by item."""
    fits = torch.stack([scores(local, OTHER, 1.0) for local in SITES.values()])
    assert torch.allclose(weights(fits).sum(dim=0), torch.ones(ITEMS, dtype=torch.float64))
    assert torch.allclose(weights(fits + torch.arange(ITEMS) * 3.0), weights(fits), atol=1e-12)


@pytest.mark.parametrize("positive", ["included", "excluded"])
@pytest.mark.parametrize("block", [1, 5, ITEMS, 100])
def test_in_blocks_the_ensemble_is_the_same(positive: str, block: int) -> None:
    """To the last digits of float64."""
    assert torch.allclose(
        aggregate(SITES, OTHER, 0.3, positive, block), aggregate(SITES, OTHER, 0.3, positive), atol=1e-14
    )


def test_both_forms_of_the_score_are_linked() -> None:
    """s_included = log sigmoid(s_excluded)."""
    included, excluded = (scores(SITES["here"], OTHER, 0.7, form) for form in ("included", "excluded"))
    assert torch.allclose(included, F.logsigmoid(excluded), atol=1e-12)


def test_without_any_site_there_is_no_ensemble() -> None:
    """A modality that nobody sees is refused, not averaged to nothing."""
    with pytest.raises(ConfigError, match="no site sent"):
        aggregate({}, OTHER, 1.0)


def test_partners_that_all_look_alike_cost_log_of_their_number() -> None:
    """l_inter = log|P|, whatever the site's representation; and it is the equation written out."""
    items = torch.tensor([2, 7])
    alike = OTHER[:1].expand(ITEMS, -1)
    found = inter_modal(units(5, 2), alike, items, 0.5)
    assert torch.allclose(found, torch.full_like(found, math.log(ITEMS)))
    local, found = units(6, 2), inter_modal(units(6, 2), OTHER, items, 0.5)
    shares = [math.exp(local[n] @ OTHER[k] / 0.5) for n, k in enumerate(items)]
    sums = [sum(math.exp(row @ each / 0.5) for each in OTHER) for row in local]
    assert torch.allclose(found, -torch.log(torch.tensor(shares) / torch.tensor(sums)).double())


def test_intra_modal_contrast_is_a_softplus() -> None:
    """Of (<loc, prev> - <loc, glob>) / tau: log 2 where both are one, softplus((1 - <loc, glob>) / tau) at first."""
    local, glob, before = units(7), units(8), units(9)
    expected = F.softplus(((local * before).sum(1) - (local * glob).sum(1)) / 0.5)
    assert torch.allclose(contrast(local, glob, before, 0.5), expected, atol=1e-12)
    assert torch.allclose(contrast(local, glob, glob, 0.5), torch.full_like(expected, math.log(2)))
    first = F.softplus((1 - (local * glob).sum(1)) / 0.5)
    assert torch.allclose(contrast(local, glob, local, 0.5), first, atol=1e-12)
