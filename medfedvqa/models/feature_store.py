"""Stores outputs of frozen towers on disk, so that runs on one machine with the same data compute them once.

They are float32, exactly as computed, so that a run gives the same bits with and without the store. They are as
personal as the pictures: the folder and its files are for this account only, and no job can name them.
"""

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import ConfigError

FORMAT = 1
"""The format number of this version's files. It is part of every key, so other formats' files are not read."""
MOST_BYTES = 8 * 2**30
SUFFIX = ".features"
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class FeatureStore:
    """A folder of tensors, named by their inputs' digest. Above `most_bytes`, the least recently used are removed."""

    folder: Path
    most_bytes: int = MOST_BYTES

    def __post_init__(self) -> None:
        """Makes the folder. Raises `ConfigError` for a file, and for a folder that other accounts can open."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError("the cache of features is a file: name a folder")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.folder.stat().st_mode & 0o077:
            raise ConfigError("the folder of the cache is open to other accounts: `chmod 700` it, or name a new one")

    def recall(self, part: str, inputs: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The result of `make`, float32: read from the folder if it is there, else computed and written.

        It must depend only on `inputs` and on the facts in `part`: weights, tower, depth, device. A tensor from the
        folder is on the CPU. Raises `ConfigError` for a damaged file.
        """
        path = self.folder / (self._key(part, inputs) + SUFFIX)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            made = make()
            self._write(path, made)
            return made
        os.utime(path)
        digest, array = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(array).digest() != digest:
            raise ConfigError("a file in the folder of the cache is damaged: remove the folder, and run again")
        return torch.from_numpy(np.load(io.BytesIO(array), allow_pickle=False))

    def _key(self, part: str, inputs: torch.Tensor) -> str:
        """The digest of everything that the result's bits depend on, the version of torch included."""
        facts = (FORMAT, part, torch.__version__, str(inputs.dtype), tuple(inputs.shape))
        digest = hashlib.sha256(repr(facts).encode())
        digest.update(inputs.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _write(self, path: Path, made: torch.Tensor) -> None:
        buffer = io.BytesIO()
        np.save(buffer, made.numpy(force=True), allow_pickle=False)
        array = buffer.getvalue()
        if len(array) + _DIGEST_BYTES > self.most_bytes:
            return
        write_whole(path, hashlib.sha256(array).digest() + array, PRIVATE)
        self._shorten()

    def _shorten(self) -> None:
        """Removes the least recently used files. Another process may remove them at the same time."""
        found = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            try:
                found.append((path.stat().st_mtime_ns, path.stat().st_size, path))
            except FileNotFoundError:
                continue
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
