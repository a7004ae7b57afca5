"""Bag of words: logistic regression on a question's words, without the picture, trained at each site by itself.

What a model of pictures has to beat. Cross-entropy of a linear layer on hashed n-grams of one to three words.

| paper | here | why |
|---|---|---|
| none; a baseline of studies of language priors | hashed n-grams | no list of words made of a site's questions |
| a solver of the regularised problem | AdamW with weight decay | it is private by patient as all methods are |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field

from medfedvqa.bounds import MOST_WIDTH
from medfedvqa.core.local_training import Alone, AloneConfig
from medfedvqa.core.registry import register
from medfedvqa.errors import ConfigError
from medfedvqa.models import HEAD, AnswerModel, AskedQuestions, Depth, PictureStream, Values
from medfedvqa.training import Site
from privacy import Chance


class BagOfWordsConfig(AloneConfig, frozen=True):
    """Options of the method `bag_of_words`."""

    places: int = Field(4096, ge=16, le=MOST_WIDTH, description="places of the vector of hashed n-grams")


@dataclass(frozen=True)
class BagBatch:
    """Rows of a site, as n-grams [rows, places] and answers int64 [rows]."""

    grams: torch.Tensor
    answers: torch.Tensor

    @property
    def owners(self) -> Mapping[str, torch.Tensor | None]:
        return {}


class BagCache(AskedQuestions):
    """A site's questions; see `Cache`."""

    def batch(
        self,
        pictures: torch.Tensor,
        questions: torch.Tensor,
        answers: torch.Tensor,
        owners: torch.Tensor | None = None,
    ) -> BagBatch:
        """See `Cache`. Pictures have no effect."""
        grams = self.grams(questions)
        return BagBatch(grams, answers.to(grams.device))


@dataclass(frozen=True)
class BagModel(AnswerModel):
    """A linear layer from n-grams to answers."""

    answers: int
    places: int
    device: str

    @property
    def depth(self) -> Depth:
        return {}

    @property
    def cache_key(self) -> str:
        return f"{super().cache_key} {self.places}"

    def cache(self, depth: Depth, pictures: torch.Tensor | PictureStream, questions: Sequence[str]) -> BagCache:
        return BagCache(questions, torch.device(self.device), self.places)

    def initial(self, generator: torch.Generator, head: torch.Generator) -> Values:
        """Zeros: the problem is convex."""
        shapes = {f"{HEAD}answers.weight": (self.answers, self.places), f"{HEAD}answers.bias": (self.answers,)}
        return {name: torch.zeros(shape, device=self.device) for name, shape in shapes.items()}

    def features(self, values: Mapping[str, torch.Tensor], batch: BagBatch) -> torch.Tensor:
        return batch.grams

    def answer(
        self, values: Mapping[str, torch.Tensor], features: torch.Tensor, batch: Any, chance: Chance | None = None
    ) -> torch.Tensor:
        return F.linear(features, values[f"{HEAD}answers.weight"], values[f"{HEAD}answers.bias"])

    def attention(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        raise ConfigError("a bag of words sees no pictures, so there is no attention over them to show")


@register
class BagOfWords(Alone[BagOfWordsConfig]):
    """Logistic regression on the words of a question, alone at each site; no picture, nothing shared."""

    name = "bag_of_words"
    config_type = BagOfWordsConfig

    def model(self, site: Site) -> BagModel:
        """The layer for the site's answer space."""
        return BagModel(self.answer_count(site), self.config.places, site.device)
