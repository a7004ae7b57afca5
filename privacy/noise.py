"""Noise from a cryptographically secure generator, out of reach of the seeds of torch, NumPy and Python.

Every call draws a key of its own and takes its numbers from that key's ChaCha20 keystream (RFC 8439). Nothing is kept
between calls, so that neither a forked nor a restarted process can repeat what another one drew.

Source of the floating-point guard: Holohan and Braghin, "Secure Random Sampling in Differential Privacy", 2021.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from privacy.errors import PrivacyError

KEY_BYTES = 32
WORD_BYTES = 8
HALF = 4096
"""Values that share one keystream chunk with as many others: the working set stays in a core's own cache."""
SUMMANDS = 4
"""Gaussians in each value, as in Opacus' secure mode."""


class NoiseError(PrivacyError):
    """The noise asked for would protect nothing."""


class Randomness(Protocol):
    """Where noise and sampling decisions come from."""

    void: bool
    """True: repeatable, so that nothing it protects is private."""

    def normal(self, shape: Sequence[int], std: float) -> torch.Tensor:
        """Independent Gaussians of mean 0 and standard deviation `std`: float32 of `shape`, on the CPU.

        Raises `NoiseError` unless `std` is finite and positive.
        """
        ...

    def uniform(self, count: int) -> NDArray[np.float64]:
        """[count] independent multiples of 2**-53, uniform in [0, 1)."""
        ...

    def secret(self) -> bytes:
        """`KEY_BYTES` that key the streams of patients in one step, see `PatientStreams`."""
        ...


class _KeyStream:
    """Numbers from a key per call; where the keys come from, the subclasses say."""

    def normal(self, shape: Sequence[int], std: float) -> torch.Tensor:
        if not (math.isfinite(std) and std > 0):
            raise NoiseError("noise protects only with a standard deviation that is finite and above 0: set one")
        values = torch.empty(math.prod(shape), dtype=torch.float32)
        words = keystream(self._key(), 2 * SUMMANDS * HALF)
        for target, chunk in zip(torch.split(values, 2 * HALF), words, strict=False):
            target.copy_(_gaussians(chunk).mul_(std / math.sqrt(SUMMANDS))[: len(target)])
        return values.reshape(tuple(shape))

    def uniform(self, count: int) -> NDArray[np.float64]:
        words = next(keystream(self._key(), count)).numpy().view(np.uint64)
        return np.asarray((words >> np.uint64(11)) * 2.0**-53)

    def secret(self) -> bytes:
        return self._key()

    def _key(self) -> bytes:
        raise NotImplementedError


class SecureRandomness(_KeyStream):
    """Randomness for real patients: every key is fresh from the operating system."""

    void = False

    def _key(self) -> bytes:
        return os.urandom(KEY_BYTES)


class RepeatableRandomness(_KeyStream):
    """The same construction with keys that anybody can derive from `seed`: for tests only."""

    void = True

    def __init__(self, seed: int) -> None:
        self._seed, self._calls = seed, 0

    def _key(self) -> bytes:
        self._calls += 1
        return hashlib.sha256(f"{self._seed}/{self._calls}".encode()).digest()


def keystream(key: bytes, words: int) -> Iterator[torch.Tensor]:
    """The ChaCha20 keystream of `key` (32 bytes) from block 0 under nonce 0, as int64 chunks of [words].

    All chunks share one buffer: each is overwritten by the next. A key that is used once needs no nonce.
    """
    # The first 4 of these bytes are the block counter, the other 12 the nonce.
    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    zeros, buffer = bytes(words * WORD_BYTES), bytearray(words * WORD_BYTES)
    chunk = torch.frombuffer(buffer, dtype=torch.int64) if words else torch.empty(0, dtype=torch.int64)
    while True:
        encryptor.update_into(zeros, buffer)
        yield chunk


def _gaussians(words: torch.Tensor) -> torch.Tensor:
    """[2 * HALF] sums of `SUMMANDS` standard Gaussians, by Box-Muller in float64 from [2 * SUMMANDS * HALF] words.

    Of each pair that Box-Muller gives, the cosine goes to one value and the sine to another: both in one sum would
    be a single Gaussian again, since cos(x) + sin(x) is a shifted cosine.
    """
    first, second = words.view(2, SUMMANDS, HALF)
    # The shift keeps the sign: -2**52 .. 2**52 - 1 becomes 2**-53 .. 1, whose logarithm is finite.
    radius = (first >> 11).double().add_(2.0**52 + 1).mul_(2.0**-53).log_().mul_(-2).sqrt_()
    angle = second.double().mul_(math.pi * 2.0**-63)
    return torch.stack([(angle.cos().mul_(radius)).sum(0), (angle.sin_().mul_(radius)).sum(0)]).view(-1)
