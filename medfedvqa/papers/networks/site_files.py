"""Backbones that add a site's own files to another one: regions of pictures, and vectors of words."""

import hashlib
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from medfedvqa.backbone_names import BackboneName
from medfedvqa.devices import Precision
from medfedvqa.errors import BackboneError, DataError
from medfedvqa.models.backbone import Backbone, BackboneShape, Cache, Depth, Features, Regions, TokenEmbeddings, Tuning
from medfedvqa.models.picture_space import FeatureStore, Rows
from medfedvqa.models.picture_stream import CHUNK, PictureStream


@dataclass(frozen=True, eq=False, kw_only=True)
class BackboneOn(Backbone):
    """The backbone `below`, except for the methods that a subclass overrides, with its own name, shape and digest."""

    name: str
    below: Backbone
    shape: BackboneShape
    digest: str
    seen: tuple[str, ...] | None
    channels: int

    @classmethod
    def on(cls, below: Backbone, name: str, shape: BackboneShape, what: str, **more: Any) -> Self:
        """A backbone of this name and shape. `what` describes the addition, for the digest; `more`: subclass fields."""
        digest = hashlib.sha256(f"{below.digest} {what}".encode()).hexdigest()
        return cls(name=name, below=below, shape=shape, digest=digest, seen=below.seen, channels=below.channels, **more)

    @property
    def device(self) -> torch.device:
        return self.below.device

    def parameter(self, name: str) -> torch.Tensor:
        return self.below.parameter(name)

    def cache(self, depth: Depth, pictures: torch.Tensor, questions: Sequence[str]) -> Cache:
        return self.below.cache(depth, pictures, questions)

    def cache_of(self, depth: Depth, pictures: PictureStream, questions: Sequence[str]) -> Cache:
        return self.below.cache_of(depth, pictures, questions)

    def storing(self, store: FeatureStore | None) -> Self:
        return replace(self, below=self.below.storing(store))

    def computing(self, precision: Precision) -> Self:
        return replace(self, below=self.below.computing(precision))

    def features(self, batch: Any, tuning: Tuning, join: Features = "concat") -> torch.Tensor:
        return self.below.features(batch, tuning, join)

    def attention(self, batch: Any, tuning: Tuning) -> torch.Tensor:
        return self.below.attention(batch, tuning)

    def places(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.below.places(pictures)

    def places_of(self, pictures: PictureStream) -> Rows:
        return self.below.places_of(pictures)

    def regions_of(self, pictures: PictureStream) -> Callable[[torch.Tensor], Regions]:
        return self.below.regions_of(pictures)

    def words(self, texts: Sequence[str], tokens: int) -> TokenEmbeddings:
        return self.below.words(texts, tokens)


# A backbone that reads picture regions, such as a detector's, from the site's files instead of its own grid.
#
# A folder has one file for each picture, `DIGEST.npz`, where DIGEST is the SHA-256 of the picture's file, in
# hexadecimal. `numpy.savez` writes it with these arrays:
#
# | array      | type and shape            | content                                                                |
# |------------|---------------------------|------------------------------------------------------------------------|
# | `picture`  | text                      | DIGEST again, so that a renamed file is refused                        |
# | `features` | floats, [regions, width]  | the features of each region                                            |
# | `boxes`    | floats, [regions, 4]      | left, top, right, bottom in any unit; only for a trunk that uses them  |
#
# Regions are as personal as the pictures: they stay at the site, and no digest of them is in any log.

SUFFIX = ".npz"
BOX = 4
"""Numbers of a box."""
_NUMBER_BYTES, _HEADER_BYTES = 8, 4096
"""The most bytes of a number, and of an array's header and text."""


@dataclass(frozen=True)
class RegionFiles:
    """A folder of region files, with at most `most` regions of `width` numbers for each picture."""

    folder: Path
    most: int
    width: int

    def packed(self, pictures: PictureStream) -> Iterator[torch.Tensor]:
        """The regions of pictures, `CHUNK` at a time: float32 [n, most, width + BOX + 1].

        Each region is its features, its box (zeros if none) and a 1; a region that does not exist is all zeros. Raises
        `DataError` with a picture's row index for a file that is missing, damaged, of another picture or of another
        width, and if only some files have boxes.
        """
        part: list[torch.Tensor] = []
        boxed: bool | None = None
        for row, digest in pictures.files():
            if len(part) == CHUNK:
                yield torch.stack(part)
                part = []
            features, boxes = self._read(row, digest)
            if boxed not in (None, boxes is not None):
                raise DataError(f"row {row}: 'boxes' are in some region files and not in others: write them in all")
            boxed, count = boxes is not None, len(features)
            regions = torch.zeros(self.most, self.width + BOX + 1)
            regions[:count, : self.width], regions[:count, -1] = features, 1.0
            if boxes is not None:
                regions[:count, self.width : -1] = boxes
            part.append(regions)
        yield torch.stack(part) if part else torch.empty(0, self.most, self.width + BOX + 1)

    def unpacked(self, packed: torch.Tensor, boxed: bool) -> Regions:
        """Unpacks regions into the input format of trunks; `boxed`: whether the site's files have boxes."""
        boxes = packed[..., self.width : -1] if boxed else None
        return Regions(packed[..., : self.width], packed[..., -1] > 0, boxes)

    def _read(self, row: int, digest: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One picture's features and boxes as float32; None without boxes. Raises `DataError`."""
        picture, features, boxes = self._arrays(row, self.folder / f"{digest}{SUFFIX}")
        if picture.shape != () or str(picture) != digest:
            raise DataError(f"row {row}: its region file is of another picture: make it from the picture's own file")
        count = len(features) if features.ndim == 2 else 0
        if not 1 <= count <= self.most or features.shape != (count, self.width):
            raise DataError(
                f"row {row}: the 'features' of its region file are not 1 to {self.most} regions of {self.width} "
                "numbers, as the backbone's name says"
            )
        if boxes is not None and (boxes.shape != (count, BOX) or not (boxes[:, 2:] > boxes[:, :2]).all()):
            raise DataError(
                f"row {row}: the 'boxes' of its region file are not the left, top, right and bottom of each region"
            )
        if not all(np.isfinite(each).all() for each in (features, boxes) if each is not None):
            raise DataError(f"row {row}: its region file has numbers that are not finite")
        return torch.from_numpy(features), None if boxes is None else torch.from_numpy(boxes)

    def _arrays(self, row: int, path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The three arrays, numbers as float32; None without boxes."""
        try:
            with zipfile.ZipFile(path) as file:
                picture, features = self._array(file, "picture"), _as_float32(self._array(file, "features"))
                boxes = _as_float32(self._array(file, "boxes")) if "boxes.npy" in file.namelist() else None
        except FileNotFoundError:
            raise DataError(f"row {row}: its picture has no region file in the site's folder") from None
        # What numpy and zipfile raise for unknown, cut, encrypted or broken files, and for arrays of objects.
        except (OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile):
            raise DataError(
                f"row {row}: its region file cannot be read: write 'picture', 'features' and, if need be, 'boxes' by "
                "numpy.savez, as text and floats"
            ) from None
        return picture, features, boxes

    def _array(self, file: zipfile.ZipFile, name: str) -> Any:
        """One array. Raises `ValueError` if it is larger than any valid one."""
        if file.getinfo(f"{name}.npy").file_size > _NUMBER_BYTES * self.most * (self.width + BOX) + _HEADER_BYTES:
            raise ValueError
        with file.open(f"{name}.npy") as content:
            return np.lib.format.read_array(content, allow_pickle=False)


def _as_float32(array: np.ndarray) -> np.ndarray:
    """The array as float32. Raises `TypeError` unless it holds floats."""
    if array.dtype.kind != "f":
        raise TypeError
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite then, and refused
        return np.ascontiguousarray(array, dtype=np.float32)


@dataclass(frozen=True, eq=False, kw_only=True)
class RegionBackbone(BackboneOn):
    """A backbone that gives trunks the regions of files. Without a trunk it reads pictures as the one below does."""

    files: RegionFiles

    @classmethod
    def of(cls, name: BackboneName, below: Backbone, folder: Path) -> "RegionBackbone":
        """The backbone of this name. Raises `BackboneError` without the folder."""
        files = RegionFiles(folder, *name.regions)
        if not files.folder.is_dir():
            raise BackboneError("the folder of region files is missing: check its path in site.yml")
        # The digest is of the form alone: one of the files would tell whoever has a patient's that the patient is here.
        shape = replace(below.shape, regions=(files.most, files.width))
        return cls.on(below, name.full, shape, f"regions {files.most} {files.width}", files=files)

    def regions_of(self, pictures: PictureStream) -> Callable[[torch.Tensor], Regions]:
        """See `Backbone`. Raises `DataError` as `RegionFiles.packed` does, and as `PictureStream.files` does."""
        kept = pictures.space.keep(len(pictures), self.files.packed(pictures), self.device)
        boxed = len(pictures) > 0 and bool((kept[torch.tensor([0])][0, 0, self.files.width : -1] != 0).any())
        return lambda numbers: self.files.unpacked(kept[numbers.to(kept.device)], boxed)


# A backbone whose words have vectors from a text file, such as GloVe's (J. Pennington et al., EMNLP 2014).
#
# Each line of the file is a word and its numbers, with blanks between. Pictures, and whatever is tuned, remain those of
# the backbone below; only `Backbone.words` changes, which trunks and UniCon's answer projection read.

_WORD = re.compile(r"[a-z0-9]+(?:['-][a-z0-9]+)*")
_LONGEST_WORD, _LONGEST_NUMBER = 4096, 32
"""Bytes of a word and of a number in a line."""


@dataclass(frozen=True)
class WordVectors:
    """A file of vectors, which stays on disk: GloVe's largest has 5.6 GB, and a site's texts have few words."""

    path: Path
    width: int

    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal. Raises `BackboneError` unless each line is a word and its numbers."""
        whole = hashlib.sha256()
        for line, _ in self._lines():
            whole.update(line)
        return whole.hexdigest()

    def of(self, words: set[str]) -> dict[str, list[float]]:
        """The vectors of the given words that the file has. If a word occurs twice, the first counts.

        Raises `BackboneError`, also for a vector with numbers that are not finite.
        """
        found: dict[str, list[float]] = {}
        for number, (_, (word, *numbers)) in enumerate(self._lines(), 1):
            text = word.decode("utf-8", "replace")
            if text in words and text not in found:
                found[text] = self._numbers(numbers, number)
        return found

    def _lines(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """Each line, and its word and numbers."""
        longest = _LONGEST_WORD + _LONGEST_NUMBER * self.width
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(iter(lambda: file.readline(longest + 1), b""), 1):
                    parts = line.rstrip().rsplit(b" ", self.width)
                    if len(line) > longest or len(parts) != self.width + 1:
                        raise self._refused(number)
                    yield line, parts
        except OSError:
            raise BackboneError("the file of word vectors cannot be read: check its path in site.yml") from None

    def _numbers(self, parts: Sequence[bytes], line: int) -> list[float]:
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            raise self._refused(line) from None
        if not all(map(math.isfinite, numbers)):
            raise self._refused(line)
        return numbers

    def _refused(self, line: int) -> BackboneError:
        return BackboneError(
            f"line {line} of the file of word vectors is not a word and {self.width} finite numbers: check the file, "
            "and the width in the backbone's name"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class WordVectorBackbone(BackboneOn):
    """A backbone with the words of a file. A word that the file lacks is a vector of zeros."""

    vectors: WordVectors

    @classmethod
    def of(cls, name: BackboneName, below: Backbone, file: Path) -> "WordVectorBackbone":
        """The backbone of this name. Raises `BackboneError` for a damaged file."""
        vectors = WordVectors(file, name.words)
        return cls.on(below, name.full, replace(below.shape, words=vectors.width), vectors.digest(), vectors=vectors)

    def words(self, texts: Sequence[str], tokens: int) -> TokenEmbeddings:
        """The vectors of the first words of each text, in lower case."""
        split = [_WORD.findall(text.lower())[:tokens] for text in texts]
        vectors = self.vectors.of({word for words in split for word in words})
        values = torch.zeros(len(texts), tokens, self.vectors.width)
        present = torch.zeros(len(texts), tokens, dtype=torch.bool)
        for row, words in enumerate(split):
            present[row, : len(words)] = True
            for place, word in enumerate(words):
                if word in vectors:
                    values[row, place] = torch.tensor(vectors[word])
        return TokenEmbeddings(values.to(self.device), present.to(self.device))
