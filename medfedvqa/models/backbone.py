"""What a method sees of a backbone: pictures and questions in, features out, and places where it can be tuned.

A trunk is one module here that implements `Backbone`, and its shape; CLIP has two towers that meet in the head, ViLT
has one for both. A trunk with co-attention (MCAN, BAN, BUTD) has two towers whose blocks look at each other: its cache,
made with the depth of both, keeps a tower only up to where anything tuned in the other comes in; a row is then an item
of its own, as in ViLT. Regions or grids of a picture, and a recurrent reader, are the parts below the blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import torch
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models.prompts import JoinedPrompts

Features = Literal["concat", "product"]
"""`concat`: the towers' features side by side; `product` adds their product in a space that they have in common."""

Depth = Mapping[str, int]
"""By tower, how many of its last blocks something is tuned in: 0 for none, layers + 1 for the embedding as well."""

NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True)
class TowerShape:
    """One transformer: its number of blocks, the width of a token, the number of attention heads."""

    layers: int
    width: int
    heads: int
    blocks: str = field(default="", compare=False)
    """The name of its list of blocks within the backbone's module."""
    queries_values: tuple[tuple[str, int, int], ...] = field(default=(), compare=False)
    """Within a block, the weights that make queries and values: name, first row, end of rows."""


@dataclass(frozen=True)
class BackboneShape:
    """What can be said of a backbone without its weights. `embed` is the width of the towers' common space, 0 if
    there is none; `image_size` in pixels, `context` in tokens."""

    towers: Mapping[str, TowerShape]
    embed: int
    image_size: int
    context: int
    words: int = field(default=0, compare=False)
    """The width of a token's embedding; 0 if the backbone gives none."""
    build: Callable[[], nn.Module] = field(default=nn.Module, compare=False, repr=False)
    """The module with any weights: only names and shapes are taken from it."""
    aside: tuple[str, ...] = field(default=(), compare=False)
    """Parameters that features do not depend on."""

    @property
    def width(self) -> int:
        """Of the features, side by side."""
        return sum(tower.width for tower in self.towers.values())

    @cached_property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the parameters that features depend on, by name."""
        with torch.device("meta"):
            module = self.build()
        return {name: tuple(p.shape) for name, p in module.named_parameters() if name not in self.aside}

    def block(self, tower: str, index: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of one block, by full name."""
        start = f"{self.towers[tower].blocks}.{index}."
        return {name: shape for name, shape in self.parameters.items() if name.startswith(start)}


@dataclass(frozen=True)
class Update:
    """What low-rank matrices add to the projections of a block's normalised states, each [..., width] to [..., width].

    It is a path beside the frozen layer, not a sum of weights, so that each matrix is used where a layer is.
    """

    queries: Callable[[torch.Tensor], torch.Tensor]
    values: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Tuning:
    """What stands beside a frozen backbone in one forward pass; its tensors may require gradients."""

    prompts: Mapping[str, JoinedPrompts] = field(default_factory=dict)
    """By tower, for its last blocks."""
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """In the place of the backbone's own, by name."""
    adapters: Mapping[str, Mapping[int, Callable[[torch.Tensor], torch.Tensor]]] = field(default_factory=dict)
    """By tower and block, from 0: applied to what the block gives, [..., width]."""
    updates: Mapping[str, Mapping[int, "Update"]] = field(default_factory=dict)
    """By tower and block, from 0: added to the block's queries and values."""


@dataclass(frozen=True)
class TokenEmbeddings:
    """Some texts as tokens, before any of the backbone's blocks."""

    values: torch.Tensor
    """The frozen embeddings, [texts, tokens, width], zeros beyond a text's end."""
    present: torch.Tensor
    """bool [texts, tokens]."""


def looked_at(
    queries: torch.Tensor, keys: torch.Tensor, patches: int, visible: torch.Tensor | None = None
) -> torch.Tensor:
    """How much of its attention each position gives to each of the last keys, a picture's: [items, positions, patches].

    Queries and keys are [items, heads, positions, width]; a mean over heads. `visible`: which keys may be looked at,
    broadcast to the scores.
    """
    scores: torch.Tensor = queries @ keys.transpose(-2, -1) * queries.shape[-1] ** -0.5
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    return scores.softmax(dim=-1).mean(dim=1)[..., -patches:]


class Batch(Protocol):
    """Rows of a site as one kind of backbone takes them; made by its cache."""

    @property
    def answers(self) -> torch.Tensor:
        """int64 [rows]."""

    @property
    def owners(self) -> Mapping[str, torch.Tensor | None]:
        """By tower, whose each of its items is, int64 [items], if the batch was gathered with owners."""


class Cache(Protocol):
    """What a site computes once: the part of a backbone below everything that is tuned, for all its rows.

    It is derived from the site's data, as personal as the data itself, and stays where they are.
    """

    def question_ids(self, questions: Sequence[str]) -> torch.Tensor:
        """The cache's numbers of these questions, int64 [rows]. Raises `ConfigError` if one was never given."""

    def batch(
        self,
        pictures: torch.Tensor,
        questions: torch.Tensor,
        answers: torch.Tensor,
        owners: torch.Tensor | None = None,
    ) -> Any:
        """Rows as a `Batch`; all arguments int64 [rows], `questions` from `question_ids`.

        With `owners` (0, 1, ... in this batch; a patient each), no item is shared by two owners, so that each owner
        can have prompts of its own.
        """


class Architecture(Protocol):
    """What an entry point of `medfedvqa.backbones` names: a kind of backbone from outside, in jobs `NAME@label`."""

    def shape(self) -> BackboneShape:
        """The shape, without any file: server and sites agree by it on what travels."""

    def load(self, name: str, path: Path, device: str) -> "Backbone":
        """The backbone of this name from the file or folder that the site gives. Raises `BackboneError`."""


class Backbone(ABC):
    """A network that never changes: float32, in evaluation mode, without gradients."""

    name: str
    shape: BackboneShape
    seen: tuple[str, ...] | None
    """Data sets that the weights were trained on; None where that is not known."""
    digest: str
    """SHA-256 over the weights as used, in hexadecimal."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the weights are."""

    @abstractmethod
    def parameter(self, name: str) -> torch.Tensor:
        """A weight as it is, frozen."""

    @abstractmethod
    def cache(self, depth: Depth, pictures: torch.Tensor, questions: Sequence[str]) -> Cache:
        """`pictures`: grey, float32 [pictures, 1, size, size] in 0..1; `questions`: of all rows, repeated or not.

        Raises `ConfigError` if the pictures have another size, or a tower fewer blocks than `depth` says.
        """

    @abstractmethod
    def features(self, batch: Any, tuning: Tuning, join: Features = "concat") -> torch.Tensor:
        """Features of the rows of a batch, [rows, width]. Raises `ConfigError` where there is no common space."""

    @abstractmethod
    def attention(self, batch: Any, tuning: Tuning) -> torch.Tensor:
        """How much of the last block's attention to the picture each of its patches has, [rows, patches], line by line.

        A mean over attention heads; the weights of a row sum to 1. Raises `ConfigError` for a batch of a cache that
        holds features, since nothing is tuned in the blocks, and for a picture that no position stands for.
        """

    def words(self, texts: Sequence[str], tokens: int) -> TokenEmbeddings:
        """The first tokens of each text. Raises `ConfigError` if the backbone gives no embeddings of tokens."""
        raise ConfigError("this backbone gives no embeddings of single tokens: choose another")
