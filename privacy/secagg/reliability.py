"""The weights of `privacy.aggregation.reliability_weights` (clamped), computed on shares from shares.

Nothing is opened. Numbers are in fixed point with the bits that the constants say.
"""

import numpy as np
import torch

from privacy.secagg.crypten_runtime import Party

COSINE_BITS = 52
NORM_BITS = 20
ACCURACY_BITS = 24
WEIGHT_BITS = 24
"""Of what is put in, and of what comes out."""

NEGLIGIBLE_LOG2 = -16
"""A sum of scores, or of accuracies, below 2^-16 counts as none. In clear the limit is 1e-8: between the two, sites
whose prompts are all but orthogonal are weighed by accuracy here, and by similarity there."""

_SCORE_BITS = 36
_RATIO_BITS = 28


def reliability_weights(
    party: Party, cosines: torch.Tensor, norms: torch.Tensor, accuracies: torch.Tensor
) -> torch.Tensor:
    """Shares of eta times the source's norm, [segments, targets, sources], zero on the diagonal.

    All are shares: `cosines` [segments, parties, parties] in -1..1, `norms` [segments, parties] up to 1024,
    `accuracies` [parties] in 0..1. 33 exchanges, whatever the sizes.
    """
    others = 1 - torch.eye(party.size, dtype=torch.int64)
    scores, fallback = _scores(party, cosines, accuracies, others)
    ratios = _normalised(party, scores, fallback)
    weighted = party.multiply(ratios, norms[:, None, :])
    # Truncation may leave a last bit on the diagonal, and a site's own prompt is no part of what it gets.
    return party.truncate(weighted, _RATIO_BITS + NORM_BITS - WEIGHT_BITS) * others


def _scores(
    party: Party, cosines: torch.Tensor, accuracies: torch.Tensor, others: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accuracy times the positive part of the cosine, [segments, targets, sources], and what replaces it where it sums
    to nothing: accuracies, or ones where these sum to nothing, [targets, sources]."""
    known = accuracies.sum() - accuracies
    enough = party.public(torch.full_like(known, 1 << (ACCURACY_BITS + NEGLIGIBLE_LOG2)))
    negative = party.is_negative(torch.cat([cosines.reshape(-1), known - enough]))
    dissimilar, unknown = negative[: cosines.numel()].reshape(cosines.shape), negative[cosines.numel() :]
    short = party.truncate(cosines, COSINE_BITS - _SCORE_BITS)
    scaled = accuracies << (_SCORE_BITS - ACCURACY_BITS)
    up = party.public(torch.full_like(scaled, 1 << _SCORE_BITS)) - scaled
    products = party.truncate(party.multiply(short, accuracies), ACCURACY_BITS)
    similar = party.public(torch.ones_like(dissimilar)) - dissimilar
    scores, raised = _multiply_together(party, (products, similar), (unknown[:, None], up[None, :]))
    return scores * others, (scaled + raised) * others


def _normalised(party: Party, scores: torch.Tensor, fallback: torch.Tensor) -> torch.Tensor:
    """Rows that sum to one, of scores, or of the fall-back where a row of scores sums to nothing.

    Each row is scaled by a power of two, which comparisons find, until its sum lies in 1/2..1, then divided by its sum
    (R. Goldschmidt, 1964): times 2.9142 - 2s, then times 2 - s until the sum s is one.
    """
    rows = torch.cat([scores, fallback[None]])
    highest = (party.size - 1).bit_length() - 1
    levels = torch.arange(NEGLIGIBLE_LOG2, highest + 1)
    limits = party.public((1 << (_SCORE_BITS + levels)).expand(*rows.shape[:-1], -1))
    below = party.is_negative(rows.sum(-1)[..., None] - limits)
    above = party.public(torch.ones_like(below[..., :1])) - below[..., -1:]
    factors = (torch.cat([below[..., 1:] - below[..., :-1], above], -1) << (highest - levels)).sum(-1)
    none = below[:-1, :, 0]
    change, refactor = _multiply_together(
        party, (none[..., None], fallback - scores), (none, factors[-1] - factors[:-1])
    )
    scaled = party.multiply(scores + change, (factors[:-1] + refactor)[..., None])
    ratios = party.truncate(scaled, _SCORE_BITS + highest + 1 - _RATIO_BITS)
    for start, slope in ((2.9142, 2), (2, 1), (2, 1), (2, 1)):
        sums = ratios.sum(-1, keepdim=True)
        factor = party.public(torch.full_like(sums, round(start * 2**_RATIO_BITS))) - slope * sums
        ratios = party.truncate(party.multiply(ratios, factor), _RATIO_BITS)
    return ratios


def _multiply_together(party: Party, *pairs: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    """The products of several pairs in one exchange; shapes broadcast within a pair."""
    shapes = [torch.Size(np.broadcast_shapes(one.shape, other.shape)) for one, other in pairs]
    ones, others = (
        torch.cat([pair[side].expand(shape).reshape(-1) for pair, shape in zip(pairs, shapes, strict=True)])
        for side in (0, 1)
    )
    products = torch.split(party.multiply(ones, others), [shape.numel() for shape in shapes])
    return [product.reshape(shape) for product, shape in zip(products, shapes, strict=True)]
