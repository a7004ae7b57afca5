"""A wrapper that behaves like the backbone below it, except for the methods that a subclass overrides."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from medfedvqa.devices import Precision
from medfedvqa.models.backbone import (
    Backbone,
    BackboneShape,
    Cache,
    Depth,
    Features,
    Regions,
    TokenEmbeddings,
    Tuning,
)
from medfedvqa.models.picture_space import FeatureStore, Rows
from medfedvqa.models.picture_stream import PictureStream


@dataclass(frozen=True, eq=False, kw_only=True)
class BackboneOn(Backbone):
    """The backbone `below`, under a name, a shape and a digest of its own."""

    name: str
    below: Backbone
    shape: BackboneShape
    digest: str
    seen: tuple[str, ...] | None
    channels: int

    @classmethod
    def on(cls, below: Backbone, name: str, shape: BackboneShape, what: str, **more: Any) -> Self:
        """A backbone of this name and shape. `what` describes the addition, for the digest; `more`: subclass fields."""
        digest = hashlib.sha256(f"{below.digest} {what}".encode()).hexdigest()
        return cls(name=name, below=below, shape=shape, digest=digest, seen=below.seen, channels=below.channels, **more)

    @property
    def device(self) -> torch.device:
        return self.below.device

    def parameter(self, name: str) -> torch.Tensor:
        return self.below.parameter(name)

    def cache(self, depth: Depth, pictures: torch.Tensor, questions: Sequence[str]) -> Cache:
        return self.below.cache(depth, pictures, questions)

    def cache_of(self, depth: Depth, pictures: PictureStream, questions: Sequence[str]) -> Cache:
        return self.below.cache_of(depth, pictures, questions)

    def storing(self, store: FeatureStore | None) -> Self:
        return replace(self, below=self.below.storing(store))

    def computing(self, precision: Precision) -> Self:
        return replace(self, below=self.below.computing(precision))

    def features(self, batch: Any, tuning: Tuning, join: Features = "concat") -> torch.Tensor:
        return self.below.features(batch, tuning, join)

    def attention(self, batch: Any, tuning: Tuning) -> torch.Tensor:
        return self.below.attention(batch, tuning)

    def places(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.below.places(pictures)

    def places_of(self, pictures: PictureStream) -> Rows:
        return self.below.places_of(pictures)

    def regions_of(self, pictures: PictureStream) -> Callable[[torch.Tensor], Regions]:
        return self.below.regions_of(pictures)

    def words(self, texts: Sequence[str], tokens: int) -> TokenEmbeddings:
        return self.below.words(texts, tokens)
