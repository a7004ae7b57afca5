"""A VQA model as a function of its trained values: tuned parts of a frozen backbone, and an answer head."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import Backbone, BackboneShape, Cache, Depth, Features, Tuning
from medfedvqa.models.tuning import Shapes, TuningConfig, Values
from privacy import Chance

HEAD = "head."


@dataclass(frozen=True)
class HeadConfig:
    """The answer head: features to `hidden` units, ReLU, dropout, answers."""

    answers: int
    hidden: int = 512
    dropout: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1 or self.hidden < 1:
            raise ConfigError("dropout lies in [0, 1), and the head's hidden width is positive")

    def shapes(self, width: int) -> Shapes:
        """The shapes of the head's weights, for features of this width."""
        return {
            f"{HEAD}hidden.weight": (self.hidden, width),
            f"{HEAD}hidden.bias": (self.hidden,),
            f"{HEAD}answers.weight": (self.answers, self.hidden),
            f"{HEAD}answers.bias": (self.answers,),
        }


class AnswerModel(ABC):
    """The model that a method trains, without its values: a teacher is the same model with other values.

    The names of the answer head's values begin with `HEAD`.
    """

    @property
    @abstractmethod
    def depth(self) -> Depth:
        """The depth of the tuned parts in the backbone, by tower; empty for a model without a tuned backbone."""

    @abstractmethod
    def cache(self, depth: Depth, pictures: torch.Tensor, questions: Sequence[str]) -> Cache:
        """The cache of a site's rows, see `Backbone.cache`. `pictures` have the backbone's size."""

    @abstractmethod
    def initial(self, generator: torch.Generator, head: torch.Generator) -> Values:
        """Values before the first step. `head` draws those of the head."""

    @abstractmethod
    def features(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        """The inputs of the answer head, [rows, width]."""

    @abstractmethod
    def answer(
        self, values: Mapping[str, torch.Tensor], features: torch.Tensor, chance: Chance | None = None
    ) -> torch.Tensor:
        """Features [rows, width] to logits [rows, answers]. Dropout applies only with a chance to draw from."""

    def logits(self, values: Mapping[str, torch.Tensor], batch: Any, chance: Chance | None = None) -> torch.Tensor:
        """The logits of a batch's rows, [rows, answers]."""
        return self.answer(values, self.features(values, batch), chance)

    @abstractmethod
    def attention(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        """The attention to each part of each row's picture, [rows, parts], line by line; a row sums to 1."""


@dataclass(frozen=True)
class TunedModel(AnswerModel):
    """A frozen backbone, tuned, with an answer head. Values are named as `TuningConfig` and `HeadConfig` name them."""

    backbone: Backbone
    tuning: TuningConfig
    head: HeadConfig
    join: Features = "concat"
    """The inputs of the head: all towers' features; `product` adds their product in CLIP's common space."""
    shared: Mapping[str, torch.Tensor] | None = None
    """Other sites' prompts that join the model's own, by name. They are constants."""

    @property
    def shape(self) -> BackboneShape:
        """The shape of the part of the backbone that the model uses."""
        return self.backbone.shape

    @property
    def depth(self) -> Depth:
        return self.tuning.depth(self.shape)

    def cache(self, depth: Depth, pictures: torch.Tensor, questions: Sequence[str]) -> Cache:
        return self.backbone.cache(depth, pictures, questions)

    def initial(self, generator: torch.Generator, head: torch.Generator) -> Values:
        """Initial values. Those of the head are uniform in +-1/sqrt(inputs), like torch's default."""
        shape, device = self.shape, self.backbone.device
        values = self.tuning.initial(shape, self.backbone, generator)
        inputs = {"hidden": joined_width(shape, self.join), "answers": self.head.hidden}
        for name, size in self.head.shapes(inputs["hidden"]).items():
            bound = inputs[name.split(".")[1]] ** -0.5
            values[name] = torch.empty(size).uniform_(-bound, bound, generator=head)
        return {name: value.to(device) for name, value in values.items()}

    def features(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        return self.backbone.features(batch, self.tuned(values, batch), self.join)

    def tuned(self, values: Mapping[str, torch.Tensor], batch: Any) -> Tuning:
        """These values as the backbone takes them."""
        return self.tuning.applied(self.backbone, values, self.shared, batch.owners)

    def answer(
        self, values: Mapping[str, torch.Tensor], features: torch.Tensor, chance: Chance | None = None
    ) -> torch.Tensor:
        hidden = F.linear(features, values[f"{HEAD}hidden.weight"], values[f"{HEAD}hidden.bias"]).relu()
        hidden = dropped(hidden, self.head.dropout, chance)
        return F.linear(hidden, values[f"{HEAD}answers.weight"], values[f"{HEAD}answers.bias"])

    def attention(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        return self.backbone.attention(batch, self.tuned(values, batch))


def dropped(rows: torch.Tensor, share: float, chance: Chance | None) -> torch.Tensor:
    """Dropout of numbers with probability `share`, with the others scaled up. Without a chance nothing changes."""
    if chance is None or not share:
        return rows
    return rows * (chance.uniform(rows.shape).to(rows.device) >= share) / (1 - share)


def joined_width(shape: BackboneShape, join: Features) -> int:
    """The width of the features that the head sees."""
    return shape.width + (shape.embed if join == "product" else 0)
