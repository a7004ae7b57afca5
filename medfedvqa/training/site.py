"""A site's side of training: its data, backbone, device and randomness, and the options that all methods have."""

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch

from medfedvqa.data import SiteData
from medfedvqa.models import Backbone, PictureSpace
from privacy import DPSettings, Randomness, SecureRandomness

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


Derived = TypeVar("Derived")


@dataclass(frozen=True)
class Site:
    """The site's data, backbone and randomness, for handlers of tasks."""

    name: str
    data: SiteData
    backbone: Backbone
    device: str
    seed: int
    randomness: Randomness = field(default_factory=SecureRandomness, repr=False)
    """The source of the noise of differential privacy. No seed of a job reaches it."""
    secret: bytes = field(default=b"", repr=False)
    """A secret that seeds of tasks depend on besides the job's seed. In a job on shares without differential privacy it
    is the site's own, so that no other job repeats an upload. In all other jobs it is empty: they can be repeated."""
    space: PictureSpace = field(default_factory=PictureSpace, repr=False)
    """The store of pictures and of the backbone's outputs for them; without bounds by default."""
    _derived: dict[object, Any] = field(default_factory=dict, repr=False)

    def derive(self, key: object, make: Callable[[], Derived]) -> Derived:
        """A cached value that depends on data and backbone alone. It is never part of the state."""
        if key not in self._derived:
            self._derived[key] = make()
        value: Derived = self._derived[key]
        return value

    def task_seed(self, task: str, round: int) -> int:
        """The seed of one task: the same at every run of the task, and on any machine if the site has no `secret`."""
        digest = hashlib.sha256(self.secret + f"{self.seed}/{self.name}/{task}/{round}".encode()).digest()
        return int.from_bytes(digest[:6], "big")
