"""ViLT as a backbone: one tower that reads a question and a picture together (W. Kim et al., ICML 2021).

Each row is an item of its own, since every block mixes its words with its picture. Only the embeddings of distinct
pictures and questions are computed once, and the features of each pair if nothing is tuned.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from medfedvqa.errors import ConfigError
from medfedvqa.models.attention import Tokens, attention_to_patches, by_head, projected
from medfedvqa.models.backbone import (
    UNTUNED,
    Backbone,
    BackboneShape,
    Depth,
    Features,
    TokenEmbeddings,
    TowerTuning,
    Tuning,
    Update,
)
from medfedvqa.models.distinct import DistinctQuestions, check_size
from medfedvqa.models.picture_stream import CHUNK, PictureStream, Stacked
from medfedvqa.models.prompts import JoinedPrompts

JOINT = "joint"
WORDS, PATCHES = 0, 1
"""The indices of the embeddings that mark a token as a word or as a patch."""


@dataclass(frozen=True)
class ViltBatch:
    """Rows of a site, each an item of its own.

    If nothing is tuned, `pictures` are the rows' features [rows, width] and `questions` have no effect. If everything
    is tuned, these are pixels [rows, 3, size, size] and token ids [rows, context]; else embeddings
    [rows, tokens, width] each.
    """

    pictures: torch.Tensor
    questions: torch.Tensor
    lengths: torch.Tensor
    """Tokens of each question, int64 [rows]."""
    answers: torch.Tensor
    depth: int
    owner: torch.Tensor | None

    @property
    def owners(self) -> Mapping[str, torch.Tensor | None]:
        return {JOINT: self.owner}


@dataclass(frozen=True, eq=False)
class ViltBackbone(Backbone):
    """A frozen `ViltModel` of transformers, with its pooler."""

    name: str
    vilt: Any = field(repr=False)
    tokenize: Callable[[list[str]], torch.Tensor] = field(repr=False)
    """Questions to token ids, int64 [questions, context], -1 beyond a question's end."""
    shape: BackboneShape
    seen: tuple[str, ...] | None
    digest: str
    channels: int = 3

    @property
    def device(self) -> torch.device:
        device: torch.device = self.vilt.embeddings.cls_token.device
        return device

    def parameter(self, name: str) -> torch.Tensor:
        parameter: torch.Tensor = self.vilt.get_parameter(name)
        return parameter

    def cache(self, depth: Depth, pictures: torch.Tensor, questions: Sequence[str]) -> "ViltCache":
        return ViltCache(self, depth, Stacked(pictures), questions)

    def cache_of(self, depth: Depth, pictures: PictureStream, questions: Sequence[str]) -> "ViltCache":
        return ViltCache(self, depth, pictures, questions)

    def features(self, batch: ViltBatch, tuning: Tuning, join: Features = "concat") -> torch.Tensor:
        if join != "concat":
            raise ConfigError("ViLT has no common space of images and texts; join its features by 'concat'")
        return tuning.call(_features, self.vilt, batch, tuning.tower(JOINT))

    def attention(self, batch: ViltBatch, tuning: Tuning) -> torch.Tensor:
        if not batch.depth:
            raise ConfigError("the batch holds finished features of rows: make its cache for at least one block")
        return tuning.call(_attention, self.vilt, batch, tuning.tower(JOINT))

    @torch.no_grad()
    def words(self, texts: Sequence[str], tokens: int) -> TokenEmbeddings:
        ids = self.tokenize(list(texts)).to(self.device)
        present = torch.arange(1, tokens + 1, device=self.device) < (ids >= 0).sum(dim=1, keepdim=True) - 1
        pieces = F.pad(ids, (0, tokens), value=-1)[:, 1 : tokens + 1].clamp(min=0)
        embedding = self.vilt.embeddings.text_embeddings.word_embeddings
        return TokenEmbeddings(embedding(pieces) * present[..., None], present)


def _features(vilt: Any, batch: ViltBatch, tuning: TowerTuning) -> torch.Tensor:
    """The features of a batch's rows, [rows, width]."""
    embeddings = _embeddings(vilt, batch, tuning)
    return encoded(vilt, *embeddings, batch.lengths, tuning) if batch.depth else batch.pictures


