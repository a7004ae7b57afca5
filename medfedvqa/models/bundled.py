"""The project's own small CLIPs: architectures and tokenizer. `medfedvqa.research.pretraining` makes their weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load

from medfedvqa.errors import BackboneError
from medfedvqa.models.backbone import Components
from medfedvqa.models.local_folders import HALF
from medfedvqa.models.open_clip_models import build as build_open_clip
from medfedvqa.models.published_parts import MINILM, PREFIXES, sentence_tokenizer

if TYPE_CHECKING:
    from open_clip.model import CLIP


VOCABULARY = 8192
"""Token ids: 512 bytes, 7,678 merges, start and end. Small, since the table is a third of the weights."""

CONTEXT = 64
SIZE = 128
"""Side of the pictures, pixels."""

_TEXT = {"context_length": CONTEXT, "vocab_size": VOCABULARY, "width": 256, "heads": 4, "layers": 4}
ARCHITECTURES: Mapping[str, dict[str, Any]] = {
    "medclip": {
        "embed_dim": 256,
        "vision_cfg": {"image_size": SIZE, "patch_size": 16, "width": 256, "head_width": 64, "layers": 6},
        "text_cfg": _TEXT,
    },
    "medclip2": {
        "embed_dim": 256,
        "vision_cfg": {"image_size": SIZE, "patch_size": 16, "width": 192, "head_width": 64, "layers": 4},
        "text_cfg": _TEXT,
        "keeps_place": True,
    },
    "medclip3": {
        "embed_dim": 256,
        "vision_cfg": {"image_size": 224, "patch_size": 32, "width": 384, "head_width": 64, "layers": 2},
        "text_cfg": {
            "hf_model_name": "all-MiniLM-L6-v2",
            "hf_config": MINILM,
            "hf_proj_type": "linear",
            "context_length": CONTEXT,
        },
        "published_parts": True,
    },
}
"""Configurations of open_clip by name. With `keeps_place` the picture tower is a `PlaceTower`. With `published_parts`
it is one too, on an EfficientNet-Lite0, and texts are pooled by a `SentencePooler`.

The weights of `medclip`, the first edition, no longer ship: files of version 0.2.0 load as `medclip@LABEL`.
"""
MEAN = (0.26, 0.26, 0.26)
STD = (0.26, 0.26, 0.26)


@dataclass(frozen=True)
class BundledModel:
    """One set of weights that ships with the project, and the data that it was trained on."""

    file: str
    seen: tuple[str, ...]


BUNDLED = {
    "medclip2-slake": BundledModel("medclip2-slake.safetensors", ("open", "slake")),
    "medclip2-vqarad": BundledModel("medclip2-vqarad.safetensors", ("open", "vqa-rad")),
    "medclip3-open": BundledModel("medclip3-open.safetensors", ("open",)),
}
"""The bundled weights. `auto` chooses the first that has not seen the data."""
COMPONENTS = (32, 96)
"""The principal components of pictures and of questions that come with each of them."""


def components_file(weights: str) -> str:
    """The name of the file with the principal components, beside a file of weights."""
    return f"{weights.removesuffix('.safetensors')}.components.safetensors"


def bundled_components(name: str) -> Components:
    """The principal components of a bundled backbone, float32 on the processor. Raises `BackboneError`."""
    file = resources.files("medfedvqa.models") / "weights" / components_file(BUNDLED[name].file)
    if not file.is_file():
        raise BackboneError(
            f"the principal components of the backbone '{name}' are missing; `medfedvqa pretrain` makes them"
        )
    return Components(**{part: tensor.float() for part, tensor in load(file.read_bytes()).items()})


def has_published_parts(architecture: str) -> bool:
    """Whether the towers use networks from other packages, so that a weights file holds only the aligned parts."""
    return bool(ARCHITECTURES[architecture].get("published_parts"))


def aligned(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights without those of published parts."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith(PREFIXES)}


def normalisation(architecture: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of pictures per channel, on the scale 0..1."""
    return (HALF, HALF) if has_published_parts(architecture) else (MEAN, STD)


def build(architecture: str = "medclip2") -> "CLIP":
    """An architecture with random weights, float32."""
    clip: CLIP = build_open_clip(ARCHITECTURES[architecture])
    return clip


def tokenizer(architecture: str) -> Callable[[list[str]], torch.Tensor]:
    """Questions to token ids, int64 [questions, 64]. Raises `BackboneError` for a published part that is missing."""
    return sentence_tokenizer(CONTEXT) if has_published_parts(architecture) else short_vocabulary()


@cache
def short_vocabulary() -> "ShortVocabulary":
    """The tokenizer, made once in a process: a vault makes it before its first job, and all jobs share it."""
    return ShortVocabulary()


class ShortVocabulary:
    """CLIP's byte-pair encoding cut to its first merges: any text, fewer distinct tokens.

    Words that need a later merge become more tokens; no word is unknown.
    """

    def __init__(self) -> None:
        from open_clip.tokenizer import SimpleTokenizer

        self.full = SimpleTokenizer(context_length=CONTEXT)
        """CLIP's tokenizer with its first merges only."""
        merges = VOCABULARY - 512 - 2
        self.full.bpe_ranks = {pair: rank for pair, rank in self.full.bpe_ranks.items() if rank < merges}
        # Later merges make no token, and their ids would take 15 MB.
        made = {*range(VOCABULARY - 2), *self.full.all_special_ids}
        self.full.encoder = {token: id for token, id in self.full.encoder.items() if id in made}
        self.full.decoder = {id: token for token, id in self.full.encoder.items()}

    def __call__(self, texts: list[str]) -> torch.Tensor:
        """Token ids, int64 [texts, 64]: start, text, end, zeros. Longer texts are cut before the end."""
        ids = torch.zeros(len(texts), CONTEXT, dtype=torch.int64)
        for row, text in zip(ids, texts, strict=True):
            body = self.full.encode(text)[: CONTEXT - 2]
            row[: len(body) + 2] = torch.tensor([VOCABULARY - 2, *body, VOCABULARY - 1])
        return ids
