"""A trunk on a frozen backbone, which provides a picture's regions and the embeddings of a question's words.

Regions are the grid of the picture tower's places, or those of the site's own files (`site_files`).

Methods see it as a backbone with a single tower that is tuned as a whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import Any

import torch

from medfedvqa.backbone_names import NO_REGIONS
from medfedvqa.core.trunk_options import TrunkName
from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import (
    NOTHING,
    Backbone,
    BackboneShape,
    Depth,
    Features,
    Regions,
    TokenEmbeddings,
    TowerShape,
    Tuning,
)
from medfedvqa.models.families import IMAGE, has_places
from medfedvqa.models.picture_stream import NumberedQuestions, PictureStream, Stacked
from medfedvqa.papers.networks.trunk_networks import Ban, Butd, Mcan, Mfb, Mmnas, Trunk

# | name                         | width | source                                               |
# |------------------------------|-------|------------------------------------------------------|
# | `mfb`                        | 1,024 | Z. Yu et al., ICCV 2017, with co-attention           |
# | `butd`                       | 512   | P. Anderson et al., CVPR 2018                        |
# | `ban`                        | 1,024 | J.-H. Kim et al., NeurIPS 2018, eight glimpses       |
# | `mcan-small`, `mcan-large`   | 512, 1,024 | Z. Yu et al., CVPR 2019                         |
# | `mmnas-small`, `mmnas-large` | 512, 1,024 | Z. Yu et al., ACM MM 2020                       |
TRUNKS: Mapping[TrunkName, tuple[Callable[[int, int, int], Trunk], int]] = MappingProxyType(
    {
        "mfb": (Mfb, 1024),
        "butd": (Butd, 512),
        "ban": (Ban, 1024),
        "mcan-small": (Mcan, 512),
        "mcan-large": (Mcan, 1024),
        "mmnas-small": (Mmnas, 512),
        "mmnas-large": (Mmnas, 1024),
    }
)
"""Each trunk, and the width of its states in its paper."""
TOWER = "trunk"
QUESTION_TOKENS = 32
"""The first tokens of a question, which a trunk reads. The papers take 14 words; a word is one to three tokens."""


@dataclass(frozen=True)
class TrunkConfig:
    """A trunk, and the width of its states; None means the width in its paper."""

    name: TrunkName
    width: int | None = None

    def build(self, regions: int, words: int) -> Trunk:
        """The trunk for inputs of these widths, with torch's initial weights from torch's global generator."""
        make, width = TRUNKS[self.name]
        return make(regions, words, self.width or width)

    def shape(self, below: BackboneShape) -> BackboneShape:
        """The shape of the trunk on a backbone of this shape. Raises `ConfigError` without a grid or words."""
        if not has_places(below) and below.regions == NO_REGIONS:
            raise ConfigError(
                f"the trunk '{self.name}' reads a grid of a picture's places, and this backbone gives none: choose "
                "one whose picture tower is open_clip's own vision transformer, or give it region files by a name with "
                "+regions-36x2048@LABEL"
            )
        if not below.words:
            raise ConfigError("this backbone gives no embeddings of single tokens: choose another")
        build = partial(self.build, *_widths(below))
        tower = TowerShape(1, _empty(self, *_widths(below)).features, 0)
        return BackboneShape({TOWER: tower}, 0, below.image_size, below.context, below.words, build)


def _widths(below: BackboneShape) -> tuple[int, int]:
    """The widths of a region and of a word."""
    return below.regions[1] or below.towers[IMAGE].width, below.words


@lru_cache(maxsize=32)
def _empty(config: TrunkConfig, regions: int, words: int) -> Trunk:
    """The trunk on the meta device, without memory for weights; each call supplies its own."""
    with torch.device("meta"):
        return config.build(regions, words)


@dataclass(frozen=True)
class TrunkBatch:
    """A batch of a site's rows in a trunk's input format."""

    regions: Regions
    """The regions of each row's picture."""
    words: TokenEmbeddings
    """The word embeddings of each row's question."""
    answers: torch.Tensor
    """int64 [rows]."""

    @property
    def owners(self) -> Mapping[str, torch.Tensor | None]:
        return NOTHING


class TrunkCache(NumberedQuestions):
    """The frozen regions of every picture, and the frozen embeddings of every question's words; see `Cache`."""

    def __init__(self, below: Backbone, pictures: PictureStream, questions: Sequence[str]) -> None:
        super().__init__(questions)
        self._device, self._regions = below.device, below.regions_of(pictures)
        words = below.words(self.texts, min(QUESTION_TOKENS, below.shape.context))
        longest = max(1, int(words.present.sum(dim=1).max()))
        self._words = TokenEmbeddings(words.values[:, :longest].clone(), words.present[:, :longest].clone())

    def batch(
        self,
        pictures: torch.Tensor,
        questions: torch.Tensor,
        answers: torch.Tensor,
        owners: torch.Tensor | None = None,
    ) -> TrunkBatch:
        """See `Cache`. Rows share nothing, whoever owns them."""
        numbers = questions.to(self._device)
        words = TokenEmbeddings(self._words.values[numbers], self._words.present[numbers])
        return TrunkBatch(self._regions(pictures), words, answers.to(self._device))


@dataclass(frozen=True, eq=False)
class TrunkBackbone(Backbone):
    """A trunk with initial weights from a seed, on a frozen backbone."""

    below: Backbone
    config: TrunkConfig
    seed: int
    name: str = field(init=False)
    shape: BackboneShape = field(init=False)
    seen: tuple[str, ...] | None = field(init=False)
    digest: str = field(init=False)
    channels: int = field(init=False)

    def __post_init__(self) -> None:
        for name in ("name", "seen", "digest", "channels"):
            object.__setattr__(self, name, getattr(self.below, name))
        object.__setattr__(self, "shape", self.config.shape(self.below.shape))

    @property
    def device(self) -> torch.device:
        return self.below.device

    def parameter(self, name: str) -> torch.Tensor:
        """An initial weight."""
        return self._initial[name]

    @cached_property
    def _initial(self) -> dict[str, torch.Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            module = self.shape.build()
        return {name: value.detach() for name, value in module.named_parameters()}

    def cache(self, depth: Depth, pictures: torch.Tensor, questions: Sequence[str]) -> TrunkCache:
        return TrunkCache(self.below, Stacked(pictures), questions)

    def cache_of(self, depth: Depth, pictures: PictureStream, questions: Sequence[str]) -> TrunkCache:
        return TrunkCache(self.below, pictures, questions)

    def features(self, batch: TrunkBatch, tuning: Tuning, join: Features = "concat") -> torch.Tensor:
        if join != "concat":
            raise ConfigError("a trunk has no common space of pictures and texts: join its features by 'concat'")
        return tuning.call(_features, self._network, batch)

    def attention(self, batch: TrunkBatch, tuning: Tuning) -> torch.Tensor:
        return tuning.call(_attention, self._network, batch)

    def words(self, texts: Sequence[str], tokens: int) -> TokenEmbeddings:
        return self.below.words(texts, tokens)

    @property
    def _network(self) -> Trunk:
        return _empty(self.config, *_widths(self.below.shape))


def _features(network: Any, batch: TrunkBatch) -> torch.Tensor:
    return network(batch.regions, batch.words.values, batch.words.present)[0]


def _attention(network: Any, batch: TrunkBatch) -> torch.Tensor:
    return network(batch.regions, batch.words.values, batch.words.present)[1]
