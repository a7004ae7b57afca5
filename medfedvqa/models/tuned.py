"""A VQA model as a function of its trained values: tuned parts of a frozen backbone, and an answer head."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from medfedvqa.errors import ConfigError
from medfedvqa.models.answer_head import DOWN, NORM, AnswerBatch, AnswerCache, HeadConfig
from medfedvqa.models.backbone import Backbone, BackboneShape, Cache, Components, Depth, Features, Tuning
from medfedvqa.models.picture_stream import PictureStream, streamed
from medfedvqa.models.tuning import TuningConfig, Values
from privacy import Chance


class AnswerModel(ABC):
    """The model that a method trains, without its values, so that a teacher is the same model with other values.

    The names of the answer head's values begin with `HEAD`.
    """

    @property
    @abstractmethod
    def depth(self) -> Depth:
        """The depth of the tuned parts in the backbone, by tower; empty for a model without a tuned backbone."""

    @property
    def jumps(self) -> bool:
        """Whether the gradient jumps somewhere, at a maximum for example. That of ReLU does not in private steps."""
        return False

    @property
    def image_size(self) -> int | None:
        """The side of the pictures that the cache takes, pixels; None: the backbone's."""
        return None

    @property
    def cache_key(self) -> str:
        """A key for sharing caches: models with the same key and depth make the same cache of a site."""
        return type(self).__name__

    @abstractmethod
    def cache(self, depth: Depth, pictures: torch.Tensor | PictureStream, questions: Sequence[str]) -> Cache:
        """The cache of a site's rows, see `Backbone.cache`. `pictures` have the `image_size`."""

    @abstractmethod
    def initial(self, generator: torch.Generator, head: torch.Generator) -> Values:
        """Values before the first step. `head` draws those of the head."""

    @abstractmethod
    def features(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        """The rows' features from the model's trained parts, [rows, width]. Some methods compare them."""

    @abstractmethod
    def answer(
        self, values: Mapping[str, torch.Tensor], features: torch.Tensor, batch: Any, chance: Chance | None = None
    ) -> torch.Tensor:
        """Features [rows, width] of a batch to logits [rows, answers]. Dropout draws from `chance`; none without it."""

    def logits(self, values: Mapping[str, torch.Tensor], batch: Any, chance: Chance | None = None) -> torch.Tensor:
        """The logits of a batch's rows, [rows, answers]."""
        return self.answer(values, self.features(values, batch), batch, chance)

    @abstractmethod
    def attention(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        """The attention to each part of each row's picture, [rows, parts], in row-major order; each row sums to 1."""


@dataclass(frozen=True)
class TunedModel(AnswerModel):
    """A frozen backbone, tuned, with an answer head. `TuningConfig` and `HeadConfig` define the values' names."""

    backbone: Backbone
    tuning: TuningConfig
    head: HeadConfig
    join: Features = "concat"
    """The features: those of all towers; `product` adds their product in CLIP's common space."""
    shared: Mapping[str, torch.Tensor] | None = None
    """Other sites' prompts that join the model's own, by name. They are constants."""

    @property
    def shape(self) -> BackboneShape:
        """The shape of the part of the backbone that the model uses."""
        return self.backbone.shape

    @property
    def depth(self) -> Depth:
        return self.tuning.depth(self.shape)

    @property
    def cache_key(self) -> str:
        return f"{super().cache_key}{' with places' if self._looks else ''}"

    def cache(self, depth: Depth, pictures: torch.Tensor | PictureStream, questions: Sequence[str]) -> AnswerCache:
        pictures = streamed(pictures)
        places = self.backbone.places_of(pictures) if self._looks else None
        return AnswerCache(self.backbone.cache_of(depth, pictures, questions), questions, places, self.backbone.device)

    @property
    def _looks(self) -> bool:
        """Whether the head looks at the places of a picture."""
        return self.head.fusion == "attend"

    def initial(self, generator: torch.Generator, head: torch.Generator) -> Values:
        """Initial values. Those of the head's linear layers are uniform in +-1/sqrt(inputs), like torch's default."""
        shape, device = self.shape, self.backbone.device
        values = self.tuning.initial(shape, self.backbone, generator)
        aside = shape.embed if self.join == "product" else 0
        inputs = self.head.layers(shape, aside)
        shapes = self.head.shapes(shape, aside)
        for name, size in shapes.items():
            layer = name.split(".")[1]
            if layer == NORM:
                values[name] = torch.full(size, float(name.endswith("weight")))
                continue
            # A product of factors has the spread of a whole weight.
            factored = name.endswith(".weight") and name.removesuffix(".weight") + DOWN in shapes
            bound = (3 / size[1] if factored else 1 / inputs[layer]) ** 0.5
            values[name] = torch.empty(size).uniform_(-bound, bound, generator=head)
        return {name: value.to(device) for name, value in values.items()}

    def features(self, values: Mapping[str, torch.Tensor], batch: AnswerBatch) -> torch.Tensor:
        return self.backbone.features(batch.rows, self.tuned(values, batch), self.join)

    def tuned(self, values: Mapping[str, torch.Tensor], batch: Any) -> Tuning:
        """The tuning of the backbone by these values."""
        return self.tuning.applied(self.backbone, values, self.shared, batch.owners)

    def answer(
        self, values: Mapping[str, torch.Tensor], features: torch.Tensor, batch: Any, chance: Chance | None = None
    ) -> torch.Tensor:
        return self.head.logits(values, self.shape, features, batch, chance, self.components)

    @property
    def components(self) -> Components | None:
        """The backbone's principal components, where the head joins them."""
        return self.backbone.components if self.head.fusion == "components" else None

    def attention(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        return self.backbone.attention(batch.rows, self.tuned(values, batch))


def check_head(head: HeadConfig, tuning: TuningConfig, shape: BackboneShape, aside: int = 0) -> None:
    """Raises `ConfigError` for a head that the backbone does not allow, or that ignores a tuned part."""
    head.layers(shape, aside)
    unseen = [tower for tower, depth in tuning.depth(shape).items() if depth and not head.sees(tower)]
    if unseen:
        raise ConfigError(
            f"the answer head sees no features of the {unseen[0]} tower, so nothing tuned in it could learn: give "
            "'fusion' as other than 'text', 'question_input' as 'tower' or 'both', or tune nothing ('classifier')"
        )
