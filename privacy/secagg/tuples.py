"""Correlated randomness from the members' seeds, and corrections from a dealer without data.

The server deals. It never sees a share or an opened value, which travel between sites encrypted. It must not collude:
with the view of any one member it could open every input. All uniform values come from the members' seeds, so the
dealer chooses only corrections, which `privacy.secagg.cut_and_choose` checks.

A protocol describes a tuple once, by calls that return shares to a member and secrets to the dealer. The dealer finds
out what to deal by running the protocol alone, over silent links: the tuples and their order never depend on data.

Source: D. Beaver, "Efficient multiparty protocols using circuit randomization", 1991 (triples); D. Escudero et al.,
"Improved Primitives for MPC over Mixed Arithmetic-Binary Circuits", 2020 (truncation pairs); Y. Ishai et al., "On the
Power of Correlated Randomness in Secure Computation", 2013 (truth tables).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from privacy.secagg.errors import SecureAggregationError
from privacy.secagg.ring import KEY_BYTES, Ring, Stream, derive_key

Shape = Sequence[int]

_ANOTHER = "the dealer dealt for another computation: repeat the round with fresh tuples"


class Tuples(Protocol):
    """The source of shares of correlated randomness; shares of `binary` secrets add up by exclusive or."""

    def random(self, shape: Shape, binary: bool = False) -> Ring:
        """A uniform secret: returns a member its share, and the dealer the secret."""

    def dependent(self, secret: Callable[[], Ring], shape: Shape, binary: bool = False) -> Ring:
        """A secret computed from earlier ones: returns a member its share. The dealer computes the secret and its
        correction.
        """

    def masks(self, owners: int, length: int) -> Ring:
        """This member's shares of all owners' masks, [owners, length]; the dealer gets the masks. Each owner knows its
        own.

        To be called once in a run.
        """

    def delivered(self, secret: Callable[[], Ring], shape: Shape) -> Ring:
        """This member's share of a secret, [owners, ...]. Its corrections go to the owners, a row to each, and to no
        member.
        """

    def local(self, share: Callable[[], Ring], shape: Shape) -> Ring:
        """A term that a member computes without any tuple. The dealer skips this computation."""


class PartyTuples:
    """The shares of one of `parties` members, from its own seed and, for the last one, the dealer's corrections."""

    def __init__(self, rank: int, parties: int, seed: bytes, corrections: bytes = b"") -> None:
        """Raises `SecureAggregationError`, here or later, if the corrections are for another computation."""
        if len(seed) != KEY_BYTES:
            raise SecureAggregationError(f"a member takes its shares from its own seed of {KEY_BYTES} bytes: pass it")
        if len(corrections) % 8:
            raise SecureAggregationError(_ANOTHER)
        self._last = rank == parties - 1
        self._seed = seed
        self._stream = _tuple_stream(self._seed)
        self._corrections = np.frombuffer(corrections, dtype="<u8")

    def random(self, shape: Shape, binary: bool = False) -> Ring:
        return self._stream.ring(shape)

    def dependent(self, secret: Callable[[], Ring], shape: Shape, binary: bool = False) -> Ring:
        if not self._last:
            return self._stream.ring(shape)
        count = math.prod(shape)
        if count > len(self._corrections):
            raise SecureAggregationError(_ANOTHER)
        share, self._corrections = self._corrections[:count], self._corrections[count:]
        return share.reshape(shape).copy()

    def masks(self, owners: int, length: int) -> Ring:
        return np.stack([Stream(mask_key(self._seed, owner)).ring((length,)) for owner in range(owners)])

    def delivered(self, secret: Callable[[], Ring], shape: Shape) -> Ring:
        return self._stream.ring(shape)

    def local(self, share: Callable[[], Ring], shape: Shape) -> Ring:
        return share()


class DealerTuples:
    """The secrets, and the corrections to send: a function of the members' seeds and of the calls.

    `last`: the corrections for the last member. `corrections`: [owners, ...], one for each owner, after a call of
    `delivered`.
    """

    corrections: Ring

    def __init__(self, seeds: Sequence[bytes]) -> None:
        self._seeds = seeds
        self._streams = [_tuple_stream(seed) for seed in seeds]
        self._parts: list[bytes] = []

    @property
    def last(self) -> bytes:
        return b"".join(self._parts)

    def random(self, shape: Shape, binary: bool = False) -> Ring:
        return _sum((stream.ring(shape) for stream in self._streams), binary)

    def dependent(self, secret: Callable[[], Ring], shape: Shape, binary: bool = False) -> Ring:
        value = secret()
        others = _sum((stream.ring(shape) for stream in self._streams[:-1]), binary)
        self._parts.append((value ^ others if binary else value - others).astype("<u8").tobytes())
        return value

    def masks(self, owners: int, length: int) -> Ring:
        mask_rows = np.empty((owners, length), np.uint64)
        for owner in range(owners):
            mask_rows[owner] = own_mask([mask_key(seed, owner) for seed in self._seeds], length)
        return mask_rows

    def delivered(self, secret: Callable[[], Ring], shape: Shape) -> Ring:
        value = secret()
        self.corrections = value - self.random(shape)
        return value

    def local(self, share: Callable[[], Ring], shape: Shape) -> Ring:
        return np.broadcast_to(np.uint64(0), shape)


def mask_key(seed: bytes, owner: int) -> bytes:
    """The key of a member's share of an owner's mask, from the member's seed. The owner gets it from the dealer."""
    return derive_key(seed, b"mask of owner %d" % owner)


def own_mask(keys: Sequence[bytes], length: int) -> Ring:
    """An owner's mask, [length]: the sum of all members' shares of it."""
    return _sum((Stream(key).ring((length,)) for key in keys), binary=False)


def _tuple_stream(seed: bytes) -> Stream:
    return Stream(derive_key(seed, b"tuples"))


def _sum(terms: Iterable[Ring], binary: bool) -> Ring:
    """The sum of arrays that were just drawn; the first one becomes the sum."""
    rest, add = iter(terms), np.bitwise_xor if binary else np.add
    total = next(rest)
    for elements in rest:
        add(total, elements, out=total)
    return total
