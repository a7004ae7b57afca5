"""The paper's equations written out plainly to compare with."""

import math

import pytest
import torch


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
