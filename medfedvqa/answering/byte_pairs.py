"""CLIP's byte-pair tokenizer as plain facts, for a program that has no tokenizer library."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from medfedvqa.errors import ConfigError
from medfedvqa.models.bundled import CONTEXT, VOCABULARY, ShortVocabulary

if TYPE_CHECKING:
    from open_clip.tokenizer import SimpleTokenizer


@dataclass(frozen=True)
class BytePairs:
    """The merges in their order, the ids that stand around a text, and the most ids of a text, these two included."""

    merges: tuple[tuple[str, str], ...]
    start: int
    end: int
    context: int


def byte_pairs(tokenize: Callable[[list[str]], torch.Tensor]) -> BytePairs:
    """The facts of a backbone's tokenizer. Raises `ConfigError` for one of another kind."""
    from open_clip.tokenizer import SimpleTokenizer

    if isinstance(tokenize, ShortVocabulary):
        return BytePairs(_merges(tokenize.full), VOCABULARY - 2, VOCABULARY - 1, CONTEXT)
    if isinstance(tokenize, SimpleTokenizer):
        return BytePairs(_merges(tokenize), tokenize.sot_token_id, tokenize.eot_token_id, tokenize.context_length)
    raise ConfigError("the backbone's tokenizer is not CLIP's byte pairs: such a model is not exported yet")


def _merges(tokenizer: "SimpleTokenizer") -> tuple[tuple[str, str], ...]:
    return tuple(sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.__getitem__))
