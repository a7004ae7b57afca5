"""The base of fused backbones: one tower, `joint`, reads a question and a picture together.

Each row is an item of its own, since its states belong to a pair of picture and question. Blocks below the first tuned
one that see only the picture or the question run once for each. If nothing is tuned, each pair's features are cached.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import (
    UNTUNED,
    Backbone,
    BackboneShape,
    Depth,
    Features,
    TokenEmbeddings,
    TowerTuning,
    Tuning,
)
from medfedvqa.models.picture_stream import CHUNK, DistinctQuestions, PictureStream, Stacked, check_size

JOINT = "joint"


@dataclass(frozen=True)
class JointRows:
    """Pairs of a picture and a question as they enter the tower's block `first`.

    Pictures and questions are states [rows, tokens, width]; if `first` is -1, pixels [rows, 3, size, size] and token
    ids [rows, context].
    """

    pictures: torch.Tensor
    questions: torch.Tensor
    lengths: torch.Tensor
    """Tokens of each question, int64 [rows]."""
    first: int


@dataclass(frozen=True)
class JointBatch:
    """Rows of a site, each an item of its own."""

    rows: JointRows
    """As they enter the first tuned block. If nothing is tuned, its pictures are the rows' features [rows, width], and
    its questions have no effect."""
    answers: torch.Tensor
    owner: torch.Tensor | None

    @property
    def owners(self) -> Mapping[str, torch.Tensor | None]:
        return {JOINT: self.owner}


@dataclass(frozen=True, eq=False)
class JointBackbone(Backbone):
    """A frozen network with one tower. A subclass says how it computes; blocks are counted through the whole tower.

    `first` is the first block with a tuned part: the tower's number of blocks where there is none, and -1 where the
    embeddings are tuned as well.
    """

    title: ClassVar[str]
    mean: ClassVar[tuple[float, ...]] = (0.5, 0.5, 0.5)
    std: ClassVar[tuple[float, ...]] = (0.5, 0.5, 0.5)

    name: str
    network: Any = field(repr=False)
    tokenize: Callable[[list[str]], torch.Tensor] = field(repr=False)
    """Turns questions into token ids, int64 [questions, context], -1 beyond a question's end."""
    shape: BackboneShape
    seen: tuple[str, ...] | None
    digest: str
    channels: int = 3

    @property
    @abstractmethod
    def table(self) -> nn.Embedding:
        """The embeddings of tokens."""

    @abstractmethod
    def picture_start(self, network: Any, pixels: torch.Tensor, first: int) -> torch.Tensor:
        """Normalised pictures [n, 3, size, size] to the input of the block `first` (not -1): [n, tokens, width]."""

    @abstractmethod
    def question_start(self, network: Any, tokens: torch.Tensor, first: int) -> torch.Tensor:
        """Token ids [n, context], -1 beyond a question's end, to the states that enter the block `first` (not -1)."""

    @abstractmethod
    def pooled(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        """Rows to features [rows, width]."""

    @abstractmethod
    def looked(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        """The attention to each patch in the last block, all tokens of a question weighted equally, [rows, patches]."""

    @property
    def layers(self) -> int:
        """The number of blocks."""
        return self.shape.towers[JOINT].layers

    @property
    def device(self) -> torch.device:
        return self.table.weight.device

    def parameter(self, name: str) -> torch.Tensor:
        parameter: torch.Tensor = self.network.get_parameter(name)
        return parameter

    def cache(self, depth: Depth, pictures: torch.Tensor, questions: Sequence[str]) -> "JointCache":
        return JointCache(self, depth, Stacked(pictures), questions)

    def cache_of(self, depth: Depth, pictures: PictureStream, questions: Sequence[str]) -> "JointCache":
        return JointCache(self, depth, pictures, questions)

    def features(self, batch: JointBatch, tuning: Tuning, join: Features = "concat") -> torch.Tensor:
        if join != "concat":
            raise ConfigError(f"{self.title} has no common space of images and texts; join its features by 'concat'")
        tuned = self._tuned(batch, tuning)
        if batch.rows.first == self.layers:
            return batch.rows.pictures
        return tuning.call(self.pooled, self.network, batch.rows, tuned)

    def attention(self, batch: JointBatch, tuning: Tuning) -> torch.Tensor:
        if batch.rows.first == self.layers:
            raise ConfigError("the batch holds finished features of rows: make its cache for at least one block")
        weights = tuning.call(self.looked, self.network, batch.rows, self._tuned(batch, tuning))
        return weights / weights.sum(dim=1, keepdim=True)

    def _tuned(self, batch: JointBatch, tuning: Tuning) -> TowerTuning:
        """The tuned parts of the tower. Raises `ConfigError` for tuning below the cache."""
        tuned = tuning.tower(JOINT)
        tuned.above(batch.rows.first)
        return tuned

    @torch.no_grad()
    def words(self, texts: Sequence[str], tokens: int) -> TokenEmbeddings:
        ids = self.tokenize(list(texts)).to(self.device)
        present = torch.arange(1, tokens + 1, device=self.device) < (ids >= 0).sum(dim=1, keepdim=True) - 1
        pieces = F.pad(ids, (0, tokens), value=-1)[:, 1 : tokens + 1].clamp(min=0)
        return TokenEmbeddings(self.table(pieces) * present[..., None], present)


def present(lengths: torch.Tensor, positions: int) -> torch.Tensor:
    """The attention masks, bool [rows, 1, 1, positions], of questions with these lengths [rows]."""
    return (torch.arange(positions, device=lengths.device) < lengths[:, None])[:, None, None]


class JointCache:
    """The starts of every distinct picture and question of a site; see `Cache`.

    States of pairs are too many and too large to cache. Only if nothing is tuned, the cache holds the features of each
    pair, computed for the first batch with the pair.
    """

    def __init__(
        self, backbone: JointBackbone, depth: Depth, pictures: PictureStream, questions: Sequence[str]
    ) -> None:
        check_size(pictures, backbone.shape.image_size)
        if depth[JOINT] > backbone.layers + 1:
            raise ConfigError(f"{backbone.title} has {backbone.layers} blocks: tune fewer")
        self._backbone, self._depth, self._device = backbone, depth[JOINT], backbone.device
        self._first = backbone.layers - self._depth
        self._distinct = DistinctQuestions(questions, backbone.tokenize)
        tokens = self._distinct.tokens
        self._lengths = (tokens >= 0).sum(dim=1).to(self._device)
        with torch.no_grad():
            starts = (self._patches(part.to(self._device)) for part in pictures.parts(backbone.channels))
            self._pictures = pictures.space.keep(len(pictures), starts)
            self._questions = torch.cat([self._words(ids.to(self._device)) for ids in torch.split(tokens, CHUNK)])
        self._pairs: dict[tuple[int, int], torch.Tensor] = {}

    def question_ids(self, questions: Sequence[str]) -> torch.Tensor:
        """See `Cache`."""
        return self._distinct.question_ids(questions)

    def batch(
        self,
        pictures: torch.Tensor,
        questions: torch.Tensor,
        answers: torch.Tensor,
        owners: torch.Tensor | None = None,
    ) -> JointBatch:
        """See `Cache`."""
        pictures, questions = pictures.to(self._device), questions.to(self._device)
        start = self._pictures[pictures] if self._depth else self._features(pictures, questions)
        owner = None if owners is None else owners.to(self._device)
        rows = JointRows(start, self._questions[questions], self._lengths[questions], self._first)
        return JointBatch(rows, answers.to(self._device), owner)

    def _patches(self, pictures: torch.Tensor) -> torch.Tensor:
        backbone = self._backbone
        mean, std = (torch.tensor(each).to(pictures)[:, None, None] for each in (backbone.mean, backbone.std))
        pixels = (pictures.expand(-1, 3, -1, -1) - mean) / std
        return pixels if self._raw else backbone.picture_start(backbone.network, pixels, self._first)

    def _words(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens if self._raw else self._backbone.question_start(self._backbone.network, tokens, self._first)

    @property
    def _raw(self) -> bool:
        """Whether the embedding is tuned too, so that no outputs can be cached."""
        return self._first < 0

    @torch.no_grad()
    def _features(self, pictures: torch.Tensor, questions: torch.Tensor) -> torch.Tensor:
        """The features of these pairs of pictures and questions, [rows, width]."""
        pairs = list(zip(pictures.tolist(), questions.tolist(), strict=True))
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._pairs]
        for begin in range(0, len(new), CHUNK):
            part = new[begin : begin + CHUNK]
            picture, question = torch.tensor(part, device=self._device).unbind(dim=1)
            rows = JointRows(self._pictures[picture], self._questions[question], self._lengths[question], self._first)
            features = self._backbone.pooled(self._backbone.network, rows, UNTUNED)
            self._pairs |= dict(zip(part, features, strict=True))
        return torch.stack([self._pairs[pair] for pair in pairs])
