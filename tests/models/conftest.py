"""A tiny CLIP, and the paper's equations written out plainly to compare with."""

import math
from collections.abc import Callable

import pytest
import torch
from open_clip.model import CLIP

from medfedvqa.models import BackboneShape, ClipBackbone, TowerShape

VISION = {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 16, "layers": 3}
TEXT = {"context_length": 12, "vocab_size": 64, "width": 24, "heads": 2, "layers": 2}


def tokenize(texts: list[str]) -> torch.Tensor:
    """One token a letter: start 62, letters, end 63."""
    ids = torch.zeros(len(texts), TEXT["context_length"], dtype=torch.int64)
    for row, text in zip(ids, texts, strict=True):
        letters = [1 + ord(letter) % 60 for letter in text[: len(row) - 2]]
        row[: len(letters) + 2] = torch.tensor([62, *letters, 63])
    return ids


def build_clip(kind: type = CLIP, vision: dict | None = None, text: dict | None = None, **options) -> torch.nn.Module:
    """A tiny CLIP with random weights, none of them left at 0 or 1, float64 and frozen."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        clip = kind(embed_dim=20, vision_cfg={**VISION, **(vision or {})}, text_cfg={**TEXT, **(text or {})}, **options)
        for parameter in clip.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return clip.double().eval().requires_grad_(False)


@pytest.fixture(scope="session")
def make_clip() -> Callable[..., torch.nn.Module]:
    return build_clip


def attention(width: int) -> tuple[tuple[str, int, int], ...]:
    """Where a block of this width makes queries and values."""
    return ("attn.in_proj_weight", 0, width), ("attn.in_proj_weight", 2 * width, 3 * width)


@pytest.fixture(scope="session")
def backbone() -> ClipBackbone:
    """The tiny CLIP as a backbone, float64."""
    return ClipBackbone(
        name="tiny",
        clip=build_clip(),
        tokenize=tokenize,
        mean=(0.4, 0.5, 0.6),
        std=(0.2, 0.3, 0.25),
        shape=BackboneShape(
            {
                "image": TowerShape(3, 32, 2, "visual.transformer.resblocks", attention(32)),
                "text": TowerShape(2, 24, 2, "transformer.resblocks", attention(24)),
            },
            embed=20,
            image_size=32,
            context=12,
            words=24,
            build=build_clip,
            aside=("logit_scale", "visual.proj", "text_projection"),
        ),
        seen=None,
        digest="",
    )


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


class Reference:
    """Eqs. 3-5 of Zhu et al. (2024), word for word: one long sequence, projected whole, an explicit softmax.

    Every row has its own picture and its own question, padded to the full context. With `visible` False the mask hides
    the prompts.
    """

    def __init__(self, joining: str = "concatenate", placing: str = "before", visible: bool = True) -> None:
        self.joining, self.placing, self.visible = joining, placing, visible

    def image(self, clip, images, local, shared):
        hidden = clip.visual._embeds(images)
        hidden = self._blocks(clip.visual.transformer.resblocks, hidden, local, shared, None)
        return clip.visual._pool(hidden)[0]

    def text(self, clip, tokens, local, shared):
        hidden = clip.token_embedding(tokens) + clip.positional_embedding
        hidden = clip.ln_final(self._blocks(clip.transformer.resblocks, hidden, local, shared, clip.attn_mask))
        return hidden[torch.arange(len(tokens)), tokens.argmax(dim=1)]

    def _blocks(self, blocks, hidden, local, shared, mask):
        for index, block in enumerate(blocks):
            number = index - (len(blocks) - (0 if local is None else len(local)))
            prompted = local is not None and number >= 0
            own, others = (local[number], shared[number]) if prompted else (None, None)
            hidden = hidden + self._attention(block.attn, block.ln_1(hidden), own, others, mask)
            hidden = hidden + block.mlp(block.ln_2(hidden))
        return hidden

    def _attention(self, attention, hidden, own, others, mask):
        width = hidden.shape[-1]
        weights, biases = attention.in_proj_weight.split(width), attention.in_proj_bias.split(width)
        sequences, prompts = [hidden, hidden, hidden], 0
        if own is not None:
            half = len(own) // 2
            pairs = (own[:half], others[:half]), (own[half:], others[half:])
            joined = [torch.cat(pair) if self.joining == "concatenate" else pair[0] + pair[1] for pair in pairs]
            tokens = [part.expand(len(hidden), -1, -1) for part in joined]
            prompts = tokens[0].shape[1]
            if self.placing == "before":
                sequences[1:] = [torch.cat([part, hidden], dim=1) for part in tokens]
        queries, keys, values = (s @ w.T + b for s, w, b in zip(sequences, weights, biases, strict=True))
        if own is not None and self.placing == "after":
            keys, values = torch.cat([tokens[0], keys], dim=1), torch.cat([tokens[1], values], dim=1)
        shown = torch.full((hidden.shape[1], prompts), 0.0 if self.visible else -math.inf)
        rest = torch.zeros(hidden.shape[1], hidden.shape[1]) if mask is None else mask
        heads = []
        for part in range(attention.num_heads):
            head = slice(part * width // attention.num_heads, (part + 1) * width // attention.num_heads)
            scores = queries[..., head] @ keys[..., head].transpose(1, 2) / math.sqrt(width // attention.num_heads)
            heads.append((scores + torch.cat([shown, rest], dim=1)).softmax(dim=-1) @ values[..., head])
        return attention.out_proj(torch.cat(heads, dim=-1))


@pytest.fixture(scope="session")
def reference() -> type[Reference]:
    return Reference
