"""The options of local training that all methods have, and the optimiser that follows from them."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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

    def make(
        self, values: Iterable[torch.Tensor], round: int, memory: Mapping[str, Any] | None = None
    ) -> torch.optim.Optimizer:
        """The optimiser of a round. `memory`: its state after an earlier round, of values in the same order."""
        rate = self.learning_rate * self.decay ** ((round - 1) // self.decay_every)
        optimizer = self._new(list(values), rate)
        if memory:
            optimizer.load_state_dict(copy.deepcopy(dict(memory)))  # torch would share its tensors and change them
            optimizer.param_groups[0]["lr"] = rate
        return optimizer

    def _new(self, parameters: list[torch.Tensor], rate: float) -> torch.optim.Optimizer:
        match self.optimizer:
            case "adam":
                return torch.optim.Adam(parameters, rate, weight_decay=self.weight_decay)
            case "adamw":
                return torch.optim.AdamW(parameters, rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=self.weight_decay)
