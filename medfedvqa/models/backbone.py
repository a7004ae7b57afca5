"""The interface of a backbone: pictures and questions in, features out, and the places where it can be tuned.

Each backbone is one module that implements `Backbone` and gives its shape. CLIP has two towers that meet in the head;
ViLT has one for both. A trunk of the literature (`trunks`) is one tower on another backbone's frozen outputs: the grid
of a picture and the embeddings of a question's words. It is tuned as a whole, so its cache ends below it.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from medfedvqa.backbone_names import NO_BACKBONE, NO_REGIONS
from medfedvqa.devices import Precision
from medfedvqa.errors import BackboneError, ConfigError
from medfedvqa.models.picture_space import FeatureStore, Rows
from medfedvqa.models.picture_stream import PictureStream
from medfedvqa.models.prompts import JoinedPrompts

Features = Literal["concat", "product"]
"""`concat`: the towers' features side by side; `product` adds their product in the towers' common space."""

Depth = Mapping[str, int]
"""The number of each tower's last blocks with tuned parts: 0 for none, layers + 1 for the embedding as well."""

CONSTANT, ROW_LENGTH = 0.5, 8.0
"""The constant beside principal components, as a multiple of the question's length, and the length of a row of their
products. With a larger constant, most of a clipped gradient would go to it; this length fits rates and clips of 1."""

NOTHING: Mapping[Any, Any] = MappingProxyType({})
NOTHING_TO_TUNE = (
    "with 'none' as the backbone there is nothing to tune: name a backbone, or a 'network' of a method that trains one"
)


@dataclass(frozen=True)
class TowerShape:
    """One transformer: its number of blocks, the width of a token, the number of attention heads."""

    layers: int
    width: int
    heads: int
    blocks: str = field(default="", compare=False)
    """The name of its list of blocks within the backbone's module."""
    queries_values: tuple[tuple[str, int, int], ...] = field(default=(), compare=False)
    """The weights in a block that make queries and values: name, first row, end of rows."""
    features: int = 0
    """The width of the tower's features; 0 if it is the width of a token."""
    names: tuple[str, ...] = field(default=(), compare=False)
    """The names of its blocks if they are in several lists, as for convolutions or several encoders."""
    widths: tuple[int, ...] = ()
    """The channels of each block's output in such a tower, which has no heads and takes no prompts."""
    by_block: tuple[tuple[tuple[str, int, int, int], ...], ...] = field(default=(), compare=False)
    """If blocks differ, the weights of each block with low-rank updates: name, first row, end of rows, inputs."""

    def low_rank(self, block: int) -> tuple[tuple[str, int, int, int], ...]:
        """The weights in a block with low-rank updates: name, first row, end of rows, inputs."""
        if self.by_block:
            return self.by_block[block]
        return tuple((*part, self.width) for part in self.queries_values)

    def block_name(self, block: int) -> str:
        """The name of a block within the backbone's module."""
        return self.names[block] if self.names else f"{self.blocks}.{block}"


@dataclass(frozen=True)
class BackboneShape:
    """The facts of a backbone without its weights.

    `embed` is the width of the towers' common space, 0 if there is none; `image_size` counts pixels, `context` tokens.
    """

    towers: Mapping[str, TowerShape]
    embed: int
    image_size: int
    context: int
    words: int = field(default=0, compare=False)
    """The width of a token's embedding; 0 if the backbone gives none."""
    build: Callable[[], nn.Module] = field(default=nn.Module, compare=False, repr=False)
    """Builds the module with arbitrary weights, for its names and shapes."""
    aside: tuple[str, ...] = field(default=(), compare=False)
    """Parameters that features do not depend on."""
    listed: Mapping[str, tuple[int, ...]] | None = field(default=None, compare=False, repr=False)
    """The shapes of the parameters from a shape card, without a module to build; None without a card."""
    regions: tuple[int, int] = field(default=NO_REGIONS, compare=False)
    """The most regions of a picture and their width, if they come from files."""
    components: tuple[int, int] = field(default=(0, 0), compare=False)
    """The numbers of principal components of pictures and of questions that come with the weights."""

    @property
    def width(self) -> int:
        """The width of the features, side by side."""
        return sum(tower.features or tower.width for tower in self.towers.values())

    @cached_property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the parameters that features depend on, by name."""
        if self.listed is not None:
            return self.listed
        with torch.device("meta"):
            module = self.build()
        return {name: tuple(p.shape) for name, p in module.named_parameters() if name not in self.aside}

    def block(self, tower: str, index: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of one block, by full name."""
        start = f"{self.towers[tower].block_name(index)}."
        return {name: shape for name, shape in self.parameters.items() if name.startswith(start)}


