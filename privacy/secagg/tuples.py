"""Correlated randomness from a dealer that holds no data: seeds for all, corrections for the readers.

The server deals, as trusted third party: it never sees a share or an opened value, which travel from site to site
encrypted. It must not collude: with the view of any one site it could open every input.

A tuple is described once, by calls that both sides understand: to a party they return its shares, to the dealer the
secrets. The dealer finds out what to deal by running the protocol alone, over links that are silent: what is asked for,
and in which order, never depends on data.

Source: D. Beaver, "Efficient multiparty protocols using circuit randomization", 1991 (triples); D. Escudero et al.,
"Improved Primitives for MPC over Mixed Arithmetic-Binary Circuits", 2020 (a number with its bits, truncation pairs).
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Protocol

import numpy as np

from privacy.secagg.errors import SecureAggregationError
from privacy.secagg.randomness import KEY_BYTES, Stream
from privacy.secagg.ring import Ring

Shape = Sequence[int]


class Tuples(Protocol):
    """Where shares of correlated randomness come from; `binary` ones add up by exclusive or."""

    def random(self, shape: Shape, binary: bool = False) -> Ring:
        """A uniform secret: this party's share, or the secret to the dealer."""

    def dependent(self, secret: Callable[[], Ring], shape: Shape, binary: bool = False, reader: int = -1) -> Ring:
        """A secret that depends on others: this party's share; the dealer computes it and corrects the reader's."""

    def private(self, shape: Shape) -> Ring:
        """[1, *shape]: a uniform mask that this party alone knows; to the dealer those of all, [parties, *shape]."""


class PartyTuples:
    """The shares of one of `parties`, from what the dealer sent to it."""

    def __init__(self, rank: int, parties: int, dealt: bytes) -> None:
        self._rank, self._parties = rank, parties
        self._stream = Stream(dealt[:KEY_BYTES])
        self._corrections = np.frombuffer(dealt[KEY_BYTES:], dtype="<u8")

    def random(self, shape: Shape, binary: bool = False) -> Ring:
        return self._stream.ring(shape)

    def dependent(self, secret: Callable[[], Ring], shape: Shape, binary: bool = False, reader: int = -1) -> Ring:
        if reader % self._parties != self._rank:
            return self._stream.ring(shape)
        count = int(np.prod(shape, dtype=np.int64))
        if count > len(self._corrections):
            raise SecureAggregationError("the dealer dealt for another computation: repeat the round with fresh tuples")
        share, self._corrections = self._corrections[:count], self._corrections[count:]
        return share.reshape(shape).copy()

    def private(self, shape: Shape) -> Ring:
        return self._stream.ring((1, *shape))


class NoTuples:
    """For sums, which need none."""

    def random(self, shape: Shape, binary: bool = False) -> Ring:
        raise SecureAggregationError("the dealer dealt nothing, so shares can only be added: deal for the protocol")

    def dependent(self, secret: Callable[[], Ring], shape: Shape, binary: bool = False, reader: int = -1) -> Ring:
        return self.random(shape)

    def private(self, shape: Shape) -> Ring:
        return self.random(shape)


class DealerTuples:
    """The secrets, and in `dealt` what each party is to be sent: a seed of 32 bytes, then its corrections."""

    def __init__(self, seeds: Sequence[bytes]) -> None:
        self._streams = [Stream(seed) for seed in seeds]
        self._dealt = [[seed] for seed in seeds]

    @property
    def dealt(self) -> list[bytes]:
        return [b"".join(parts) for parts in self._dealt]

    def random(self, shape: Shape, binary: bool = False) -> Ring:
        return _sum([stream.ring(shape) for stream in self._streams], binary)

    def dependent(self, secret: Callable[[], Ring], shape: Shape, binary: bool = False, reader: int = -1) -> Ring:
        reader %= len(self._streams)
        value = secret()
        others = _sum([s.ring(shape) for rank, s in enumerate(self._streams) if rank != reader], binary)
        self._dealt[reader].append((value ^ others if binary else value - others).astype("<u8").tobytes())
        return value

    def private(self, shape: Shape) -> Ring:
        return np.stack([stream.ring(shape) for stream in self._streams])


def _sum(elements: list[Ring], binary: bool) -> Ring:
    return reduce(np.bitwise_xor if binary else np.add, elements)
