"""The project's own small CLIPs: their architectures and their tokenizer. `pretraining` makes their weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from medfedvqa.models.open_clip_models import build as build_open_clip

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
}
"""Configurations of open_clip by name. With `keeps_place` the picture tower is a `PlaceTower`.

Of `medclip`, the first edition, no weights ship any more: files of version 0.2.0 load as `medclip@LABEL`.
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
}
"""`auto` takes the first that has not seen the data."""


def build(architecture: str = "medclip2") -> "CLIP":
    """An architecture with random weights, float32."""
    clip: CLIP = build_open_clip(ARCHITECTURES[architecture])
    return clip


class ShortVocabulary:
    """CLIP's byte-pair encoding cut to its first merges: any text, fewer distinct tokens.

    Words that need a later merge become more tokens; no word is unknown.
    """

    def __init__(self) -> None:
        from open_clip.tokenizer import SimpleTokenizer

        self.full = SimpleTokenizer(context_length=CONTEXT)
        """CLIP's tokenizer, with the first merges only."""
        merges = VOCABULARY - 512 - 2
        self.full.bpe_ranks = {pair: rank for pair, rank in self.full.bpe_ranks.items() if rank < merges}

    def __call__(self, texts: list[str]) -> torch.Tensor:
        """Token ids, int64 [texts, 64]: start, text, end, zeros. Longer texts are cut before the end."""
        ids = torch.zeros(len(texts), CONTEXT, dtype=torch.int64)
        for row, text in zip(ids, texts, strict=True):
            body = self.full.encode(text)[: CONTEXT - 2]
            row[: len(body) + 2] = torch.tensor([VOCABULARY - 2, *body, VOCABULARY - 1])
        return ids
