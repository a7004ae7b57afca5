"""The global-local contrast of public representations, and the ensemble that it weighs (CreamFL, Sec. 3.2, 3.3).

Representations are unit vectors [items, space].
"""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F

from medfedvqa.errors import ConfigError
from medfedvqa.models import IMAGE, TEXT

Positive = Literal["included", "excluded"]

OTHER = {IMAGE: TEXT, TEXT: IMAGE}

BLOCK = 1024
"""Items whose cosines with all others are in memory at the same time."""


def inter_modal(local: torch.Tensor, other: torch.Tensor, items: torch.Tensor, temperature: float) -> torch.Tensor:
    """-log of the share of an item's own partner in exp(cosine / temperature) over the whole public set, [rows].

    `local`: the representations of `items`, int64 [rows]; `other`: the server's of all items in the other modality.
    """
    return F.cross_entropy(local @ other.T / temperature, items, reduction="none")


def scores(
    local: torch.Tensor, other: torch.Tensor, temperature: float, positive: Positive = "included", block: int = BLOCK
) -> torch.Tensor:
    """The log-softmax of each of a site's representations for its partner among the server's items, [items].

    `positive` 'excluded': the partner is left out of the normalisation.
    """
    parts = []
    for rows in torch.split(torch.arange(len(local)), block):
        logits = local[rows] @ other.T / temperature
        partner = (torch.arange(len(rows)), rows)
        fit = logits[partner]
        if positive == "excluded":
            logits[partner] = -torch.inf
        parts.append(fit - logits.logsumexp(dim=1))
    return torch.cat(parts)


def aggregate(
    uploads: Mapping[str, torch.Tensor],
    other: torch.Tensor,
    temperature: float,
    positive: Positive = "included",
    block: int = BLOCK,
) -> torch.Tensor:
    """The sites' representations of one modality, weighted for each item by a softmax of scores over sites.

    Raises `ConfigError` if no site sent representations.
    """
    local = _stacked(uploads)
    fits = torch.stack([scores(each, other, temperature, positive, block) for each in local])
    return (weights(fits)[..., None] * local).sum(dim=0)


def mean(uploads: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The plain mean of the sites' representations of one modality, [items, space]: the ablation of `aggregate`.

    Raises `ConfigError` if no site sent representations.
    """
    return _stacked(uploads).mean(dim=0)


def _stacked(uploads: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if not uploads:
        raise ConfigError("no site sent representations of this modality: let one of them see it")
    return torch.stack([uploads[site] for site in sorted(uploads)])


def weights(fits: torch.Tensor) -> torch.Tensor:
    """The weights of scores [sites, items], which sum to one for each item."""
    return fits.softmax(dim=0)
