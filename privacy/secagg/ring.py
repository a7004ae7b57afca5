"""Elements of the ring of integers modulo 2^64: real numbers in two's complement with a fixed point, and random ones
from ChaCha20, keyed by the operating system or by a pair of sites; never from a seed.

Source: RFC 8439 (ChaCha20); K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine
Learning", 2017, section 4 (masks for every pair of parties that cancel in the sum).
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from numpy.typing import NDArray

from privacy.secagg.errors import RangeError

Ring = NDArray[np.uint64]
"""Elements of the ring; numpy's unsigned arithmetic wraps as the ring's does."""
Floats = NDArray[np.float64]

HEADROOM_BITS = 62
"""Sums stay below 2^62 in magnitude, because truncation needs one bit besides the sign."""


@dataclass(frozen=True)
class FixedPoint:
    """Numbers in steps of 2^-bits; a sum of `terms` numbers, each up to `limit` in magnitude, cannot overflow.

    Only the lowest `word` bytes of an element count: the ring is that of integers modulo 2^(8 word).
    """

    bits: int
    terms: int = 1
    word: int = 8

    @property
    def limit(self) -> float:
        """The largest magnitude of one number."""
        return 2.0 ** (HEADROOM_BITS - 8 * (8 - self.word) - self.bits) / self.terms

    def encode(self, values: NDArray[np.floating] | float) -> Ring:
        """The nearest elements, [the same shape]. Raises `RangeError` for a value that is not finite or too large."""
        exact = np.asarray(values, dtype=np.float64)
        if not np.isfinite(exact).all():
            raise RangeError("a value to share is not a finite number: nothing was shared; check the training")
        if (np.abs(exact) > self.limit).any():
            raise RangeError(f"a value to share exceeds {self.limit:g} in magnitude: nothing was shared; scale it down")
        return np.rint(np.ldexp(exact, self.bits)).astype(np.int64).view(np.uint64)

    def decode(self, elements: Ring) -> Floats:
        """The numbers that the elements stand for, [the same shape]."""
        return np.ldexp(signed(elements, self.word).astype(np.float64), -self.bits)


def signed(elements: Ring, word: int) -> NDArray[np.int64]:
    """The integers that the lowest `word` bytes of the elements stand for, in two's complement, [the same shape]."""
    above = 64 - 8 * word
    return (elements << np.uint64(above)).view(np.int64) >> np.int64(above)


def packed(elements: Ring, word: int) -> NDArray[np.uint8]:
    """The lowest `word` bytes of each element, the least significant first: [*shape, word]."""
    return elements.astype("<u8", copy=False)[..., None].view(np.uint8)[..., :word].copy()


def unpacked(words: NDArray[np.uint8]) -> Ring:
    """The inverse of `packed`: elements whose other bytes are zero, from [*shape, word]."""
    whole = np.zeros((*words.shape[:-1], 8), np.uint8)
    whole[..., : words.shape[-1]] = words
    return whole.view("<u8")[..., 0].astype(np.uint64, copy=False)


KEY_BYTES = 32

_PIECE = memoryview(bytes(1 << 16))
"""The zeros that a stream encrypts at a time. They fit the processor's cache, which is four times as fast."""


class Stream:
    """The key stream of one key, read once from its beginning; whoever holds the key reads the same elements."""

    def __init__(self, key: bytes) -> None:
        # One nonce for all: a key is used for one stream only.
        self._cipher: Any = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def ring(self, shape: Sequence[int]) -> Ring:
        """The next uniform elements."""
        numbers = np.empty(math.prod(shape), dtype="<u8")
        room = numbers.view(np.uint8)
        for start in range(0, len(room), len(_PIECE)):
            piece = room[start : start + len(_PIECE)]
            self._cipher.update_into(_PIECE[: len(piece)], piece)
        return numbers.reshape(shape)


def derive_key(key: bytes, label: bytes) -> bytes:
    """A key derived for a label. It reveals nothing about `key` or keys for other labels (HKDF, RFC 5869)."""
    return HKDFExpand(SHA256(), KEY_BYTES, label).derive(key)


def secret_stream() -> Stream:
    """A stream that nobody else can read."""
    return Stream(os.urandom(KEY_BYTES))


class ZeroShares:
    """One party's part of random sharings of zero, from a stream in common with each other party.

    One party of each pair adds the pair's elements and the other subtracts them. Whoever lacks the stream of a pair
    cannot tell these two shares apart, so all but two parties together learn only the sum.
    """

    def __init__(self, rank: int, keys: Mapping[int, bytes]) -> None:
        self._streams = [(peer > rank, Stream(key)) for peer, key in sorted(keys.items())]

    def additive(self, shape: Sequence[int]) -> Ring:
        """Shares that add up to zero over all parties."""
        total: Ring = np.zeros(shape, np.uint64)
        for plus, stream in self._streams:
            total = total + stream.ring(shape) if plus else total - stream.ring(shape)
        return total

    def binary(self, shape: Sequence[int]) -> Ring:
        """Shares whose exclusive or over all parties is zero."""
        total: Ring = np.zeros(shape, np.uint64)
        for _, stream in self._streams:
            total = total ^ stream.ring(shape)
        return total
