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


@dataclass(frozen=True)
class StepRows:
    """The rows of one step, int64 [rows], and the random source of its forward passes."""

    chosen: torch.Tensor
    chance: SeededChance


@dataclass(frozen=True)
class PlainGradients:
    """Mean gradients over batches of whole patients."""

    rows: SiteRows
    train: Examples
    config: TrainingConfig

    def draws(self, seed: int | SeededChance, passes: int) -> Iterator[tuple[StepRows, ...]]:
        """The batches of one round, none without rows. All passes see the same batches.

        A chance continues after its earlier draws.
        """
        if not len(self.train):
            return iter(())
        chance = seed if isinstance(seed, SeededChance) else SeededChance(seed)
        epochs = (batches(self.train, self.config.batch_rows, chance.generator) for _ in count())
        if self.config.local_unit == "batches":
            chosen: Iterator[torch.Tensor] = islice(chain.from_iterable(epochs), self.config.local_epochs)
        else:
            chosen = chain.from_iterable(islice(epochs, self.config.local_epochs))
        return ((StepRows(rows, chance),) * passes for rows in chosen)

    def fill(self, values: Values, loss: RowLoss, batch: StepRows) -> None:
        """Sets each value's gradient. Raises `ConfigError` for a value that takes no part in the loss."""
        losses = loss(values, self.rows.rows(self.train, batch.chosen, batch.chance))
        gradients = torch.autograd.grad(losses.mean(), list(values.values()), allow_unused=True)
        for value, gradient in zip(values.values(), gradients, strict=True):
            if gradient is None:
                raise ConfigError("a trained parameter took no part in the loss: leave it out of what is tuned")
            value.grad = gradient
