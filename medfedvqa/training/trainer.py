"""Local steps on named values, for every method: batches or samples, gradients, optimiser."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Any

import torch

from medfedvqa.data import Examples, batches
from medfedvqa.errors import ConfigError
from medfedvqa.models import AnswerModel, Depth, Values
from medfedvqa.training.private import Privacy, PrivateGradients
from medfedvqa.training.rows import Penalty, RowLoss, Rows, SiteRows
from medfedvqa.training.site import Site, TrainingConfig
from privacy import SeededChance

Step = tuple[torch.Tensor, torch.Tensor | None]
"""The rows of a step and of the next one of its epoch, int64 [rows] each."""


@dataclass(frozen=True)
class StepRows:
    """The rows of one step, int64 [rows], and the random source of its forward passes."""

    chosen: torch.Tensor
    chance: SeededChance
    following: torch.Tensor | None = None
    """The rows of the epoch's next step; None after its last."""


@dataclass(frozen=True)
class PlainGradients:
    """Mean gradients over batches of whole patients."""

    rows: SiteRows
    train: Examples
    config: TrainingConfig

    def draws(self, seed: int | SeededChance, passes: int) -> Iterator[tuple[StepRows, ...]]:
        """The batches of one round; none if there are no training rows. All passes see the same batches.

        If `seed` is a `SeededChance`, its sequence continues after its earlier draws.
        """
        if not len(self.train):
            return iter(())
        chance = seed if isinstance(seed, SeededChance) else SeededChance(seed)
        # The next batch is taken within an epoch alone: the order of another epoch's is drawn only when it begins.
        epochs = (self._epoch(chance) for _ in count())
        if self.config.local_unit == "batches":
            steps: Iterator[Step] = islice(chain.from_iterable(epochs), self.config.local_epochs)
        else:
            steps = chain.from_iterable(islice(epochs, self.config.local_epochs))
        return ((StepRows(rows, chance, following),) * passes for rows, following in steps)

    def _epoch(self, chance: SeededChance) -> Iterator[Step]:
        """Pairs of each batch of an epoch and the next one; None after the last, since the next epoch is not
        drawn yet.
        """
        order = list(batches(self.train, self.config.batch_rows, chance.generator))
        return zip(order, [*order[1:], None], strict=True)

    def fill(self, values: Values, loss: RowLoss, batch: StepRows) -> Values:
        """Sets each value's gradient, without noise. Raises `ConfigError` for a value that does not affect the loss."""
        rows = self.rows.rows(self.train, batch.chosen, batch.chance)
        if batch.following is not None:
            self.rows.ahead(self.train, batch.following)
        losses = loss(values, rows)
        gradients = torch.autograd.grad(losses.mean(), list(values.values()), allow_unused=True)
        for value, gradient in zip(values.values(), gradients, strict=True):
            if gradient is None:
                raise ConfigError("a trained parameter took no part in the loss: leave it out of what is tuned")
            value.grad = gradient
        return {}


logger = logging.getLogger(__name__)

CLIPPED = "clipped"
"""The key of the counts of `Trainer.clipped` in a private job's state. They have no noise and never leave."""