@dataclass(frozen=True)
class Update:
    """The low-rank additions to the projections of a block's normalised states, each [..., width] to [..., width].

    An update is a path parallel to the frozen layer, not a sum of weights, so each matrix acts as a layer.
    """

    queries: Callable[[torch.Tensor], torch.Tensor]
    values: Callable[[torch.Tensor], torch.Tensor]


Adapters = Mapping[int, Callable[[torch.Tensor], torch.Tensor]]
"""Functions to apply to the output of blocks, [..., width], by block."""


@dataclass(frozen=True)
class TowerTuning:
    """The tuned parts in the blocks of one tower, in one forward pass. Blocks are counted from 0."""

    prompts: JoinedPrompts | None = None
    """Prompts for the last blocks."""
    adapters: Adapters = field(default_factory=dict)
    updates: Mapping[int, Update] = field(default_factory=dict)
    """Low-rank updates of the queries and values of blocks, by block."""

    def above(self, first: int) -> "TowerTuning":
        """The same tuning, with blocks counted from the block `first`. Raises `ConfigError` for a block below it."""
        if any(block < first for block in (*self.adapters, *self.updates)):
            raise ConfigError("an adapter or update belongs to a block below those that the cache was built for")
        return self.counted_from(first)

    def counted_from(self, first: int) -> "TowerTuning":
        """The tuned parts in the blocks from `first` on, counted from there. Prompts stay: they count from the last
        block.
        """
        adapters = {block - first: adapter for block, adapter in self.adapters.items() if block >= first}
        updates = {block - first: update for block, update in self.updates.items() if block >= first}
        return replace(self, adapters=adapters, updates=updates)


UNTUNED = TowerTuning()


@dataclass(frozen=True)
class Tuning:
    """The tuned parts of a frozen backbone, in one forward pass. The tensors may require gradients."""

    prompts: Mapping[str, JoinedPrompts] = field(default_factory=dict)
    """Prompts for the last blocks, by tower."""
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Weights that replace the backbone's, by name."""
    adapters: Mapping[str, Adapters] = field(default_factory=dict)
    """Adapters by tower and block."""
    updates: Mapping[str, Mapping[int, Update]] = field(default_factory=dict)
    """Low-rank updates by tower and block."""

    def tower(self, name: str) -> TowerTuning:
        """The tuned parts in the blocks of one tower."""
        return TowerTuning(self.prompts.get(name), self.adapters.get(name, NOTHING), self.updates.get(name, NOTHING))

    def call(self, function: Callable[..., torch.Tensor], network: nn.Module, *arguments: Any) -> torch.Tensor:
        """`function(network, *arguments)` with the tuned weights in place of the network's."""
        if not self.weights:
            return function(network, *arguments)
        weights = {f"network.{name}": weight for name, weight in self.weights.items()}
        result: torch.Tensor = functional_call(_Call(network, function), weights, arguments)
        return result


