"""The model with which a site answers new questions after a job."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from medfedvqa.data import Examples
from medfedvqa.models import AnswerModel, Depth, Values
from medfedvqa.training import Rows, Site, SiteRows

TESTED = "tested"
"""The key in the state after `evaluate` of the message that the site tested with, as tensors by name. It never leaves:
the site rebuilds the tested model from it."""


@dataclass(frozen=True)
class Answering:
    """A trained model and the answers that it chooses from."""

    model: AnswerModel
    values: Values
    answers: tuple[str, ...]
    beside: tuple["Answering", ...] = ()
    """Other models with the same answers, which answer together with this one."""

    @torch.no_grad()
    def probabilities(self, site: Site, examples: Examples) -> torch.Tensor:
        """The probability of each answer to each row, float [rows, answers]. The rows' recorded answers are not used.

        An ensemble averages the models' softmax outputs. Nothing calibrates them.
        """
        rows = self._rows(site, examples, self.model.depth)
        own = self.model.logits(self.values, rows.batch).softmax(dim=1).cpu()
        others = [each.probabilities(site, examples) for each in self.beside]
        return torch.stack([own, *others]).mean(dim=0) if others else own

    @torch.no_grad()
    def attention(self, site: Site, examples: Examples) -> torch.Tensor:
        """The attention to each part of each row's picture, [rows, parts]; see `AnswerModel.attention`."""
        # Attention is computed in the last block, so the cache must end below it.
        depth = {tower: max(1, depth) for tower, depth in self.model.depth.items()}
        return self.model.attention(self.values, self._rows(site, examples, depth).batch)

    def _rows(self, site: Site, examples: Examples, depth: Depth) -> Rows:
        """All rows of `examples`, without augmentation."""
        rows = SiteRows(site, self.model, depth, 1, self.answers)
        return rows.rows(rows.encoded(examples), torch.arange(len(examples)))


def together(models: Sequence[Answering]) -> Answering:
    """Joins models with the same answers into an ensemble, whose `attention` is the first model's."""
    first, *rest = models
    return replace(first, beside=tuple(rest)) if rest else first
