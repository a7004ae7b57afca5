"""Questions as hashed n-grams of words: a fixed vector for each question, without vocabulary or training."""

import re
import zlib
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

NGRAMS = 512
"""The length of the n-gram vector that answer heads take."""
LONGEST = 3
"""The number of words of the longest n-gram."""

_WORD = re.compile(r"\w+")


def ngrams(question: str) -> Iterator[str]:
    """The runs of one to three words of a question, in lower case and without punctuation."""
    words = _WORD.findall(question.lower())
    for length in range(1, LONGEST + 1):
        for first in range(len(words) - length + 1):
            yield " ".join(words[first : first + length])


def hashed_ngrams(questions: Sequence[str], places: int = NGRAMS) -> torch.Tensor:
    """Signed counts of n-grams, float32 [questions, places], scaled to a mean square of 1 as normalised features have.

    Place and sign of an n-gram follow from its CRC-32, which is the same on all machines (feature hashing,
    K. Weinberger et al., ICML 2009). A question without words is zeros.
    """
    counts = torch.zeros(len(questions), places)
    for row, question in zip(counts, questions, strict=True):
        for ngram in ngrams(question):
            digest = zlib.crc32(ngram.encode())
            row[(digest >> 1) % places] += 1 - 2 * (digest & 1)
    scaled: torch.Tensor = F.normalize(counts) * places**0.5
    return scaled
