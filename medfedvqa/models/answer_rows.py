"""A site's rows as inputs of answer heads: the backbone's own batch, and the head's further inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from medfedvqa.models.backbone import Cache
from medfedvqa.models.distinct import NumberedQuestions
from medfedvqa.models.ngrams import NGRAMS, hashed_ngrams
from medfedvqa.models.picture_space import Rows


@dataclass(frozen=True)
class AnswerBatch:
    """Rows of a site. `rows` is the backbone's batch of them."""

    rows: Any
    grams: torch.Tensor
    """The hashed n-grams of each row's question, float32 [rows, NGRAMS]."""
    places: torch.Tensor | None = None
    """The frozen grid of each row's picture, [rows, places, width]; None if the head does not use it."""

    @property
    def answers(self) -> torch.Tensor:
        """The answer of each row, int64 [rows]."""
        answers: torch.Tensor = self.rows.answers
        return answers

    @property
    def owners(self) -> Mapping[str, torch.Tensor | None]:
        owners: Mapping[str, torch.Tensor | None] = self.rows.owners
        return owners


class AskedQuestions(NumberedQuestions):
    """A site's questions, numbered by their own text, as n-grams.

    A backbone merges questions that differ only beyond the words that it reads. Here each keeps its own n-grams, so
    that one patient's question does not get another's.
    """

    def __init__(self, questions: Sequence[str], device: torch.device, places: int = NGRAMS) -> None:
        super().__init__(questions)
        self._grams = hashed_ngrams(self.texts, places).to(device)

    def grams(self, questions: torch.Tensor) -> torch.Tensor:
        """The n-grams of questions by number, float32 [rows, places]."""
        return self._grams[questions.to(self._grams.device)]


class AnswerCache(AskedQuestions):
    """A backbone's cache, with the n-grams of all questions, and the grids of all pictures if there are any."""

    def __init__(self, cache: Cache, questions: Sequence[str], places: Rows | None, device: torch.device) -> None:
        super().__init__(questions, device)
        self._cache, self._places = cache, places
        self._backbones = cache.question_ids(self.texts)

    def batch(
        self,
        pictures: torch.Tensor,
        questions: torch.Tensor,
        answers: torch.Tensor,
        owners: torch.Tensor | None = None,
    ) -> AnswerBatch:
        """See `Cache`."""
        rows = self._cache.batch(pictures, self._backbones[questions], answers, owners)
        places = None if self._places is None else self._places[pictures.to(self._places.device)]
        return AnswerBatch(rows, self.grams(questions), places)
