"""Rows of a site as losses see them, and losses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from medfedvqa.data import Examples, numbered, views
from medfedvqa.models import AnswerModel, Cache, Depth, Values
from medfedvqa.models.distinct import distinct
from medfedvqa.training.site import Site
from privacy import Chance, owned


@dataclass(frozen=True)
class Rows:
    """Some of a site's rows, as a loss sees them."""

    batch: Any
    """As the backbone takes them."""
    answers: torch.Tensor
    """int64 [rows], in the model's answer space; -1 for one outside of it, in test rows only."""
    chance: Chance | None = None
    """What dropout and other random choices draw from; None without."""


RowLoss = Callable[[Values, Rows], torch.Tensor]
"""The loss of each row, [rows]. Only where it depends on no other patient's rows can it be clipped by patient."""
Penalty = Callable[[Values], torch.Tensor]
"""Terms of the loss that depend on no data."""
MakeCache = Callable[[Depth, torch.Tensor, Sequence[str]], Cache]
"""As `Backbone.cache`."""


def answer_losses(model: AnswerModel) -> RowLoss:
    """Cross-entropy of each row."""

    def loss(values: Values, rows: Rows) -> torch.Tensor:
        return F.cross_entropy(model.logits(values, rows.batch, rows.chance), rows.answers, reduction="none")

    return loss


class SiteRows:
    """A site's rows with answers in a model's answer space, on what its backbone computes once."""

    def __init__(self, site: Site, make: MakeCache, depth: Depth, count: int, answers: tuple[str, ...] | None) -> None:
        """`count`: views of each picture. `answers`: the model's answer space, None for the site's own."""
        self._site, self._views = site, count
        self._answers = answers or site.data.answers
        self._cache = cached(site, depth, make, count)

    def encoded(self, examples: Examples) -> Examples:
        """The same rows, with answers in the model's answer space."""
        own = self._site.data.answers
        return replace(examples, answers=numbered(own, self._answers, examples.answers))

    def rows(
        self,
        examples: Examples,
        chosen: torch.Tensor,
        chance: Chance | None = None,
        owners: torch.Tensor | None = None,
    ) -> Rows:
        """These rows, int64 [rows], of encoded examples.

        Without a `chance` to draw from, pictures are shown as they are. `owners`: each row's patient, int64 [rows] in
        ascending order, where patients must share nothing.
        """
        questions = self._cache.question_ids([examples.questions[row] for row in chosen.tolist()])
        pictures = self._shown(examples.pictures[chosen], chance, owners)
        batch = self._cache.batch(pictures, questions, examples.answers[chosen], owners)
        return Rows(batch, batch.answers, chance)

    def _shown(self, pictures: torch.Tensor, chance: Chance | None, owners: torch.Tensor | None) -> torch.Tensor:
        """A view of each row's picture, the same in all rows of a patient that show the picture; 0 is the picture."""
        if self._views == 1 or chance is None:
            return pictures * self._views
        shown, place, owner = distinct(pictures, owners)
        with owned(owner):
            drawn = (chance.apart("views").uniform((len(shown),)) * self._views).long()
        return pictures * self._views + drawn[place]


def cached(site: Site, depth: Depth, make: MakeCache, count: int = 1) -> Cache:
    """What is frozen at this depth, computed once for `count` views of all the site's pictures by `make`."""

    def freeze() -> Cache:
        data, backbone = site.data, site.backbone
        questions = data.train.questions + data.validate.questions + data.test.questions
        pictures = data.pictures.load(backbone.shape.image_size)
        if count > 1:
            pictures = views(pictures, count, data.view_seeds(site.seed)).flatten(0, 1)
        return make(depth, pictures, questions)

    return site.derive(("cache", make.__qualname__, tuple(sorted(depth.items())), count), freeze)
