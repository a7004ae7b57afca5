"""Networks of medical visual question answering that a site trains from scratch: SAN, MEVF and PubMedCLIP.

They are small, since a site has some hundred pictures. No row depends on another: there is no batch normalisation.
Only the weights depend on a site's data: the vocabulary is the bundled byte-pair encoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from medfedvqa.errors import ConfigError
from medfedvqa.models.answer_head import HEAD, dropped
from medfedvqa.models.backbone import Backbone, Cache, Depth, Tuning
from medfedvqa.models.bundled import VOCABULARY, ShortVocabulary
from medfedvqa.models.families import IMAGE
from medfedvqa.models.picture_stream import DistinctQuestions, PictureStream, distinct, streamed
from medfedvqa.models.tuned import AnswerModel
from medfedvqa.models.tuning import Shapes, Values
from medfedvqa.papers.networks.trunk_networks import lstm
from privacy import Chance, owned

ENCODED = (1, 16, 32, 64, 64)
"""Channels of the convolutional encoder. Each layer halves the picture's side."""
CODED = (1, 16, 32, 32, 16)
"""Channels of the auto-encoder's encoder; the decoder has them in reverse."""
REDUCTION: int = 2 ** (len(ENCODED) - 1)
"""Pixels along the side of a region."""
NOISE = 0.1
"""Standard deviation of the noise on the pixels, in 0..1, that the auto-encoder removes."""

Named = Mapping[str, torch.Tensor]

_vocabulary = lru_cache(ShortVocabulary)


@dataclass(frozen=True)
class NetworkConfig:
    """`pixels`: a picture's side; `width`: of states; `hops`: of attention; `dropout`: before answers."""

    pixels: int = 128
    width: int = 128
    hops: int = 2
    dropout: float = 0.5

    def __post_init__(self) -> None:
        if self.pixels % REDUCTION or min(self.pixels, self.width, self.hops) < 1:
            raise ConfigError(f"a picture's side must be a multiple of {REDUCTION} pixels, width and hops positive")


@dataclass(frozen=True)
class NetworkBatch:
    """Rows of a site; each picture and each question stands only once."""

    pixels: torch.Tensor
    """Grey, float32 [pictures, 1, size, size] in 0..1."""
    clip: torch.Tensor | None
    """Features of a frozen CLIP, [pictures, width], where a network takes them."""
    picture: torch.Tensor
    """The picture of each row, int64 [rows]. `question` works alike."""
    words: torch.Tensor
    """Token ids, int64 [questions, context], 0 beyond a question's end."""
    question: torch.Tensor
    answers: torch.Tensor
    """int64 [rows]."""
    picture_owner: torch.Tensor | None = None
    """The owner of each picture, int64 [pictures], in a batch with owners. `question_owner` works alike."""
    question_owner: torch.Tensor | None = None

    @property
    def owners(self) -> Mapping[str, torch.Tensor | None]:
        return {}


class NetworkCache(DistinctQuestions):
    """A site's pictures at the network's size, and its questions as token ids; see `Cache`."""

    def __init__(
        self, pictures: PictureStream, pixels: int, clip: torch.Tensor | None, questions: Sequence[str], device: str
    ) -> None:
        """`pixels`: the side of the grey pictures that are kept."""
        parts = (F.adaptive_avg_pool2d(part, pixels) for part in pictures.parts())
        self._pictures = pictures.space.keep(len(pictures), parts, torch.device(device))
        self._device, self._clip = device, clip
        super().__init__(questions, _vocabulary())
        self._words = self.tokens.to(device)

    def batch(
        self,
        pictures: torch.Tensor,
        questions: torch.Tensor,
        answers: torch.Tensor,
        owners: torch.Tensor | None = None,
    ) -> NetworkBatch:
        """See `Cache`."""
        unique_pictures, picture, picture_owner = distinct(pictures.to(self._device), owners)
        unique_questions, question, question_owner = distinct(questions.to(self._device), owners)
        return NetworkBatch(
            self._pictures[unique_pictures],
            None if self._clip is None else self._clip[unique_pictures],
            picture,
            self._words[unique_questions],
            question,
            answers.to(self._device),
            picture_owner,
            question_owner,
        )


