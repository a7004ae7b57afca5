"""CLIP as a backbone: two towers, each of which computes each distinct input once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from medfedvqa.devices import Precision
from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import Backbone, BackboneShape, Components, Depth, Features, TokenEmbeddings, Tuning
from medfedvqa.models.families import IMAGE, TEXT, Images, Texts, image_tower, text_tower
from medfedvqa.models.layouts import Beginnings, Packed
from medfedvqa.models.picture_space import FeatureStore
from medfedvqa.models.picture_stream import CHUNK, DistinctQuestions, PictureStream, Stacked, check_size, distinct
from medfedvqa.models.towers import ImageTower
from privacy import owned

if TYPE_CHECKING:
    from open_clip.model import CLIP, CustomTextCLIP


@dataclass(frozen=True)
class Distinct:
    """One tower's distinct inputs in a batch.

    `start`: the inputs of the tuned part, see `ClipCache`. `item`: the input of each row, int64 [rows].
    `owner`: the owner of each input, int64 [items], in a batch with owners.
    """

    start: torch.Tensor
    item: torch.Tensor
    owner: torch.Tensor | None


@dataclass(frozen=True)
class ClipBatch:
    """Rows of a site, with each distinct picture and question once. `answers` is int64 [rows]."""

    pictures: Distinct
    questions: Distinct
    words: Packed
    """The layout of the distinct questions in `questions.start`."""
    answers: torch.Tensor
    depth: Depth

    @property
    def owners(self) -> Mapping[str, torch.Tensor | None]:
        return {IMAGE: self.pictures.owner, TEXT: self.questions.owner}


@dataclass(frozen=True, eq=False)
class ClipBackbone(Backbone):
    """A frozen CLIP, SigLIP or CoCa, of open_clip or transformers."""

    name: str
    clip: "CLIP | CustomTextCLIP" = field(repr=False)
    tokenize: Callable[[list[str]], torch.Tensor] = field(repr=False)
    """Questions to token ids, int64 [questions, context]."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """`mean` and `std` of pictures are per channel, on the scale 0..1."""
    shape: BackboneShape
    seen: tuple[str, ...] | None
    digest: str
    channels: int = 3
    store: FeatureStore | None = None
    """The store of the frozen part's outputs for other runs on this machine; None keeps none."""
    precision: Precision = "float32"
    """The arithmetic of the frozen part."""
    notes: tuple[str, ...] = ()
    """One sentence for each kind of weights that loading left out or interpolated."""
    principal: Components | None = field(default=None, repr=False, compare=False)
    """The principal components that come with the weights, on their device."""

    @property
    def device(self) -> torch.device:
        device: torch.device = self.clip.logit_scale.device
        return device

    def parameter(self, name: str) -> torch.Tensor:
        parameter: torch.Tensor = self.clip.get_parameter(name)
        return parameter

    @property
    def components(self) -> Components:
        return super().components if self.principal is None else self.principal

    def cache(self, depth: Depth, pictures: torch.Tensor, questions: Sequence[str]) -> "ClipCache":
        return ClipCache(self, depth, Stacked(pictures), questions)

    def cache_of(self, depth: Depth, pictures: PictureStream, questions: Sequence[str]) -> "ClipCache":
        return ClipCache(self, depth, pictures, questions)

    def storing(self, store: FeatureStore | None) -> "ClipBackbone":
        return replace(self, store=store)

    def computing(self, precision: Precision) -> "ClipBackbone":
        return replace(self, precision=precision)

    def frozen(self, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The output of the frozen part that `make` computes, in the part's precision; returned as float32."""
        if self.precision == "float32":
            return make()
        with torch.autocast(self.device.type, torch.bfloat16):
            return make().float()

    def stored(self, part: str, inputs: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Like `frozen`, for these inputs of a part; from the store if that has the output."""
        if self.store is None:
            return self.frozen(make)
        # The name has the architecture: the same weights with other activations give other outputs.
        whole = f"{self.name} {self.digest} {self.mean} {self.std} {self.device} {part}"
        if self.precision != "float32":
            whole += f" {self.precision}"
        return self.store.recall(whole, inputs, lambda: self.frozen(make)).to(self.device)

    def features(self, batch: ClipBatch, tuning: Tuning, join: Features = "concat") -> torch.Tensor:
        return tuning.call(_features, self.clip, batch, tuning, join)

    def attention(self, batch: ClipBatch, tuning: Tuning) -> torch.Tensor:
        return tuning.call(_attention, self.clip, batch, tuning)

    @torch.no_grad()
    def places(self, pictures: torch.Tensor) -> torch.Tensor:
        check_size(Stacked(pictures), self.shape.image_size)
        image = image_tower(self.clip, 1)
        if not isinstance(image, ImageTower):
            return super().places(pictures)

        def made() -> torch.Tensor:
            parts = torch.split(pictures, CHUNK)
            return torch.cat([image.places(image.trunk(self.normalised(part))) for part in parts])

        return self.stored("places", pictures, made)

    @torch.no_grad()
    def words(self, texts: Sequence[str], tokens: int) -> TokenEmbeddings:
        return TokenEmbeddings(*text_tower(self.clip, 1).words(self.tokenize(list(texts)).to(self.device), tokens))

    def normalised(self, pictures: torch.Tensor) -> torch.Tensor:
        """Pictures [n, 1 or 3, size, size] in 0..1, normalised for the image tower, [n, 3, size, size]."""
        mean, std = (torch.tensor(each, device=self.device).view(3, 1, 1) for each in (self.mean, self.std))
        return (pictures.to(self.device).expand(-1, 3, -1, -1) - mean) / std


def _features(clip: "CLIP | CustomTextCLIP", batch: ClipBatch, tuning: Tuning, join: Features) -> torch.Tensor:
    """The features of a batch's rows, [rows, width]."""
    image, text = towers(clip, batch.depth)
    pictures, questions = batch.pictures.start, batch.questions.start
    if batch.depth[IMAGE]:
        with owned(batch.pictures.owner):
            pictures = image.features(_hidden(image, batch), tuning.tower(IMAGE))
    if batch.depth[TEXT]:
        with owned(batch.words.owners):
            raw = _raw(text.layers, batch.depth[TEXT])
            hidden = text.trunk(questions, batch.words) if raw else questions
            questions = text.features(hidden, batch.words, tuning.tower(TEXT))
    parts = [pictures[batch.pictures.item], questions[batch.questions.item]]
    if join == "product":
        parts.append(image.embed(pictures)[batch.pictures.item] * text.embed(questions)[batch.questions.item])
    return torch.cat(parts, dim=-1)


def _attention(clip: "CLIP | CustomTextCLIP", batch: ClipBatch, tuning: Tuning) -> torch.Tensor:
    """The attention of a picture's pooled position to its patches in the last block: the same for every question."""
    if not batch.depth[IMAGE]:
        raise ConfigError("the batch holds finished features of pictures: make its cache for at least one block")
    image, _ = towers(clip, batch.depth)
    return image.attention(_hidden(image, batch), tuning.tower(IMAGE))[batch.pictures.item]


def _hidden(image: Images, batch: ClipBatch) -> torch.Tensor:
    """The distinct pictures below the tuned blocks, [pictures, tokens, width]."""
    start = batch.pictures.start
    return image.trunk(start) if _raw(image.layers, batch.depth[IMAGE]) else start


def towers(clip: "CLIP | CustomTextCLIP", depth: Depth) -> tuple[Images, Texts]:
    """CLIP's towers, each cut below its tuned blocks. Raises `ConfigError`."""
    # A tower that is tuned as a whole is cut below its first block; one that is not tuned may be cut anywhere.
    image, text = image_tower(clip, 1), text_tower(clip, 1)
    if depth[IMAGE] > image.layers + 1 or depth[TEXT] > text.layers + 1:
        raise ConfigError(f"CLIP's towers have {image.layers} and {text.layers} blocks: tune fewer")
    image_blocks, text_blocks = max(1, min(depth[IMAGE], image.layers)), max(1, min(depth[TEXT], text.layers))
    return image_tower(clip, image_blocks), text_tower(clip, text_blocks)


def _raw(layers: int, depth: int) -> bool:
    """Whether even the embedding is tuned, so that a cache can hold no outputs."""
    return depth == layers + 1


class ClipCache(DistinctQuestions):
    """The inputs of the tuned part of a model, for every picture and question of a site; see `Cache`.

    The cache holds final features of a tower without tuned parts, hidden states of a tower that is tuned in its last
    blocks, and pixels or token ids of a tower that is tuned as a whole.
    """

    def __init__(self, backbone: ClipBackbone, depth: Depth, pictures: PictureStream, questions: Sequence[str]) -> None:
        check_size(pictures, backbone.shape.image_size)
        self._backbone, self._device, self._depth = backbone, backbone.device, depth
        image, text = towers(backbone.clip, depth)
        self._by_state = 0 < depth[TEXT] <= text.layers
        super().__init__(questions, backbone.tokenize)
        tokens = self.tokens.to(self._device)
        self._beginnings = text.beginnings(tokens)

        @torch.no_grad()
        def picture_start(pixels: torch.Tensor) -> torch.Tensor:
            hidden = image.trunk(backbone.normalised(pixels))
            return hidden if depth[IMAGE] else image.features(hidden)

        @torch.no_grad()
        def question_starts() -> torch.Tensor:
            return _question_start(text, depth[TEXT], tokens, self._beginnings)

        # If the embedding is tuned, a batch begins with the inputs themselves: there is nothing to store.
        self._raw_pictures, raw_questions = _raw(image.layers, depth[IMAGE]), _raw(text.layers, depth[TEXT])
        parts, part = pictures.parts(backbone.channels), f"{IMAGE} {depth[IMAGE]}"
        if self._raw_pictures:
            starts = (pixels.expand(-1, backbone.channels, -1, -1) for pixels in parts)
        else:
            starts = (backbone.stored(part, pixels, partial(picture_start, pixels)) for pixels in parts)
        self._pictures = pictures.space.keep(len(pictures), starts, self._device)
        part = f"{TEXT} {depth[TEXT]}"
        self._questions = question_starts() if raw_questions else backbone.stored(part, tokens, question_starts)

    def batch(
        self,
        pictures: torch.Tensor,
        questions: torch.Tensor,
        answers: torch.Tensor,
        owners: torch.Tensor | None = None,
    ) -> ClipBatch:
        """See `Cache`."""
        device = self._device
        unique_pictures, picture_of, picture_owner = distinct(pictures.to(device), owners)
        unique_questions, question_of, question_owner = distinct(questions.to(device), owners)
        words = Packed(self._beginnings, unique_questions, question_owner)
        start = self._questions[words.states if self._by_state else unique_questions]
        seen = self._pictures[unique_pictures]
        return ClipBatch(
            pictures=Distinct(
                self._backbone.normalised(seen) if self._raw_pictures else seen, picture_of, picture_owner
            ),
            questions=Distinct(start, question_of, question_owner),
            words=words,
            answers=answers.to(device),
            depth=self._depth,
        )


def _question_start(tower: Texts, depth: int, tokens: torch.Tensor, of: Beginnings) -> torch.Tensor:
    """The inputs of the tuned part for token ids [n, context].

    Hidden states [states, width]; features [n, width] if no block is tuned; the token ids if the embedding is tuned.
    """
    if _raw(tower.layers, depth):
        return tokens
    chunks = torch.split(torch.arange(len(tokens), device=tokens.device), CHUNK)
    layouts = [Packed(of, chunk) for chunk in chunks]
    hidden = [tower.trunk(tokens[chunk], layout) for chunk, layout in zip(chunks, layouts, strict=True)]
    if not depth:
        return torch.cat([tower.features(*pair) for pair in zip(hidden, layouts, strict=True)])
    start = hidden[0].new_empty(of.count, hidden[0].shape[-1])
    for part, layout in zip(hidden, layouts, strict=True):
        start[layout.states] = part
    return start