class _Call(nn.Module):
    """A function of a network as a module, because torch replaces weights only in calls of modules."""

    def __init__(self, network: nn.Module, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.network, self._function = network, function

    def forward(self, *arguments: Any) -> torch.Tensor:
        return self._function(self.network, *arguments)


@dataclass(frozen=True)
class TokenEmbeddings:
    """Texts as the embeddings of their tokens, before the backbone's blocks."""

    values: torch.Tensor
    """The frozen embeddings, [texts, tokens, width], with zeros beyond a text's end."""
    present: torch.Tensor
    """bool [texts, tokens]."""


@dataclass(frozen=True)
class Regions:
    """Pictures as regions, the input of trunks."""

    values: torch.Tensor
    """Their features, [pictures, regions, width]; zeros beyond a picture's last region."""
    present: torch.Tensor | None = None
    """bool [pictures, regions]; None: all are."""
    boxes: torch.Tensor | None = None
    """Left, top, right and bottom of each, [pictures, regions, 4]; None: the cells of a square grid, line by line."""


class Batch(Protocol):
    """Rows of a site as input of one kind of backbone, made by its cache."""

    @property
    def answers(self) -> torch.Tensor:
        """The answer of each row, int64 [rows]."""

    @property
    def owners(self) -> Mapping[str, torch.Tensor | None]:
        """The owner of each item, int64 [items], by tower, in a batch with owners."""


class Cache(Protocol):
    """The outputs of the frozen part of a backbone for all rows of a site, which the site computes once.

    They are as personal as the data, and stay at the site.
    """

    def question_ids(self, questions: Sequence[str]) -> torch.Tensor:
        """The cache's numbers of these questions, int64 [rows]. Raises `ConfigError` for a question that it lacks."""

    def batch(
        self,
        pictures: torch.Tensor,
        questions: torch.Tensor,
        answers: torch.Tensor,
        owners: torch.Tensor | None = None,
    ) -> Any:
        """Rows as a `Batch`; all arguments int64 [rows], `questions` from `question_ids`.

        With `owners` (one number per patient, 0, 1, ... in this batch), no two owners share an item, so each owner can
        have its own prompts.
        """


@dataclass(frozen=True)
class Components:
    """Principal components of a backbone's features on open data. They are constants: no site's data made them.

    `picture` and `question`, float32 [components, width], are orthonormal directions, the one with the largest variance
    first; the means are float32 [width].
    """

    picture_mean: torch.Tensor
    picture: torch.Tensor
    question_mean: torch.Tensor
    question: torch.Tensor

    def to(self, device: torch.device) -> "Components":
        """The same components on a device."""
        return Components(*(tensor.to(device) for tensor in vars(self).values()))

    def joined(self, picture: torch.Tensor, question: torch.Tensor, pictures: int, questions: int) -> torch.Tensor:
        """A constant, the question's first components, and their products with the picture's first components.

        `picture`, `question`: features [rows, width]. Returns [rows, 1 + questions + pictures * questions]; all have
        one length, so that no patient's gradient is long because of its features.
        """
        seen = F.normalize(F.linear(picture - self.picture_mean, self.picture[:pictures]), dim=1)
        asked = F.normalize(F.linear(question - self.question_mean, self.question[:questions]), dim=1)
        products = (seen[:, :, None] * asked[:, None, :]).flatten(1)
        constant = torch.full_like(asked[:, :1], CONSTANT)
        scale: float = ROW_LENGTH / (2 + CONSTANT**2) ** 0.5
        return torch.cat([constant, asked, products], dim=1) * scale


class Architecture(Protocol):
    """The target of an entry point of `medfedvqa.backbones`: a plug-in backbone, which jobs name `NAME@label`."""

    def shape(self) -> BackboneShape:
        """The shape, without any file. Server and sites derive the exchange from it."""

    def load(self, name: str, path: Path, device: str) -> "Backbone":
        """The backbone of this name from the file or folder that the site gives. Raises `BackboneError`."""


class Backbone(ABC):
    """A network that never changes: float32, in evaluation mode, without gradients."""

    name: str
    shape: BackboneShape
    seen: tuple[str, ...] | None
    """Data sets that the weights were trained on; None if unknown."""
    digest: str
    """SHA-256 over the weights as used, in hexadecimal."""
    channels: int = 1
    """3 if its weights were trained on colour; 1 if it takes grey pictures."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the weights."""

    @abstractmethod
    def parameter(self, name: str) -> torch.Tensor:
        """A frozen weight."""

    @abstractmethod
    def cache(self, depth: Depth, pictures: torch.Tensor, questions: Sequence[str]) -> Cache:
        """The cache of a site's rows, below the blocks that this depth of tuning trains.

        `pictures`: float32 [pictures, 1, size, size] in 0..1, or [pictures, 3, size, size] with colour if `channels` is
        3; `questions`: of all rows, repeated or not. Raises `ConfigError` for pictures of another size, and for a tower
        with fewer blocks than `depth`.
        """

    def cache_of(self, depth: Depth, pictures: PictureStream, questions: Sequence[str]) -> Cache:
        """Like `cache`. A backbone that does not override this gets all pictures in memory."""
        return self.cache(depth, pictures.tensor(self.channels), questions)

    def storing(self, store: FeatureStore | None) -> "Backbone":
        """The same backbone with a store, in which its caches keep outputs of its frozen part; by default unchanged."""
        return self

    def computing(self, precision: Precision) -> "Backbone":
        """The same backbone with caches that compute the frozen part in this precision; tuned parts stay float32.

        Raises `BackboneError` for a precision that it does not have.
        """
        if precision != "float32":
            raise BackboneError("this backbone computes in float32 alone: leave 'precision' out")
        return self

    @abstractmethod
    def features(self, batch: Any, tuning: Tuning, join: Features = "concat") -> torch.Tensor:
        """The features of a batch's rows, [rows, width]. Raises `ConfigError` without the space that `join` needs."""

    @abstractmethod
    def attention(self, batch: Any, tuning: Tuning) -> torch.Tensor:
        """The last block's attention to each patch of the picture, [rows, patches], patches in row-major order.

        It is the mean over attention heads, and a row sums to 1. Raises `ConfigError` for a batch from a cache of
        finished features, and for a backbone without a position that represents the picture.
        """

    @property
    def components(self) -> Components:
        """The principal components that come with the weights. Raises `ConfigError` if there are none."""
        raise ConfigError("this backbone comes without principal components: give another 'fusion'")

    def places(self, pictures: torch.Tensor) -> torch.Tensor:
        """The frozen features of each place of pictures, as in `cache`: float32 [pictures, places, width of their
        tower].

        Places are in row-major order. Raises `ConfigError` if the backbone has none.
        """
        raise ConfigError("this backbone has no grid of picture features: give 'fusion' as 'product'")

    def places_of(self, pictures: PictureStream) -> Rows:
        """Like `places`, kept in the pictures' space."""
        return pictures.space.keep(len(pictures), map(self.places, pictures.parts(self.channels)))

    def regions_of(self, pictures: PictureStream) -> Callable[[torch.Tensor], Regions]:
        """The regions of pictures, by their numbers, int64 [rows]; here the grid of `places_of`."""
        places = self.places_of(pictures)
        return lambda numbers: Regions(places[numbers.to(places.device)])

    def words(self, texts: Sequence[str], tokens: int) -> TokenEmbeddings:
        """The first tokens of each text. Raises `ConfigError` if the backbone gives no embeddings of tokens."""
        raise ConfigError("this backbone gives no embeddings of single tokens: choose another")


NO_SHAPE = BackboneShape({}, embed=0, image_size=224, context=1)


class NoBackbone(Backbone):
    """The placeholder for a backbone in a job that trains a network of its own. It has no features."""

    name, shape, seen, digest = NO_BACKBONE, NO_SHAPE, (), hashlib.sha256(NO_BACKBONE.encode()).hexdigest()

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)

    @property
    def device(self) -> torch.device:
        return self._device

    def parameter(self, name: str) -> torch.Tensor:
        raise ConfigError(NOTHING_TO_TUNE)

    def cache(self, depth: Depth, pictures: torch.Tensor, questions: Sequence[str]) -> Cache:
        raise ConfigError(NOTHING_TO_TUNE)

    def features(self, batch: Any, tuning: Tuning, join: Features = "concat") -> torch.Tensor:
        raise ConfigError(NOTHING_TO_TUNE)

    def attention(self, batch: Any, tuning: Tuning) -> torch.Tensor:
        raise ConfigError(NOTHING_TO_TUNE)
