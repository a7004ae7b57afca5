"""Sites whose rows are pictures with captions: they learn to find them, and are tested by retrieval."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F

from audits import Tensors
from medfedvqa.core.averaging import Averaging, AveragingConfig
from medfedvqa.core.method import Answering, Probe, State, tensors_of
from medfedvqa.data import Examples, SiteData, fold
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.accuracy import FIRST
from medfedvqa.models import HEAD, IMAGE, TEXT, PairedModel, Values
from medfedvqa.training import RowLoss, Rows, Site, Trainer

# Retrieval between pictures and captions: the ranks of partners among the results.


def found_first(cosines: torch.Tensor, captions: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many pictures, and how many captions, rank their partner among the first 1, 5 and 10.

    `cosines`: [pictures, captions]; `captions`: the number of each picture's caption, int64 [pictures]. Among equal
    cosines, the right one ranks last.
    """
    right = F.one_hot(captions, cosines.shape[1]).bool()
    places = places_of_right(cosines, right), places_of_right(cosines.T, right.T)
    to_text, to_image = (tuple(int((place < first).sum()) for first in FIRST) for place in places)
    return to_text, to_image


def places_of_right(scores: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The rank of each row's best right column, from 0, int64 [rows]; a row without one ranks after all columns.

    `scores`: [rows, columns]; `right`: bool of the same shape. Among equal scores, a right one ranks last.
    """
    best = scores.masked_fill(~right, -torch.inf).amax(dim=1, keepdim=True)
    return ((scores >= best) & ~right).sum(dim=1)


Config = TypeVar("Config", bound=AveragingConfig)


class CaptionSites(Averaging[Config]):
    """A method that also trains sites of captions. Such a site has projections in place of an answer head."""

    @abstractmethod
    def paired(self, site: Site) -> PairedModel:
        """The model of a site of captions. Raises `ConfigError`."""

    def check_kind(self, site: Site) -> None:
        """See `Method.check_kind`. A site of captions contrasts pairs of different patients, and answers nothing."""
        if not site.data.captioned:
            return
        if self.dp is not None:
            raise ConfigError(
                "the contrast of captions compares rows of different patients, so no single patient's part in it can "
                "be bounded: a site of captions does not train under differential privacy"
            )
        if self.config.finish_epochs:
            raise ConfigError("a site of captions has no answers to train on with 'finish_epochs': leave it out")

    def check_rows(self, data: SiteData) -> None:
        """See `Method.check_rows`. The pairs of a site of captions need no answer space."""
        if not data.captioned:
            super().check_rows(data)

    def setup(self, site: Site) -> State:
        """See `Averaging.setup`. A site of captions has no answer head. Raises `ConfigError`."""
        self.check_kind(site)
        state = super().setup(site)
        if site.data.captioned:
            state["values"] = {name: each for name, each in state["values"].items() if not name.startswith(HEAD)}
        return state

    def projection(self, site: Site) -> Values:
        """The initial projections of a site's features into the common space, by name, from the site's own seed."""
        return self.paired(site).projection(torch.Generator().manual_seed(site.task_seed("projection", 0)))

    @property
    def scores(self) -> tuple[str, ...]:
        """See `Alone.scores`; also the first-five accuracy: for a site of captions, recall@1 and recall@5."""
        return (*super().scores, "first_five")

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """See `Alone.evaluate`. Rows whose right answer, or caption, is among the first five are counted, too."""
        state, reply = super().evaluate(site, state, received, round)
        values = self.tested(site, state, tensors_of(received, site.device))
        five = self._within(5, self.trainer(site), values, site.data.test)
        return state, {**reply, "first_five": np.array(int(five.sum()), np.int64)}

    def right(self, trainer: Trainer, values: Values, examples: Examples) -> torch.Tensor:
        """See `Alone.right`. At a site of captions, whether each picture finds its own caption first."""
        return self._within(1, trainer, values, examples)

    def _within(self, first: int, trainer: Trainer, values: Values, examples: Examples) -> torch.Tensor:
        if trainer.site.data.captioned:
            return places_of_captions(trainer, self.paired(trainer.site), values, examples) < first
        return trainer.right(values, examples, first=first)

    def answering_with(self, site: Site, state: State, received: Values) -> Answering:
        """See `Alone.answering_with`. Raises `ConfigError` at a site of captions."""
        if site.data.captioned:
            raise ConfigError("a site of captions has no answer head: there is no model to ask")
        return super().answering_with(site, state, received)

    def probe(self, site: Site, state: State, received: Tensors) -> Probe:
        """See `Method.probe`. Raises `ConfigError` at a site of captions."""
        if site.data.captioned:
            raise ConfigError("the loss of a caption compares it with other rows, so it cannot be attacked by row")
        return super().probe(site, state, received)

    def _space(self, site: Site) -> tuple[str, ...]:
        return site.data.answers if site.data.captioned else super()._space(site)


def contrast_of(similarities: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
    """The contrast of a batch's pictures and captions in both directions, halved, [rows].

    `similarities`: of each picture, a row, to each caption, [rows, rows]. Rows with the same number in `captions`,
    int64 [rows], are positives of each other.
    """
    same = (captions[:, None] == captions).to(similarities)
    positives = same / same.sum(dim=1, keepdim=True)
    to_text, to_image = (F.cross_entropy(each, positives, reduction="none") for each in (similarities, similarities.T))
    return (to_text + to_image) / 2


def similarities(model: PairedModel, values: Values, rows: Rows, temperature: float) -> torch.Tensor:
    """The cosines of the rows' pictures to their captions in the common space, over the temperature, [rows, rows]."""
    both = model.represent(values, rows.batch)
    return both[IMAGE] @ both[TEXT].T / temperature


def pair_losses(model: PairedModel, temperature: float) -> RowLoss:
    """The contrast of each row's picture and caption with the others of its batch, in the common space."""

    def loss(values: Values, rows: Rows) -> torch.Tensor:
        return contrast_of(similarities(model, values, rows, temperature), rows.answers)

    return loss


@torch.no_grad()
def places_of_captions(
    trainer: Trainer, model: PairedModel, values: Mapping[str, torch.Tensor], examples: Examples
) -> torch.Tensor:
    """The place of each row's caption among the distinct captions of all these rows, from 0, int64 [rows]."""
    captions = numbers(tuple(map(fold, examples.questions)))
    if not len(examples):
        return captions.long()
    batches = torch.split(torch.arange(len(examples)), trainer.config.batch_rows)
    parts = [model.represent(values, trainer.all_rows(examples.chosen(rows)).batch) for rows in batches]
    image, text = (torch.cat([part[modality] for part in parts]).cpu() for modality in (IMAGE, TEXT))
    firsts = {caption: row for row, caption in reversed([*enumerate(captions.tolist())])}
    cosines = image @ text[[firsts[caption] for caption in range(len(firsts))]].T
    return places_of_right(cosines, F.one_hot(captions, len(firsts)).bool())


def numbers(captions: tuple[str, ...]) -> torch.Tensor:
    """The number of each caption, int64 [items]; equal captions have the same number."""
    numbers = {caption: number for number, caption in enumerate(dict.fromkeys(captions))}
    return torch.tensor([numbers[caption] for caption in captions])