def _attention(vilt: Any, batch: ViltBatch, tuning: TowerTuning) -> torch.Tensor:
    """The attention of a question's tokens, all alike, to each patch in the last block, [rows, patches]; sums to 1."""
    words, patches = _embeddings(vilt, batch, tuning)
    hidden, visible = _below(vilt, words, patches, batch.lengths, tuning)
    last = len(vilt.encoder.layer) - 1
    tokens = _tokens(vilt, tuning.prompts, last)
    queries, keys, _, seen = _heads(vilt.encoder.layer[last], hidden, visible, tokens, False, tuning.updates.get(last))
    # The picture's own first position stands for no patch.
    asking = hidden.shape[1] - patches.shape[1]
    weights = attention_to_patches(queries[:, :, :asking], keys, patches.shape[1] - 1, seen)
    weights = (weights * visible[:, 0, 0, :asking, None]).sum(dim=1)
    return weights / weights.sum(dim=1, keepdim=True)


def _embeddings(vilt: Any, batch: ViltBatch, tuning: TowerTuning) -> tuple[torch.Tensor, torch.Tensor]:
    """The embeddings of a batch's words and patches. Raises `ConfigError` for tuning below the cache."""
    layers = len(vilt.encoder.layer)
    tuning.above(layers - batch.depth)
    if batch.depth <= layers:
        return batch.questions, batch.pictures
    return embedded_words(vilt, batch.questions), embedded_patches(vilt, batch.pictures)


