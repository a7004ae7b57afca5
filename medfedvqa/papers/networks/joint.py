"""The base of fused backbones: one tower, `joint`, reads a question and a picture together.

Each row is an item of its own, since its states belong to a pair of picture and question. Blocks below the first tuned
one that see only the picture or the question run once for each. If nothing is tuned, each pair's features are cached.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.errors import BackboneError, ConfigError
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
from medfedvqa.models.block_readers import attention_of
from medfedvqa.models.checkpoints import Weights, weights_file
from medfedvqa.models.library_towers import tuned_block
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


class JointCache(DistinctQuestions):
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
        super().__init__(questions, backbone.tokenize)
        self._lengths = (self.tokens >= 0).sum(dim=1).to(self._device)
        with torch.no_grad():
            starts = (self._patches(part.to(self._device)) for part in pictures.parts(backbone.channels))
            self._pictures = pictures.space.keep(len(pictures), starts)
            self._questions = torch.cat([self._words(ids.to(self._device)) for ids in torch.split(self.tokens, CHUNK)])
        self._pairs: dict[tuple[int, int], torch.Tensor] = {}

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


# Shared code for the folders of fused backbones: word pieces, configurations, and refusals.
#
# Nothing is ever fetched. Shapes need no folder, so server and sites agree on what travels.

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of weight files that transformers writes, whole or in parts with an index; the first one found is used."""

BERT_QUERIES_VALUES = "attention.self.query.weight", "attention.self.value.weight"
"""The weights in a block of BERT that low-rank updates are for."""
BERT_BASE: Mapping[str, Any] = {
    "vocab_size": 30522, "type_vocab_size": 2, "max_position_embeddings": 512, "hidden_size": 768,
    "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}  # fmt: skip
"""The arguments of transformers' `BertConfig` for BERT-base in lower case."""


def low_rank_parts(width: int, *names: str) -> tuple[tuple[str, int, int, int], ...]:
    """The weights of a block that make queries and values, as `TowerShape.by_block` has them."""
    return tuple((name, 0, width, width) for name in names)


def transformers_module(make: Callable[[Any], nn.Module]) -> nn.Module:
    """A module that `make` builds from the package transformers. Raises `BackboneError` where it is not installed."""
    try:
        import transformers
    except ImportError:
        raise BackboneError("this backbone needs the package transformers: pip install 'medfedvqa[vilt]'") from None
    return make(transformers)


def weights_in(name: str, folder: Path, needed: tuple[str, ...], what: str = "the folder") -> Path:
    """The file of weights. Raises `BackboneError` if it or one of the files `needed` beside it is missing."""
    weights = weights_file(folder, WEIGHTS)
    if weights is None or not all((folder / file).is_file() for file in needed):
        listed = f"{', '.join((WEIGHTS[0], *needed[:-1]))} and {needed[-1]}"
        raise BackboneError(f"{what} of the backbone '{name}' lacks files: it holds {listed}")
    return weights


def check_configuration(name: str, architecture: str, path: Path, facts: Mapping[str, Any]) -> None:
    """Raises `BackboneError` if a `config.json` contradicts the architecture in a way that shapes do not show."""
    try:
        configuration = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise BackboneError(f"config.json of the backbone '{name}' is not JSON") from None
    if wrong := sorted(key for key, value in facts.items() if configuration.get(key, value) != value):
        raise BackboneError(f"config.json of the backbone '{name}' is not of {architecture}: it differs in {wrong}")


def bert_names(weights: Weights) -> Weights:
    """A BERT's weights under the current names of `BertModel`, without prefix, heads and pooler."""
    if any(key.startswith("bert.") for key in weights):
        weights = {key.removeprefix("bert."): value for key, value in weights.items() if key.startswith("bert.")}
    # The published bert-base-uncased still has TensorFlow's names of a normalisation's parameters.
    spelled = {
        key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): value
        for key, value in weights.items()
    }
    return {key: value for key, value in spelled.items() if key.startswith(("embeddings.", "encoder."))}


def word_pieces(name: str, path: Path, context: int, size: int) -> Callable[[list[str]], torch.Tensor]:
    """The tokenizer for BERT's lower-case word pieces. It cuts questions that are too long."""
    from tokenizers import BertWordPieceTokenizer

    try:
        vocabulary = {word: number for number, word in enumerate(path.read_text(encoding="utf-8").splitlines())}
        if len(vocabulary) > size:
            raise ValueError
        tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=True)
    except Exception as error:  # the library's own errors have no common type
        raise BackboneError(
            f"vocab.txt of the backbone '{name}' is not a vocabulary of {size} word pieces ({type(error).__name__})"
        ) from None
    tokenizer.enable_truncation(context)
    return partial(_tokenized, tokenizer, context)


def _tokenized(tokenizer: Any, context: int, questions: list[str]) -> torch.Tensor:
    ids = torch.full((len(questions), context), -1, dtype=torch.int64)
    for row, encoding in zip(ids, tokenizer.encode_batch(questions), strict=True):
        row[: len(encoding.ids)] = torch.tensor(encoding.ids)
    return ids


# BERT's blocks in a fused backbone: transformers' own modules, with tuned parts and attention to a picture.
#
# They normalise after each sum. FedDAT's adapter is placed as in its authors' code: it reads the block's output without
# an adapter, and adds to the feed-forward layer's output before the last normalisation (J. Pfeiffer et al.,
# "AdapterFusion", EACL 2021).


def embedded(bert: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Token ids [n, positions], -1 beyond a question's end, to [n, positions, width]."""
    return bert.embeddings(input_ids=tokens.clamp(min=0))


def bert_block(
    block: Any,
    hidden: torch.Tensor,
    visible: torch.Tensor,
    tuning: TowerTuning,
    index: int,
    layers: int,
    picture: torch.Tensor | None = None,
) -> torch.Tensor:
    """One block, the one of this index in a tower with this many layers: [n, positions, width] to the same.

    `visible`: the positions that others may attend to, bool [n, 1, 1, positions]. `picture`: the states for
    cross-attention, [n, patches, width]. Prompts and low-rank updates apply to a question's self-attention only.
    """
    attended = self_attended(block, hidden, visible, tuning, index, layers)
    if picture is not None:
        attended, _ = block.crossattention(attended, encoder_hidden_states=picture)
    raw = block.output.dense(block.intermediate(attended))
    normalised: torch.Tensor = block.output.LayerNorm(raw + attended)
    if index not in tuning.adapters:
        return normalised
    # An adapter returns its input plus its addition.
    added = tuning.adapters[index](normalised) - normalised
    return block.output.LayerNorm(raw + added + attended)


def self_attended(
    block: Any, hidden: torch.Tensor, visible: torch.Tensor, tuning: TowerTuning, index: int, layers: int
) -> torch.Tensor:
    """A question's self-attention in a block, with residual and normalisation; see `bert_block`."""
    with tuned_block(block, attention_of(block), tuning, index, layers):
        attended: torch.Tensor = block.attention(hidden, visible)[0]
    return attended
