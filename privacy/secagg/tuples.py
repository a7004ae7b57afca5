"""Correlated randomness from a dealer that holds no data: seeds for all, corrections for the readers.

The server deals, as trusted third party: it never sees a share or an opened value, which travel from site to site
encrypted. It must not collude: with the view of any one member it could open every input.

A tuple is described once, by calls that both sides understand: to a member they return its shares, to the dealer the
secrets. The dealer finds out what to deal by running the protocol alone, over links that are silent: what is asked for,
and in which order, never depends on data.

Source: D. Beaver, "Efficient multiparty protocols using circuit randomization", 1991 (triples); D. Escudero et al.,
"Improved Primitives for MPC over Mixed Arithmetic-Binary Circuits", 2020 (truncation pairs); Y. Ishai et al., "On the
Power of Correlated Randomness in Secure Computation", 2013 (truth tables).
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Protocol

import numpy as np

from privacy.secagg.errors import SecureAggregationError
from privacy.secagg.randomness import KEY_BYTES, Stream, derived
from privacy.secagg.ring import Ring

Shape = Sequence[int]


class Tuples(Protocol):
    """Where shares of correlated randomness come from; `binary` ones add up by exclusive or."""

    def random(self, shape: Shape, binary: bool = False) -> Ring:
        """A uniform secret: this member's share, or the secret to the dealer."""

    def dependent(self, secret: Callable[[], Ring], shape: Shape, binary: bool = False) -> Ring:
        """A secret that depends on others: this member's share; the dealer computes it and corrects the last's."""

    def masks(self, owners: int, length: int) -> Ring:
        """[owners, length]: of each owner's mask, which it knows itself, this member's share; all masks to the dealer.

        Once for one run.
        """

    def delivered(self, secret: Callable[[], Ring], shape: Shape) -> Ring:
        """[owners, ...]: this member's share of a secret of which no member gets the correction: owners get theirs."""


class PartyTuples:
    """The shares of one of `parties` members, from what the dealer sent to it."""

    def __init__(self, rank: int, parties: int, dealt: bytes) -> None:
        """Raises `SecureAggregationError`, here or later, if it was dealt for another computation."""
        if len(dealt) < KEY_BYTES:
            raise SecureAggregationError("the dealer dealt for another computation: repeat the round with fresh tuples")
        self._last = rank == parties - 1
        self._seed = dealt[:KEY_BYTES]
        self._stream = _tuple_stream(self._seed)
        self._corrections = np.frombuffer(dealt[KEY_BYTES:], dtype="<u8")

    def random(self, shape: Shape, binary: bool = False) -> Ring:
        return self._stream.ring(shape)

    def dependent(self, secret: Callable[[], Ring], shape: Shape, binary: bool = False) -> Ring:
        if not self._last:
            return self._stream.ring(shape)
        count = int(np.prod(shape, dtype=np.int64))
        if count > len(self._corrections):
            raise SecureAggregationError("the dealer dealt for another computation: repeat the round with fresh tuples")
        share, self._corrections = self._corrections[:count], self._corrections[count:]
        return share.reshape(shape).copy()

    def masks(self, owners: int, length: int) -> Ring:
        return np.stack([Stream(mask_key(self._seed, owner)).ring((length,)) for owner in range(owners)])

    def delivered(self, secret: Callable[[], Ring], shape: Shape) -> Ring:
        return self._stream.ring(shape)


class DealerTuples:
    """The secrets, and what is to be sent.

    `dealt`: for each member, its seed of 32 bytes and, for the last, corrections. `corrections`: [owners, ...], to each
    owner its own, after a call of `delivered`.
    """

    corrections: Ring

    def __init__(self, seeds: Sequence[bytes]) -> None:
        self._seeds = seeds
        self._streams = [_tuple_stream(seed) for seed in seeds]
        self._parts: list[bytes] = []

    @property
    def dealt(self) -> list[bytes]:
        return [*self._seeds[:-1], b"".join([self._seeds[-1], *self._parts])]

    def random(self, shape: Shape, binary: bool = False) -> Ring:
        return _sum([stream.ring(shape) for stream in self._streams], binary)

    def dependent(self, secret: Callable[[], Ring], shape: Shape, binary: bool = False) -> Ring:
        value = secret()
        others = _sum([stream.ring(shape) for stream in self._streams[:-1]], binary)
        self._parts.append((value ^ others if binary else value - others).astype("<u8").tobytes())
        return value

    def masks(self, owners: int, length: int) -> Ring:
        return np.stack([own_mask([mask_key(s, owner) for s in self._seeds], length) for owner in range(owners)])

    def delivered(self, secret: Callable[[], Ring], shape: Shape) -> Ring:
        value = secret()
        self.corrections = value - self.random(shape)
        return value


def mask_key(seed: bytes, owner: int) -> bytes:
    """What a member's seed and an owner have in common: the key of the member's share of the owner's mask."""
    return derived(seed, b"mask of owner %d" % owner)


def own_mask(keys: Sequence[bytes], length: int) -> Ring:
    """An owner's mask, [length]: the sum of all members' shares of it."""
    return _sum([Stream(key).ring((length,)) for key in keys], binary=False)


def _tuple_stream(seed: bytes) -> Stream:
    return Stream(derived(seed, b"tuples"))


def _sum(elements: list[Ring], binary: bool) -> Ring:
    return reduce(np.bitwise_xor if binary else np.add, elements)
