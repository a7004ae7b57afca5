"""Noise from a cryptographically secure generator, independent of the seeds of torch, NumPy and Python.

Every call draws its own key and takes its numbers from that key's ChaCha20 keystream (RFC 8439). Nothing is kept
between calls, so that no forked or restarted process can repeat another one's numbers.

Gaussian noise is exact real Gaussians, rounded to whole numbers (G. Box and M. Muller, "A Note on the Generation of
Random Normal Deviates", 1958, of two uniform real numbers). Double precision decides nearly all of them. Where its
error could change the nearest whole number, the uniforms get further random digits and the value is computed again. So
neither the precision nor the range of floating-point numbers shapes the noise.
"""

import hashlib
import math
import os
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from privacy.errors import PrivacyError

KEY_BYTES = 32
WORD_BYTES = 8
HALF = 4096
"""Half of the values of one keystream chunk; at this size the working set stays in a core's own cache."""
FURTHER_BITS = 192
"""Further random bits of a uniform number whose first bits do not decide the rounded value."""
MOST_DEVIATION = 2.0**46
"""The largest standard deviation of whole noise: up to it, drawn values are exact in double precision."""


class NoiseError(PrivacyError):
    """The requested noise is out of range."""


class Randomness(Protocol):
    """The source of noise and sampling decisions."""

    void: bool
    """Whether it is repeatable, so that it protects nobody."""

    def rounded_normal(self, count: int, deviation: float) -> torch.Tensor:
        """Independent Gaussians of mean 0, each rounded to the nearest whole number: [count], float64 on the CPU.

        Raises `NoiseError` unless the standard deviation is positive and at most `MOST_DEVIATION`.
        """
        ...

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Independent multiples of 2**-53, uniform in [0, 1): [count]."""
        ...

    def secret(self) -> bytes:
        """A key of `KEY_BYTES` for the streams of patients in one step, see `PatientStreams`."""
        ...


class _KeyStream:
    """Numbers from one key per call; subclasses make the keys."""

    def rounded_normal(self, count: int, deviation: float) -> torch.Tensor:
        if not 0 < deviation <= MOST_DEVIATION:
            raise NoiseError("noise needs a deviation above 0 and at most 2^46 grid steps: set another")
        values, key = torch.empty(count, dtype=torch.float64), self._key()
        further = keystream(key, 2 * FURTHER_BITS // 64, nonce=1)
        for target, chunk in zip(torch.split(values, 2 * HALF), keystream(key, 2 * HALF), strict=False):
            target.copy_(_rounded_gaussians(chunk, deviation, further)[: len(target)])
        return values

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
    """The same construction, for tests only: anybody can derive the keys from `seed`."""

    void = True

    def __init__(self, seed: int) -> None:
        self._seed, self._calls = seed, 0

    def _key(self) -> bytes:
        self._calls += 1
        return hashlib.sha256(f"{self._seed}/{self._calls}".encode()).digest()


def keystream(key: bytes, words: int, nonce: int = 0) -> Iterator[torch.Tensor]:
    """The ChaCha20 keystream of `key` (32 bytes) from block 0 under `nonce`, as int64 chunks of [words].

    All chunks share one buffer: each overwrites the last. A key serves only one call, so small nonces suffice.
    """
    # The first 4 of these bytes are the block counter, the other 12 the nonce.
    counter_and_nonce = bytes(4) + nonce.to_bytes(12, "little")
    encryptor = Cipher(algorithms.ChaCha20(key, counter_and_nonce), mode=None).encryptor()
    zeros, buffer = bytes(words * WORD_BYTES), bytearray(words * WORD_BYTES)
    chunk = torch.frombuffer(buffer, dtype=torch.int64) if words else torch.empty(0, dtype=torch.int64)
    while True:
        encryptor.update_into(zeros, buffer)
        yield chunk


def _rounded_gaussians(words: torch.Tensor, deviation: float, further: Iterator[torch.Tensor]) -> torch.Tensor:
    """[2 * HALF] whole numbers from [2 * HALF] words: the cosine and the sine of each pair of uniform numbers.

    A uniform number u has 52 binary digits j here and infinitely many that are not drawn; R = sqrt(-2 ln u) is computed
    for the middle of that interval. Half of its width moves R by at most 1 / (j R) <= 2^-51 / (u R) for j >= 1 (and
    without bound for j = 0). Rounding moves R by at most 2^-50 R, and sine and cosine, whose angle is off by 2^-50, by
    2^-49, if logarithm, sine and cosine err by at most four units in the last place (torch's by one). So a value is off
    by at most deviation (2^-51 / (u R) + 2^-48 R). `doubt` is twice that.
    """
    first, second = words.view(2, -1)
    uniform = ((first >> 12).double() + (2.0**51 + 0.5)).mul_(2.0**-52)
    radius = uniform.log().mul_(-2).sqrt_()
    angle = second.double().mul_(math.pi * 2.0**-63)
    values = torch.stack([angle.cos(), angle.sin()]).mul_(radius).mul_(deviation)
    doubt = (uniform.mul_(radius).reciprocal_().mul_(2.0**-50) + radius.mul_(2.0**-47)).mul_(deviation)
    rounded = values.round()
    unsure = (values - rounded).abs_() > 0.5 - doubt
    unsure |= (first >> 12) == -(2**51)
    for pair in unsure.any(0).nonzero().flatten().tolist():
        exact = _exact_pair(int(first[pair]), int(second[pair]), deviation, next(further))
        rounded[:, pair] = torch.where(unsure[:, pair], torch.tensor(exact, dtype=torch.float64), rounded[:, pair])
    return rounded.view(-1)


def _exact_pair(first: int, second: int, deviation: float, further: torch.Tensor) -> tuple[float, float]:
    """The nearest whole numbers to the cosine and the sine of a pair whose uniforms get `FURTHER_BITS` more digits.

    They are those of exact real numbers, except with probability below 2^-100: the digits that are still not drawn and
    rounding at this precision move a value by less than 2^-120.
    """
    from mpmath import mp  # only here, as it takes a quarter of a second to load

    more = further.numpy().tobytes()
    digits = [int.from_bytes(part, "little") for part in (more[: len(more) // 2], more[len(more) // 2 :])]
    with mp.workprec(2 * FURTHER_BITS):
        whole = (((first >> 12) + 2**51) << FURTHER_BITS) + digits[0]
        uniform = (whole + mp.mpf(0.5)) / mp.mpf(2) ** (52 + FURTHER_BITS)
        turns = (((second % 2**64) << FURTHER_BITS) + digits[1]) / mp.mpf(2) ** (64 + FURTHER_BITS)
        radius = deviation * mp.sqrt(-2 * mp.log(uniform))
        cosine, sine = (radius * function(2 * mp.pi * turns) for function in (mp.cos, mp.sin))
        return float(mp.nint(cosine)), float(mp.nint(sine))
