"""Long vectors, one of each owner, and what is linear or bilinear in them, at one message of their length each way.

Each owner has shown its vector to the members minus a mask that only it knows; of the mask each member has a share,
which its seed makes. What products of masks add to a result, the dealer deals.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from privacy.secagg.crypten_runtime import Party, ring
from privacy.secagg.ring import Ring

BLUR_BITS = 28
"""How many low bits of a revealed mixture each member blurs: the exact bits of a sum of products could be factored."""


class OwnedVectors:
    """All owners' vectors, in `segments` that are combined each by itself."""

    def __init__(self, party: Party, masked_values: Ring, masks: Ring, segments: Sequence[slice]) -> None:
        """`masked_values`: vectors minus masks, public; `masks`: shares of the masks; both [owners, length]."""
        self._party, self._shown, self._masks, self._segments = party, masked_values, masks, segments

    def products(self) -> Ring:
        """Shares of the inner products of all pairs, [segments, owners, owners]; no exchange.

        With x = shown + mask: shown times shown, public; shown times mask, both ways; mask times mask, dealt.
        """
        owners = len(self._shown)
        mask_products = partial(self._gram, self._masks, self._masks)
        tuples, shape = self._party.tuples, (len(self._segments), owners, owners)
        return tuples.dependent(mask_products, shape) + tuples.local(self._shown_products, shape)

    def _shown_products(self) -> Ring:
        """The part of `products` that this member computes alone."""
        cross_products = self._gram(self._shown, self._masks)
        shares = cross_products + cross_products.swapaxes(1, 2)
        return shares + self._gram(self._shown, self._shown) if self._party.rank == 0 else shares

    def mixed(self, weights: Ring) -> Ring:
        """Shares for each target of the sum over sources of weight times vector, [targets, length]; one exchange.

        `weights`: shares, [segments, targets, sources]. With weight = opened + mu: the weight's share times shown, and
        opened times the share of the mask; mu times mask is dealt, its correction to the target alone. So these shares
        are uniform to all but the target, which is to add them up.
        """
        party = self._party
        mu = party.tuples.random(weights.shape)
        (weight_differences,) = party.open(weights - mu)
        shares = party.tuples.delivered(partial(self._combined, mu, self._masks), self._shown.shape)
        return shares + party.tuples.local(partial(self._shown_mixture, weights, weight_differences), self._shown.shape)

    def _shown_mixture(self, weights: Ring, weight_differences: Ring) -> Ring:
        """The part of `mixed` that this member computes alone, blurred."""
        return self._combined(weights, self._shown) + self._combined(weight_differences, self._masks) + self._blur()

    def _gram(self, rows: Ring, columns: Ring) -> Ring:
        return np.stack([_product(rows[:, segment], columns[:, segment].T) for segment in self._segments])

    def _combined(self, weights: Ring, rows: Ring) -> Ring:
        """[segments, targets, sources] and [sources, length] to [targets, length]."""
        parts = zip(weights, self._segments, strict=True)
        return np.concatenate([_product(weight, rows[:, segment]) for weight, segment in parts], axis=1)

    def _blur(self) -> Ring:
        noise = self._party.secret.ring(self._shown.shape) >> np.uint64(64 - BLUR_BITS)
        return noise - np.uint64(1 << (BLUR_BITS - 1))


def _product(left: Ring, right: Ring) -> Ring:
    """The product of two matrices; torch's wraps as numpy's does, and is many times as fast from 100 rows on.

    It takes slices and transposes as they lie, without a copy.
    """
    return ring(torch.from_numpy(left.view(np.int64)) @ torch.from_numpy(right.view(np.int64)))