@dataclass(frozen=True)
class Network(AnswerModel):
    """The base of all three: a question reader (an LSTM over words), and a linear answer layer."""

    answers: int
    config: NetworkConfig
    device: str = "cpu"

    @property
    def depth(self) -> Depth:
        return {}

    def cache(self, depth: Depth, pictures: torch.Tensor | PictureStream, questions: Sequence[str]) -> Cache:
        return NetworkCache(streamed(pictures), self.config.pixels, None, questions, self.device)

    def shapes(self) -> Shapes:
        """The shapes of all trained tensors, by name."""
        width = self.config.width
        return {
            "words.weight": (VOCABULARY, width // 2),
            "reader.input.weight": (4 * width, width // 2),
            "reader.input.bias": (4 * width,),
            "reader.state.weight": (4 * width, width),
            f"{HEAD}answers.weight": (self.answers, width),
            f"{HEAD}answers.bias": (self.answers,),
        }

    def initial(self, generator: torch.Generator, head: torch.Generator) -> Values:
        """Biases are 0. Weights are uniform, before rectifiers as in K. He et al. (ICCV 2015)."""
        values = {}
        for name, size in sorted(self.shapes().items()):
            inputs = torch.Size(size[1:]).numel()
            if name.startswith(DECODER):
                inputs = 4 * size[0]  # of 16 places of a kernel, a pixel has 4
            bound = 0.0 if name.endswith("bias") else ((6 if len(size) == 4 else 1) / inputs) ** 0.5
            value = torch.empty(size).uniform_(-bound, bound, generator=head if name.startswith(HEAD) else generator)
            values[name] = value.to(self.device)
        return values

    def answer(self, values: Named, features: torch.Tensor, batch: Any, chance: Chance | None = None) -> torch.Tensor:
        features = dropped(features, self.config.dropout, chance)
        return F.linear(features, values[f"{HEAD}answers.weight"], values[f"{HEAD}answers.bias"])

    def read(self, values: Named, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The reader's state after each word, [questions, words, width], and which words are present, bool."""
        there = words[:, : int((words > 0).sum(dim=1).max())] > 0
        inputs = F.embedding(words[:, : there.shape[1]], values["words.weight"])
        inputs = F.linear(inputs, values["reader.input.weight"], values["reader.input.bias"])
        return lstm(inputs, values["reader.state.weight"], there), there


@dataclass(frozen=True)
class StackedAttention(Network):
    """A stacked attention network (Z. Yang et al., CVPR 2016, Eqs. 15 to 22) on a small convolutional encoder."""

    @property
    def channels(self) -> int:
        """The number of channels of a region."""
        return ENCODED[-1]

    def shapes(self) -> Shapes:
        width = self.config.width
        shapes = super().shapes() | _convolutions(ENCODER, ENCODED)
        shapes |= {"regions.weight": (width, self.channels), "regions.bias": (width,)}
        for hop in range(self.config.hops):
            shapes |= {
                f"hop.{hop}.regions.weight": (width, width),
                f"hop.{hop}.query.weight": (width, width),
                f"hop.{hop}.query.bias": (width,),
                f"hop.{hop}.score.weight": (1, width),
            }
        return shapes

    def features(self, values: Named, batch: NetworkBatch) -> torch.Tensor:
        return self._attended(values, batch)[0]

    def attention(self, values: Named, batch: NetworkBatch) -> torch.Tensor:
        """The attention of the last hop."""
        return self._attended(values, batch)[1]

    def regions(self, values: Named, pixels: torch.Tensor) -> torch.Tensor:
        """The regions of pictures, [pictures, regions, channels], in row-major order."""
        return _regions(_convolved(values, ENCODER, ENCODED, pixels))

    def _attended(self, values: Named, batch: NetworkBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The question's state after all hops, [rows, width], and the last hop's weights, [rows, regions]."""
        with owned(batch.picture_owner):
            regions = self.regions(values, batch.pixels)
            regions = F.linear(regions, values["regions.weight"], values["regions.bias"]).tanh()[batch.picture]
        with owned(batch.question_owner):
            states, _ = self.read(values, batch.words)
        query = states[:, -1][batch.question]
        for hop in range(self.config.hops):
            part = {name: values[f"hop.{hop}.{name}"] for name in HOP}
            projected = F.linear(query, part["query.weight"], part["query.bias"])[:, None]
            hidden = (F.linear(regions, part["regions.weight"]) + projected).tanh()
            weights = F.linear(hidden, part["score.weight"])[..., 0].softmax(dim=1)
            query = query + (weights[..., None] * regions).sum(dim=1)
        return query, weights


class Denoising:
    """A convolutional auto-encoder that removes noise. Its encoder's regions are features."""

    @property
    def coder(self) -> Shapes:
        """The shapes of the auto-encoder's tensors, by name."""
        shapes = _convolutions(CODER, CODED)
        for layer, (inputs, outputs) in enumerate(zip(CODED[:0:-1], CODED[-2::-1], strict=True)):
            shapes |= {f"{DECODER}{layer}.weight": (inputs, outputs, 4, 4), f"{DECODER}{layer}.bias": (outputs,)}
        return shapes

    def reconstruction(self, values: Named, batch: NetworkBatch, chance: Chance | None) -> torch.Tensor:
        """The mean squared error over a row's picture, [rows]. Noise is added only with a chance to draw from."""
        pixels = batch.pixels
        with owned(batch.picture_owner):
            if chance is not None:
                pixels = pixels + NOISE * chance.normal(pixels.shape).to(pixels.device)
            errors = (self.decoded(values, self.coded(values, pixels)) - batch.pixels).square().mean(dim=(1, 2, 3))
        return errors[batch.picture]

    def coded(self, values: Named, pixels: torch.Tensor) -> torch.Tensor:
        """The encoder's output, [pictures, channels, side, side]."""
        return _convolved(values, CODER, CODED, pixels)

    def decoded(self, values: Named, hidden: torch.Tensor) -> torch.Tensor:
        """The inverse of `coded`, [pictures, 1, size, size]."""
        last = len(CODED) - 2
        for layer in range(last + 1):
            weight, bias = values[f"{DECODER}{layer}.weight"], values[f"{DECODER}{layer}.bias"]
            hidden = F.conv_transpose2d(hidden, weight, bias, stride=2, padding=1)
            hidden = hidden if layer == last else hidden.relu()
        return hidden


@dataclass(frozen=True)
class EnhancedAttention(Denoising, StackedAttention):
    """Stacked attention over the regions of both encoders, side by side (MEVF; B. Nguyen et al., MICCAI 2019)."""

    @property
    def channels(self) -> int:
        return ENCODED[-1] + CODED[-1]

    def shapes(self) -> Shapes:
        return super().shapes() | self.coder

    def regions(self, values: Named, pixels: torch.Tensor) -> torch.Tensor:
        return torch.cat([super().regions(values, pixels), _regions(self.coded(values, pixels))], dim=2)


@dataclass(frozen=True)
class ClipFusion(Denoising, Network):
    """Features of a frozen CLIP and the auto-encoder, fused with the question (PubMedCLIP; S. Eslami et al., 2023).

    The question weighs the fused features one by one: a short form of question-conditioned reasoning
    (QCR; L. Zhan et al., ACM MM 2020).
    """

    backbone: Backbone = field(kw_only=True)

    @property
    def channels(self) -> int:
        """The number of channels of a picture: CLIP's width, and the auto-encoder's regions."""
        return self.backbone.shape.towers[IMAGE].width + CODED[-1] * (self.config.pixels // REDUCTION) ** 2

    def cache(self, depth: Depth, pictures: torch.Tensor | PictureStream, questions: Sequence[str]) -> Cache:
        pictures = streamed(pictures)
        features = image_features(self.backbone, pictures)
        return NetworkCache(pictures, self.config.pixels, features, questions, self.device)

    def shapes(self) -> Shapes:
        width = self.config.width
        return {
            **super().shapes(),
            **self.coder,
            "picture.weight": (width, self.channels),
            "picture.bias": (width,),
            "asked.weight": (width, width),
            "asked.bias": (width,),
            "words.score.weight": (1, width),
            "reasoning.weight": (width, width),
            "reasoning.bias": (width,),
        }

    def features(self, values: Named, batch: NetworkBatch) -> torch.Tensor:
        if batch.clip is None:
            raise ConfigError("the batch holds no features of a frozen CLIP: make it of this network's own cache")
        with owned(batch.picture_owner):
            coded = self.coded(values, batch.pixels).flatten(1)
            picture = F.linear(torch.cat([batch.clip, coded], dim=1), values["picture.weight"], values["picture.bias"])
        with owned(batch.question_owner):
            states, there = self.read(values, batch.words)
            question = F.linear(states[:, -1], values["asked.weight"], values["asked.bias"]).relu()
            scores = F.linear(states.tanh(), values["words.score.weight"])[..., 0]
            weights = scores.masked_fill(~there, -torch.inf).softmax(dim=1)
            condition = (weights[..., None] * states).sum(dim=1)
            gate = F.linear(condition, values["reasoning.weight"], values["reasoning.bias"]).sigmoid()
        return picture.relu()[batch.picture] * (question * gate)[batch.question]

    def attention(self, values: Named, batch: NetworkBatch) -> torch.Tensor:
        raise ConfigError("this network takes a picture's features whole: it has no attention over regions to show")


ENCODER, CODER, DECODER = "image.", "coder.", "decoder."
HOP = ("regions.weight", "query.weight", "query.bias", "score.weight")


@torch.no_grad()
def image_features(backbone: Backbone, pictures: PictureStream) -> torch.Tensor:
    """The features of a frozen CLIP's image tower, [pictures, width]."""
    cache = backbone.cache_of(dict.fromkeys(backbone.shape.towers, 0), pictures, ("",))
    nothing = torch.zeros(len(pictures), dtype=torch.int64)
    batch: Any = cache.batch(torch.arange(len(pictures)), nothing, nothing)
    return backbone.features(batch, Tuning())[:, : backbone.shape.towers[IMAGE].width]


def _convolutions(name: str, channels: Sequence[int]) -> Shapes:
    shapes: Shapes = {}
    for layer, (inputs, outputs) in enumerate(zip(channels, channels[1:], strict=False)):
        shapes |= {f"{name}{layer}.weight": (outputs, inputs, 3, 3), f"{name}{layer}.bias": (outputs,)}
    return shapes


def _convolved(values: Named, name: str, channels: Sequence[int], pixels: torch.Tensor) -> torch.Tensor:
    for layer in range(len(channels) - 1):
        weight, bias = values[f"{name}{layer}.weight"], values[f"{name}{layer}.bias"]
        pixels = F.conv2d(pixels, weight, bias, stride=2, padding=1).relu()
    return pixels


def _regions(maps: torch.Tensor) -> torch.Tensor:
    """[pictures, channels, side, side] to [pictures, regions, channels], regions in row-major order."""
    return maps.flatten(2).transpose(1, 2)
