"""The project's own small CLIP: its architecture and its tokenizer. `pretraining` makes its weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from open_clip.model import CLIP

VOCABULARY = 8192
"""Token ids: 512 bytes, 7,678 merges, start and end. Small, since the table is a third of the weights."""

CONTEXT = 64
ARCHITECTURE: dict[str, Any] = {
    "embed_dim": 256,
    "vision_cfg": {"image_size": 128, "patch_size": 16, "width": 256, "head_width": 64, "layers": 6},
    "text_cfg": {"context_length": CONTEXT, "vocab_size": VOCABULARY, "width": 256, "heads": 4, "layers": 4},
}
MEAN = (0.26, 0.26, 0.26)
STD = (0.26, 0.26, 0.26)


@dataclass(frozen=True)
class BundledModel:
    """One set of weights that ships with the project, and the data that it was trained on."""

    file: str
    seen: tuple[str, ...]


BUNDLED = {
    "medclip-slake": BundledModel("medclip-slake.safetensors", ("open", "slake")),
    "medclip-vqarad": BundledModel("medclip-vqarad.safetensors", ("open", "vqa-rad")),
}


def build() -> "CLIP":
    """The architecture with random weights, float32."""
    # open_clip takes seconds to import, and most commands load no model.
    from open_clip.model import CLIP

    return CLIP(**ARCHITECTURE)


class ShortVocabulary:
    """CLIP's byte-pair encoding cut to its first merges: any text, fewer distinct tokens.

    Words that need a later merge become more tokens; no word is unknown.
    """

    def __init__(self) -> None:
        from open_clip.tokenizer import SimpleTokenizer

        self._full = SimpleTokenizer(context_length=CONTEXT)
        merges = VOCABULARY - 512 - 2
        self._full.bpe_ranks = {pair: rank for pair, rank in self._full.bpe_ranks.items() if rank < merges}

    def __call__(self, texts: list[str]) -> torch.Tensor:
        """Token ids, int64 [texts, 64]: start, text, end, zeros. Longer texts are cut before the end."""
        ids = torch.zeros(len(texts), CONTEXT, dtype=torch.int64)
        for row, text in zip(ids, texts, strict=True):
            body = self._full.encode(text)[: CONTEXT - 2]
            row[: len(body) + 2] = torch.tensor([VOCABULARY - 2, *body, VOCABULARY - 1])
        return ids
