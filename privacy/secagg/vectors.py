"""Long vectors, one of each party, and what is linear or bilinear in them, at two messages of their length.

Each party shows its vector minus a mask that only it and the dealer know. What products of masks add to a result, the
dealer deals as shares; what products of a mask with something public add, the mask's owner knows.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from privacy.secagg.crypten_runtime import Party, ring, tensor
from privacy.secagg.ring import Ring

BLUR_BITS = 26
"""How many low bits of a revealed mixture each party blurs: the exact bits of a sum of products could be factored."""


class MaskedVectors:
    """Every party's vector, [length], in `segments` that are combined each by itself; one exchange to make."""

    def __init__(self, party: Party, mine: Ring, segments: Sequence[slice]) -> None:
        self._party, self._segments = party, segments
        # One row, or all parties' rows when the dealer runs this.
        self._masks = party.tuples.private(mine.shape)
        self._mask = self._masks[0]
        self._shown = np.stack([ring(each) for each in party.communicator.all_gather(tensor(mine - self._mask))])

    def products(self) -> Ring:
        """Shares of the inner products of all pairs, [segments, parties, parties]."""
        rank, size = self._party.rank, self._party.size
        shares = self._party.tuples.dependent(lambda: self._gram(self._masks), (len(self._segments), size, size))
        if rank == 0:
            shares = shares + self._gram(self._shown)
        crossed = np.stack([self._shown[:, segment] @ self._mask[segment] for segment in self._segments])
        shares[:, rank, :] += crossed
        shares[:, :, rank] += crossed
        return shares

    def mixed(self, weights: Ring) -> Ring:
        """The sum over sources of weight times vector for this party as target, which nobody else learns, [length].

        `weights`: shares, [segments, targets, sources]. Two exchanges, the second of the vectors' length.
        """
        party = self._party
        masks = party.tuples.random(weights.shape)
        opened = ring(party.open(tensor(weights - masks)))
        shares = []
        for target in range(party.size):
            hidden = partial(self._combined, masks[:, target], self._masks)
            share = party.tuples.dependent(hidden, self._mask.shape, reader=target)
            share = share + self._combined(weights[:, target], self._shown)
            share += self._combined(opened[:, target, party.rank, None], self._mask[None])
            shares.append(tensor(share + self._blur()))
        revealed: Ring = np.sum([ring(s) for s in party.communicator.exchange(shares)], axis=0, dtype=np.uint64)
        return revealed

    def _gram(self, rows: Ring) -> Ring:
        return np.stack([rows[:, segment] @ rows[:, segment].T for segment in self._segments])

    def _combined(self, weights: Ring, rows: Ring) -> Ring:
        """[segments, rows] and [rows, length] to [length]."""
        return np.concatenate(
            [weight @ rows[:, segment] for weight, segment in zip(weights, self._segments, strict=True)]
        )

    def _blur(self) -> Ring:
        noise = self._party.secret.ring(self._mask.shape) >> np.uint64(64 - BLUR_BITS)
        return noise - np.uint64(1 << (BLUR_BITS - 1))
