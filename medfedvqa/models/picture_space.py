"""A site's storage of pictures and of a frozen backbone's outputs for them: in memory up to a bound, then in a file.

Both hold float32 exactly as computed: a resized picture has more levels than 8 or 16 bits can hold, so that smaller
types would change training. The file has no name: it disappears with the process, however that ends, and no other
process can open it. Rows are read from it, not mapped, since mapped pages count as memory of the process; the rows of
the next batch are read while the present one is trained on.

Outputs can also be stored on disk, so that runs on one machine with the same data compute them once, with the same
bits. They are as personal as the pictures: the folder and its files are for this account only, and no job names them.
"""

import errno
import hashlib
import io
import math
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np
import torch

from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.devices import CUDA, DeviceMemoryError
from medfedvqa.errors import ConfigError


class FileRows:
    """Tensors of one shape in a file, row by row. Like a tensor, it is indexed by numbers of rows."""

    def __init__(self, file: IO[bytes], like: torch.Tensor) -> None:
        """`like`: a tensor with the shape, type and device of each row."""
        self._file, self._like = file, like
        self.device = like.device
        self._reader = ThreadPoolExecutor(1, "rows ahead")
        self._ahead: tuple[list[int], Future[torch.Tensor]] | None = None

    def __getitem__(self, numbers: torch.Tensor) -> torch.Tensor:
        """The selected rows, [rows, ...]; `numbers` is int64 [rows]."""
        wanted = numbers.tolist()
        if self._ahead is None or self._ahead[0] != wanted:
            rows = self._read(wanted)
        else:
            rows, self._ahead = self._ahead[1].result(), None
        return rows.to(self.device, non_blocking=True)

    def ahead(self, numbers: torch.Tensor) -> None:
        """Begins to read the rows that will be needed next. They replace earlier requests."""
        wanted = numbers.tolist()
        if self._ahead is None or self._ahead[0] != wanted:
            self._ahead = wanted, self._reader.submit(self._read, wanted)

    def _read(self, numbers: list[int]) -> torch.Tensor:
        like = self._like
        # A card copies from pinned memory while it computes.
        rows = torch.empty(len(numbers), *like.shape, dtype=like.dtype, pin_memory=self.device.type == CUDA)
        for row, number in zip(rows.flatten(1).view(torch.uint8), numbers, strict=True):
            if os.preadv(self._file.fileno(), [row.numpy().data], number * like.nbytes) < like.nbytes:
                raise IndexError("the file has fewer rows")
        return rows


Rows = torch.Tensor | FileRows
"""Tensors of one shape, [rows, ...], in memory or in a file, that are indexed by numbers of rows."""


class PictureSpace:
    """One site's bounds on memory and disk. Rows that are no longer used do not count."""

    def __init__(self, memory: float = math.inf, disk: int = 0, folder: Path | None = None) -> None:
        """`memory` and `disk` are bytes; `folder` is made where a file is needed."""
        self._memory, self._disk, self._folder = memory, disk, folder
        self.memory_used = self.disk_used = 0
        """Bytes in use."""
        self._files: weakref.WeakSet[FileRows] = weakref.WeakSet()

    def ahead(self, numbers: torch.Tensor) -> None:
        """Begins to read these rows, int64 [rows], which will be needed next, from all files of this space."""
        for rows in self._files:
            rows.ahead(numbers)

    def keep(self, count: int, parts: Iterable[torch.Tensor], device: torch.device | None = None) -> Rows:
        """Stores `count` rows, which come in consecutive parts, [rows, ...] each.

        `device`: the device of the stored rows; None: that of the parts.
        Raises `DeviceMemoryError` if they exceed the bounds or the disk is full.
        """
        parts = iter(parts)
        first = next(parts)
        like = torch.empty(first.shape[1:], dtype=first.dtype, device=device or first.device)
        nbytes, rows = count * like.nbytes, chain((first,), parts)
        if nbytes <= self._memory - self.memory_used:
            kept = torch.empty(count, *like.shape, dtype=like.dtype, device=like.device)
            self.memory_used += nbytes
            weakref.finalize(kept, self._give_back, nbytes, 0)
            end = 0
            for part in rows:
                kept[end : end + len(part)] = part
                end += len(part)
            return kept
        if nbytes > self._disk - self.disk_used:
            raise DeviceMemoryError(
                "the features of this site's pictures need more memory and disk than allowed: raise disk_mb under "
                "'pictures' in site.yml, or tune fewer blocks"
            )
        return self._in_file(rows, like, nbytes)

    def _in_file(self, parts: Iterable[torch.Tensor], like: torch.Tensor, nbytes: int) -> FileRows:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - it lives as long as the rows
        rows = FileRows(file, like)
        self.disk_used += nbytes
        weakref.finalize(rows, self._give_back, 0, nbytes)
        weakref.finalize(rows, file.close)
        self._files.add(rows)
        if not _written(file, parts):
            # Not the error of a full disk: a server gets its code, and the amount written depends on the patients.
            raise DeviceMemoryError(
                "the disk has too little space for the features of this site's pictures: free some where `state` is"
            )
        return rows

    def _give_back(self, memory: int, disk: int) -> None:
        self.memory_used -= memory
        self.disk_used -= disk


def _written(file: IO[bytes], parts: Iterable[torch.Tensor]) -> bool:
    """Writes the rows of all parts; false if the disk is full."""
    try:
        for part in parts:
            waiting = part.cpu().contiguous().view(torch.uint8).flatten().numpy().data
            while waiting:
                waiting = waiting[os.write(file.fileno(), waiting) :]
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


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
