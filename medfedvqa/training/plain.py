"""Gradients of batches, without differential privacy."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, islice

import torch

from medfedvqa.data import Examples, batches
from medfedvqa.errors import ConfigError
from medfedvqa.models import Values
from medfedvqa.training.config import TrainingConfig
from medfedvqa.training.rows import RowLoss, SiteRows
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
        """The batches of an epoch. None follows the last: the order of another epoch is not drawn yet."""
        order = list(batches(self.train, self.config.batch_rows, chance.generator))
        return zip(order, [*order[1:], None], strict=True)

    def fill(self, values: Values, loss: RowLoss, batch: StepRows) -> Values:
        """Sets each value's gradient; there is no noise. Raises `ConfigError` for one that has no part in the loss."""
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
