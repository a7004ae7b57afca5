"""Public rows as outputs of a model's frozen part: pictures with captions, or with questions and answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from medfedvqa.models import Cache, Depth, Stacked
from medfedvqa.training.rows import MakeCache, Rows

if TYPE_CHECKING:
    from medfedvqa.data import PublicPairs


@dataclass(frozen=True)
class FrozenRows:
    """The cache of public pictures and texts, and the picture, text and answer of each row."""

    cache: Cache
    pictures: torch.Tensor
    """The number of each row's picture, int64 [rows]."""
    texts: torch.Tensor
    """The cache's number of each row's text, int64 [rows]."""
    answers: torch.Tensor
    """The number of each row's answer, int64 [rows]; meaningless for pairs."""

    @classmethod
    def of_pairs(cls, make: MakeCache, size: int, depth: Depth, pairs: "PublicPairs") -> "FrozenRows":
        """The pairs of picture and caption, in order."""
        numbers = range(len(pairs))
        return cls._of(make, size, depth, pairs, numbers, pairs.captions, [0] * len(pairs))

    @classmethod
    def of_questions(
        cls, make: MakeCache, size: int, depth: Depth, pairs: "PublicPairs", answers: tuple[str, ...]
    ) -> "FrozenRows":
        """The questions about the pictures, with their answers' numbers in `answers`, which holds all of them."""
        rows, numbers = pairs.questions, {answer: number for number, answer in enumerate(answers)}
        right = [numbers[answer] for answer in rows.answers]
        return cls._of(make, size, depth, pairs, rows.pictures, rows.questions, right)

    @classmethod
    def _of(
        cls,
        make: MakeCache,
        size: int,
        depth: Depth,
        pairs: "PublicPairs",
        pictures: Sequence[int],
        texts: Sequence[str],
        answers: Sequence[int],
    ) -> "FrozenRows":
        """The cache that `make` makes at this depth of tuning, with pictures of `size` pixels."""
        cache = make(depth, Stacked(pairs.pictures(size)), texts)
        return cls(cache, torch.tensor(pictures), cache.question_ids(texts), torch.tensor(answers))

    def __len__(self) -> int:
        return len(self.pictures)

    def batch(self, items: torch.Tensor) -> Any:
        """The selected rows, int64 [rows], as a batch for the backbone."""
        return self.cache.batch(self.pictures[items], self.texts[items], self.answers[items])

    def rows(self, items: torch.Tensor) -> Rows:
        """The selected rows, int64 [rows], as the input of a loss, without dropout."""
        batch = self.batch(items)
        return Rows(batch, batch.answers)
