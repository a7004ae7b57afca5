"""Random numbers of training other than noise: dropout, augmented views, random filters.

In plain training they come from a seed, item after item. Under differential privacy every patient has a stream of its
own, keyed by a secret that is fresh in each step: neither other patients nor a job's seed can change what it draws.
"""

import hashlib
import hmac
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from privacy.clipping import current_owners
from privacy.errors import SettingsError

NONCE_BYTES = 12
_BLOCK = bytes(4)
"""The block counter that ChaCha20 starts from."""


class Chance(Protocol):
    """The random source of a forward pass. The first dimension of drawn tensors is over items (see `owned`)."""

    def uniform(self, shape: Sequence[int]) -> torch.Tensor:
        """Independent uniforms in [0, 1), float32 of `shape`, on the CPU."""

    def normal(self, shape: Sequence[int]) -> torch.Tensor:
        """Independent standard Gaussians, float32 of `shape`, on the CPU."""

    def apart(self, name: str) -> "Chance":
        """A separate stream for this name, the same at each call; drawing from it does not change this one."""


class SeededChance:
    """One generator for all items: for training without differential privacy."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self._seed = seed
        self._apart: dict[str, SeededChance] = {}

    def uniform(self, shape: Sequence[int]) -> torch.Tensor:
        return torch.rand(tuple(shape), generator=self.generator)

    def normal(self, shape: Sequence[int]) -> torch.Tensor:
        return torch.randn(tuple(shape), generator=self.generator)

    def apart(self, name: str) -> "SeededChance":
        if name not in self._apart:
            digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
            self._apart[name] = SeededChance(int.from_bytes(digest[:6], "big"))
        return self._apart[name]


class PatientStreams:
    """A keystream for each patient, which depends only on a secret and the patient's own key."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._keys: dict[str, bytes] = {}

    def words(self, patient: str, purpose: str, count: int) -> NDArray[np.uint32]:
        """The first `count` words of the patient's ChaCha20 keystream (RFC 8439) for this purpose."""
        if patient not in self._keys:
            self._keys[patient] = hmac.digest(self._secret, patient.encode("utf-8", "surrogatepass"), "sha256")
        nonce = hashlib.sha256(purpose.encode()).digest()[:NONCE_BYTES]
        cipher = Cipher(algorithms.ChaCha20(self._keys[patient], _BLOCK + nonce), mode=None)
        return np.frombuffer(cipher.encryptor().update(bytes(4 * count)), dtype=np.uint32)

    def uniform(self, patient: str, purpose: str, count: int) -> NDArray[np.float64]:
        """Multiples of 2**-53, uniform in [0, 1), from the patient's keystream: [count]."""
        words = self.words(patient, purpose, 2 * count).view(np.uint64)
        return np.asarray((words >> np.uint64(11)) * 2.0**-53)


class PatientChance:
    """The streams of the patients of one pass; an item's numbers come from its patient's stream."""

    def __init__(self, streams: PatientStreams, patients: Sequence[str], name: str = "") -> None:
        """`patients`: the key of each patient that `owned` may name in this pass, by number."""
        self._streams, self._patients, self._name = streams, patients, name
        self._calls = 0
        self._apart: dict[str, PatientChance] = {}

    def uniform(self, shape: Sequence[int]) -> torch.Tensor:
        """See `Chance.uniform`. Raises `SettingsError` outside of `owned`: the owners of the items must be known."""
        return torch.from_numpy((self._words(shape) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24))

    def normal(self, shape: Sequence[int]) -> torch.Tensor:
        """Gaussian numbers by Box and Muller's transform. Raises as `uniform` does."""
        words = self._words((shape[0], 2, *shape[1:])).astype(np.float64)
        radius = np.sqrt(-2 * np.log((words[:, 0] + 1) * 2.0**-32))
        return torch.from_numpy((radius * np.cos(words[:, 1] * (2 * math.pi * 2.0**-32))).astype(np.float32))

    def apart(self, name: str) -> "PatientChance":
        if name not in self._apart:
            self._apart[name] = PatientChance(self._streams, self._patients, f"{self._name}/{name}")
        return self._apart[name]

    def _words(self, shape: Sequence[int]) -> NDArray[np.uint32]:
        """A random 32-bit word for each element of `shape`."""
        owners = current_owners()
        if owners is None or len(owners) != shape[0]:
            raise SettingsError("the model draws for items without naming their patients: see `owned`")
        self._calls += 1
        purpose, width = f"{self._name}#{self._calls}", math.prod(shape[1:])
        patients, counts = torch.unique_consecutive(owners.cpu(), return_counts=True)
        parts = [
            self._streams.words(self._patients[patient], purpose, count * width)
            for patient, count in zip(patients.tolist(), counts.tolist(), strict=True)
        ]
        return np.concatenate(parts).reshape(tuple(shape)) if parts else np.zeros(tuple(shape), np.uint32)
