"""A site's rows as the input of losses, and the types of losses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from medfedvqa.data import Examples, PictureViews, numbered
from medfedvqa.models import AnswerModel, Cache, Depth, PictureStream, Values
from medfedvqa.models.picture_stream import distinct
from medfedvqa.training.site import Site
from privacy import Chance, owned


@dataclass(frozen=True)
class Rows:
    """Some of a site's rows, as the input of a loss."""

    batch: Any
    """The rows as a batch for the backbone."""
    answers: torch.Tensor
    """The answers, int64 [rows], in the model's answer space. Test rows may hold -1 for an answer outside of it."""
    chance: Chance | None = None
    """The random source of dropout and other choices; None turns them off."""


RowLoss = Callable[[Values, Rows], torch.Tensor]
"""The loss of each row, [rows]. It can be clipped by patient only if it depends on no other patient's rows."""
Penalty = Callable[[Values], torch.Tensor]
"""The terms of the loss that depend on no data."""
MakeCache = Callable[[Depth, PictureStream, Sequence[str]], Cache]
"""A function like `Backbone.cache_of`."""


def answer_losses(model: AnswerModel) -> RowLoss:
    """The cross-entropy of each row."""

    def loss(values: Values, rows: Rows) -> torch.Tensor:
        return F.cross_entropy(model.logits(values, rows.batch, rows.chance), rows.answers, reduction="none")

    return loss


class SiteRows:
    """A site's rows with answers in a model's answer space, over the backbone's cache."""

    def __init__(
        self, site: Site, model: AnswerModel, depth: Depth, count: int, answers: tuple[str, ...] | None
    ) -> None:
        """`count`: views of each picture. `answers`: the model's answer space; None means the site's own."""
        self._site, self._views = site, count
        self._answers = answers or site.data.answers
        self._cache = cached(site, depth, model.cache, count, model.cache_key, model.image_size)

    def encoded(self, examples: Examples) -> Examples:
        """The same rows, with answers in the model's answer space."""
        answers = numbered(self._site.data.answers, self._answers, examples.answers)
        return replace(examples, answers=answers)

    def rows(
        self,
        examples: Examples,
        chosen: torch.Tensor,
        chance: Chance | None = None,
        owners: torch.Tensor | None = None,
    ) -> Rows:
        """The selected rows of encoded examples; `chosen` is int64 [rows].

        Without a `chance` to draw from, pictures are not augmented. `owners`: each row's patient, int64 [rows] in
        ascending order, if patients must share nothing.
        """
        questions = self._cache.question_ids([examples.questions[row] for row in chosen.tolist()])
        pictures = self._views_of(examples.pictures[chosen], chance, owners)
        batch = self._cache.batch(pictures, questions, examples.answers[chosen], owners)
        return Rows(batch, batch.answers, chance)

    def ahead(self, examples: Examples, chosen: torch.Tensor) -> None:
        """Begins to read rows that will be needed next from the cache's file. With several views it does nothing."""
        if self._views == 1:
            self._site.space.ahead(distinct(examples.pictures[chosen], None)[0])

    def _views_of(self, pictures: torch.Tensor, chance: Chance | None, owners: torch.Tensor | None) -> torch.Tensor:
        """The view of each row's picture, one for each picture of a patient. View 0 is the picture itself."""
        if self._views == 1 or chance is None:
            return pictures * self._views
        unique, place, owner = distinct(pictures, owners)
        with owned(owner):
            view = (chance.apart("views").uniform((len(unique),)) * self._views).long()
        return pictures * self._views + view[place]


def cached(
    site: Site, depth: Depth, make: MakeCache, count: int = 1, key: str = "backbone", size: int | None = None
) -> Cache:
    """The cache of the model's frozen part at this depth, which `make` computes once for `count` views of each picture.

    `key` names the kind of cache that it makes; `size`: the side of its pictures, the backbone's if None.
    """

    def freeze() -> Cache:
        data, backbone = site.data, site.backbone
        questions = data.train.questions + data.validate.questions + data.test.questions
        seeds = data.view_seeds(site.seed) if count > 1 else None
        return make(
            depth, PictureViews(data.pictures, size or backbone.shape.image_size, site.space, count, seeds), questions
        )

    return site.derive(("cache", key, tuple(sorted(depth.items())), count), freeze)