@dataclass(frozen=True)
class Part:
    """Values in training, with their optimiser."""

    values: Values
    optimizer: torch.optim.Optimizer

    def trained(self) -> Values:
        """The current values, detached from their gradients."""
        return {name: value.detach().clone() for name, value in self.values.items()}

    def step(self) -> None:
        """One step of the optimiser, which clears the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def copied(values: Mapping[str, torch.Tensor]) -> Values:
    """Copies of these values, to train."""
    return {name: value.detach().clone().requires_grad_() for name, value in values.items()}


class Trainer:
    """Trains and applies a model's values on one site's rows. It has no state beyond the backbone's cache."""

    def __init__(
        self,
        site: Site,
        model: AnswerModel,
        config: TrainingConfig,
        answers: tuple[str, ...] | None = None,
        privacy: Privacy | None = None,
        depth: Depth | None = None,
    ) -> None:
        """`answers`: the model's answer space; None means the site's own. Training rows outside of it are left out.

        `privacy`: train under differential privacy by patient. `depth`: the cache's depth, if other models than
        `model` see the rows as well.
        """
        self.site, self.model, self.config = site, model, config
        self._rows = SiteRows(site, model, depth or model.depth, config.views, answers)
        self.train_rows = self._rows.encoded(site.data.train).answered
        self._gradients = (
            PlainGradients(self._rows, self.train_rows, config)
            if privacy is None
            else PrivateGradients(
                site, self._rows, self.train_rows, config, replace(privacy, jumps=privacy.jumps or model.jumps)
            )
        )

    def train(
        self,
        start: Mapping[str, torch.Tensor],
        loss: RowLoss,
        round: int,
        seed: int,
        penalty: Penalty | None = None,
        memory: Mapping[str, Any] | None = None,
    ) -> Part:
        """One round's local steps from `start`. `memory`: the optimiser's state after the last round."""
        part = self.part(start, round, memory)
        for (draw,) in self.draws(seed):
            self.step([part], loss, draw, penalty)
        return part

    def part(self, start: Mapping[str, torch.Tensor], round: int, memory: Mapping[str, Any] | None = None) -> Part:
        """A copy of these values to train in this round. `memory`: the optimiser's state after the last round."""
        values = copied(start)
        return Part(values, self.config.make(values.values(), round, memory))

    def draws(self, seed: int | SeededChance, passes: int = 1) -> Iterator[tuple[Any, ...]]:
        """The draws of one round: for each step a tuple of `passes` draws, one for each model that takes the step.

        `seed` orders the rows and seeds dropout in plain training. A round that draws in parts passes a `SeededChance`.
        """
        if outside := len(self.site.data.train) - len(self.train_rows):
            logger.info("%d training rows are left out: the answer space does not hold their answers", outside)
        return self._gradients.draws(seed, passes)

    def step(self, parts: Sequence[Part], loss: RowLoss, draw: Any, penalty: Penalty | None = None) -> Values:
        """One step of these parts, which share no names; returns the result of `fill`: noisy sums, or empty in plain
        training. Raises `ConfigError`."""
        values = {name: value for part in parts for name, value in part.values.items()}
        noisy = self._gradients.fill(values, loss, draw)
        if penalty is not None:
            torch.autograd.backward(penalty(values))
        for part in parts:
            part.step()
        return noisy

    def clipped(self, before: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The counts of `PrivateGradients.clipped`, added to those in the state `before`; nothing in plain training."""
        if isinstance(self._gradients, PlainGradients):
            return {}
        return {CLIPPED: before.get(CLIPPED, 0) + self._gradients.clipped}

    @torch.no_grad()
    def right(
        self, values: Mapping[str, torch.Tensor], examples: Examples, model: AnswerModel | None = None, first: int = 1
    ) -> torch.Tensor:
        """Whether the model, or another `model`, with these values answers each row right, bool [rows].

        `first`: a row counts as right if its answer is among the `first` highest logits.
        """
        model, encoded = model or self.model, self._rows.encoded(examples)
        right = torch.zeros(len(examples), dtype=torch.bool)
        if not len(examples):
            return right
        for part in torch.split(torch.arange(len(examples)), self.config.batch_rows):
            rows = self._rows.rows(encoded, part)
            logits = model.logits(values, rows.batch)
            best = logits.argmax(1, keepdim=True) if first == 1 else logits.topk(min(first, logits.shape[1])).indices
            right[part] = best.eq(rows.answers[:, None]).any(dim=1).cpu()
        return right

    def all_rows(self, examples: Examples) -> Rows:
        """All these rows as one batch, without augmentation."""
        return self._rows.rows(self._rows.encoded(examples), torch.arange(len(examples)))