def embedded_patches(vilt: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Square pictures of ViLT's own size, [n, 3, size, size] in -1..1, to [n, patches + 1, width]."""
    embeddings = vilt.embeddings
    patches: torch.Tensor = embeddings.patch_embeddings.projection(pixels).flatten(2).transpose(1, 2)
    patches = torch.cat([embeddings.cls_token.expand(len(patches), -1, -1), patches], dim=1)
    placed: torch.Tensor = patches + embeddings.position_embeddings + embeddings.token_type_embeddings.weight[PATCHES]
    return placed


def embedded_words(vilt: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Token ids [n, context], -1 beyond a question's end, to [n, context, width]."""
    words = vilt.embeddings.text_embeddings(input_ids=tokens.clamp(min=0))
    typed: torch.Tensor = words + vilt.embeddings.token_type_embeddings.weight[WORDS]
    return typed


def encoded(
    vilt: Any, words: torch.Tensor, patches: torch.Tensor, lengths: torch.Tensor, tuning: TowerTuning = UNTUNED
) -> torch.Tensor:
    """Embeddings [rows, tokens, width] to pooled features [rows, width]. Prompts are for the last blocks."""
    hidden, visible = _below(vilt, words, patches, lengths, tuning)
    last = len(vilt.encoder.layer) - 1
    tokens = _tokens(vilt, tuning.prompts, last)
    hidden = _block(vilt.encoder.layer[last], hidden, visible, tokens, True, tuning.updates.get(last))
    hidden = tuning.adapters[last](hidden) if last in tuning.adapters else hidden
    pooled: torch.Tensor = vilt.pooler(vilt.layernorm(hidden))
    return pooled


def _below(
    vilt: Any, words: torch.Tensor, patches: torch.Tensor, lengths: torch.Tensor, tuning: TowerTuning
) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings up to the last block, and the visible positions, bool [rows, 1, 1, tokens]."""
    words = words[:, : int(lengths.max())]
    hidden = torch.cat([words, patches], dim=1)
    visible = torch.arange(words.shape[1], device=words.device) < lengths[:, None]
    visible = F.pad(visible, (0, patches.shape[1]), value=True)[:, None, None]
    for index, block in enumerate(vilt.encoder.layer[:-1]):
        tokens = _tokens(vilt, tuning.prompts, index)
        hidden = _block(block, hidden, visible, tokens, False, tuning.updates.get(index))
        hidden = tuning.adapters[index](hidden) if index in tuning.adapters else hidden
    return hidden, visible


def _tokens(vilt: Any, prompts: JoinedPrompts | None, index: int) -> Tokens | None:
    """The prompt tokens of one block; None where it has none."""
    blocks = vilt.encoder.layer
    if prompts is None or index < len(blocks) - prompts.keys.shape[-3]:
        return None
    attention = blocks[index].attention.attention
    return projected(prompts, index - len(blocks), attention.key, attention.value)


def _block(
    block: Any,
    hidden: torch.Tensor,
    visible: torch.Tensor,
    prompts: Tokens | None,
    pool: bool,
    update: Update | None = None,
) -> torch.Tensor:
    """One block like that of transformers, with prompts; with `pool` only its first position, [rows, 1, width].

    `visible`: the positions that others may attend to, bool [rows, 1, 1, tokens].
    """
    queries, keys, values, visible = _heads(block, hidden, visible, prompts, pool, update)
    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible).transpose(1, 2).flatten(2)
    hidden = (hidden[:, :1] if pool else hidden) + block.attention.output.dense(attended)
    output: torch.Tensor = hidden + block.output.dense(block.intermediate(block.layernorm_after(hidden)))
    return output


def _heads(
    block: Any,
    hidden: torch.Tensor,
    visible: torch.Tensor,
    prompts: Tokens | None,
    pool: bool,
    update: Update | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values, each [rows, heads, positions, width], and the visible keys."""
    attention, normed = block.attention.attention, block.layernorm_before(hidden)
    keys, values = attention.key(normed), attention.value(normed)
    asking = normed[:, :1] if pool else normed
    queries = attention.query(asking)
    if update is not None:
        queries, values = queries + update.queries(asking), values + update.values(normed)
    if prompts is not None:
        visible = F.pad(visible, (prompts[0].shape[1], 0), value=True)
    return *by_head(attention.num_attention_heads, queries, keys, values, prompts), visible


class ViltCache:
    """Embeddings of every distinct picture and question of a site; see `Cache`.

    States above the embeddings belong to pairs, which are too many and too large to cache. Only if nothing is tuned,
    the cache holds the features of each pair, computed for the first batch with the pair.
    """

    def __init__(self, backbone: ViltBackbone, depth: Depth, pictures: PictureStream, questions: Sequence[str]) -> None:
        check_size(pictures, backbone.shape.image_size)
        layers = len(backbone.vilt.encoder.layer)
        if depth[JOINT] > layers + 1:
            raise ConfigError(f"ViLT has {layers} blocks: tune fewer")
        self._vilt, self._depth, self._device = backbone.vilt, depth[JOINT], backbone.device
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
    ) -> ViltBatch:
        """See `Cache`."""
        pictures, questions = pictures.to(self._device), questions.to(self._device)
        start = self._pictures[pictures] if self._depth else self._features(pictures, questions)
        owner = None if owners is None else owners.to(self._device)
        return ViltBatch(
            start,
            self._questions[questions],
            self._lengths[questions],
            answers.to(self._device),
            self._depth,
            owner,
        )

    def _patches(self, pictures: torch.Tensor) -> torch.Tensor:
        pixels = (pictures.expand(-1, 3, -1, -1) - 0.5) / 0.5
        return pixels if self._raw else embedded_patches(self._vilt, pixels)

    def _words(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens if self._raw else embedded_words(self._vilt, tokens)

    @property
    def _raw(self) -> bool:
        """Whether even the embedding is tuned, so that a cache can hold no outputs."""
        return self._depth > len(self._vilt.encoder.layer)

    @torch.no_grad()
    def _features(self, pictures: torch.Tensor, questions: torch.Tensor) -> torch.Tensor:
        """The features of these pairs of pictures and questions, [rows, width]."""
        pairs = list(zip(pictures.tolist(), questions.tolist(), strict=True))
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._pairs]
        for first in range(0, len(new), CHUNK):
            part = new[first : first + CHUNK]
            picture, question = torch.tensor(part, device=self._device).unbind(dim=1)
            words, patches = self._questions[question], self._pictures[picture]
            features = encoded(self._vilt, words, patches, self._lengths[question])
            self._pairs |= dict(zip(part, features, strict=True))
        return torch.stack([self._pairs[pair] for pair in pairs])
