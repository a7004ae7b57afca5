"""A backbone whose words have vectors from a text file, such as GloVe's (J. Pennington et al., EMNLP 2014).

Each line of the file is a word and its numbers, with blanks between. Pictures, and whatever is tuned, remain those of
the backbone below; only `Backbone.words` changes, which trunks and UniCon's answer projection read.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from medfedvqa.backbone_names import BackboneName
from medfedvqa.errors import BackboneError
from medfedvqa.models.backbone import Backbone, TokenEmbeddings
from medfedvqa.papers.networks.backbone_on import BackboneOn

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
