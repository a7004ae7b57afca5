"""Random ring elements from ChaCha20, keyed by the operating system or by a pair of sites; never from a seed.

Source: RFC 8439 (ChaCha20); K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine
Learning", 2017, section 4 (masks for every pair of parties that cancel in the sum).
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from privacy.secagg.ring import Ring

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
