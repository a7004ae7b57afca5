"""The options of local training that all methods have, and the optimiser that follows from them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from privacy import DPSettings

Optimizer = Literal["adam", "adamw", "sgd"]


@dataclass(frozen=True)
class TrainingConfig:
    """The options of local training. `AloneConfig` documents each field."""

    local_epochs: int
    local_unit: Literal["epochs", "batches"]
    batch_rows: int
    views: int
    optimizer: Optimizer
    learning_rate: float
    decay: float
    decay_every: int
    weight_decay: float

    def private_steps(self, settings: DPSettings) -> int:
        """The steps of one round under differential privacy. In an epoch, each patient takes part once on average."""
        if self.local_unit == "batches":
            return self.local_epochs
        return max(1, round(self.local_epochs / settings.sample_rate))

    def make(self, values: Iterable[torch.Tensor], round: int) -> torch.optim.Optimizer:
        """An optimiser without memory of earlier rounds."""
        rate = self.learning_rate * self.decay ** ((round - 1) // self.decay_every)
        parameters = list(values)
        match self.optimizer:
            case "adam":
                return torch.optim.Adam(parameters, rate, weight_decay=self.weight_decay)
            case "adamw":
                return torch.optim.AdamW(parameters, rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=self.weight_decay)
