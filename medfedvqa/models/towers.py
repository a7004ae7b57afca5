"""open_clip's towers, frozen, with something tuned in their last blocks. Exact; nothing is computed twice or in vain.

- The *trunk* is everything below the first block with prompts or adapters: nothing in it is trained, so that a site
  computes it once per picture and question (`ClipCache`), and nothing of it is kept for the backward pass.
- Questions are cut at their end token and share the states of common beginnings (`layouts`).
- In the last block only the position that is pooled has a query.
- Prompts are projected once for the batch, or once for each owner of items in it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import NOTHING, Update, looked_at
from medfedvqa.models.layouts import Aligned, Beginnings, Layout, Packed, beginnings
from medfedvqa.models.prompts import JoinedPrompts
from privacy import current_owners, owned

if TYPE_CHECKING:
    from open_clip.model import CLIP, CustomTextCLIP
    from open_clip.transformer import ResidualAttentionBlock, TextTransformer, VisionTransformer

Adapters = Mapping[int, Callable[[torch.Tensor], torch.Tensor]]
"""By block, counted from the tower's first: applied to what the block gives."""
Updates = Mapping[int, Update]
"""By block, counted as adapters are: added to its queries and values."""
Beside = TypeVar("Beside")
"""What stands beside a block: an adapter or an update."""


@dataclass(frozen=True)
class ImageTower:
    """The image tower, tuned in its last `tuned` blocks."""

    visual: "VisionTransformer"
    tuned: int

    def __post_init__(self) -> None:
        _check_blocks("image", self.visual.transformer.resblocks, self.tuned)

    @property
    def layers(self) -> int:
        """How many blocks there are."""
        return len(self.visual.transformer.resblocks)

    def trunk(self, images: torch.Tensor) -> torch.Tensor:
        """Normalised images [n, 3, size, size] up to the first tuned block: [n, tokens, width]."""
        blocks = self.visual.transformer.resblocks
        return _run(blocks[: len(blocks) - self.tuned], self.visual._embeds(images), Aligned())

    def features(
        self,
        hidden: torch.Tensor,
        prompts: JoinedPrompts | None,
        adapters: Adapters = NOTHING,
        updates: Updates = NOTHING,
    ) -> torch.Tensor:
        """The trunk's output [n, tokens, width] to the pooled output before CLIP's projection, [n, width]."""
        blocks, first = self.visual.transformer.resblocks[-self.tuned :], self.layers - self.tuned
        pool, adapters, updates = bool(self.visual.pool_type == "tok"), _last(adapters, first), _last(updates, first)
        hidden = _run(blocks, hidden, Aligned(), prompts, pool=pool, adapters=adapters, updates=updates)
        pooled: torch.Tensor = self.visual.ln_post(hidden[:, 0]) if pool else self.visual._pool(hidden)[0]
        return pooled

    def attention(
        self,
        hidden: torch.Tensor,
        prompts: JoinedPrompts | None,
        adapters: Adapters = NOTHING,
        updates: Updates = NOTHING,
    ) -> torch.Tensor:
        """The trunk's output to how the pooled position of the last block looks at each patch, [n, patches].

        Raises `ConfigError` for a tower that pools by a mean.
        """
        if self.visual.pool_type != "tok":
            raise ConfigError("this backbone's pictures have no position of their own to look from: it takes a mean")
        *below, last = self.visual.transformer.resblocks[-self.tuned :]
        first, tokens, lower = self.layers - self.tuned, None, None
        adapters, updates = _last(adapters, first), _last(updates, first)
        if prompts is not None:
            tokens = _project(last, prompts, -1)
            lower = replace(prompts, keys=prompts.keys[..., :-1, :, :], values=prompts.values[..., :-1, :, :])
        hidden = _run(below, hidden, Aligned(), lower, adapters=adapters, updates=updates)
        queries, keys, *_ = _heads(last, hidden, Aligned(), tokens, None, True, updates.get(len(below)))
        seen = looked_at(queries, keys, hidden.shape[1] - 1)[:, 0]
        return seen / seen.sum(dim=1, keepdim=True)

    def embed(self, features: torch.Tensor) -> torch.Tensor:
        """Features [n, width] in CLIP's common space, of length 1: [n, embed]."""
        return _embed(features, self.visual.proj)


@dataclass(frozen=True)
class TextTower:
    """The text tower, tuned in its last `tuned` blocks."""

    clip: "CLIP | CustomTextCLIP"
    tuned: int

    def __post_init__(self) -> None:
        _check_blocks("text", self._text.transformer.resblocks, self.tuned)

    @property
    def layers(self) -> int:
        """How many blocks there are."""
        return len(self._text.transformer.resblocks)

    @property
    def _text(self) -> "CLIP | TextTransformer":
        """Where this kind of CLIP keeps its text tower."""
        return getattr(self.clip, "text", self.clip)

    def beginnings(self, tokens: torch.Tensor) -> Beginnings:
        """The distinct beginnings of token ids [n, context]."""
        return beginnings(tokens, self._ends(tokens), causal=self._text.attn_mask is not None)

    def _ends(self, tokens: torch.Tensor) -> torch.Tensor:
        """The position that is pooled, int64 [n]."""
        text = self._text
        plain = text is self.clip
        match text.text_pool_type if plain else text.pool_type:
            case "argmax":  # CLIP's end token has the highest id
                return tokens.argmax(dim=-1)
            case "eos":
                end: int = text.text_eos_id if plain else text.eos_id
                return (tokens == end).int().argmax(dim=-1)
            case "first":
                return torch.zeros_like(tokens[:, 0])
            case _:
                return torch.full_like(tokens[:, 0], tokens.shape[1] - 1)

    def words(self, tokens: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Between start and end of token ids [n, context]: embeddings [n, count, width], and which there are.

        Raises `ConfigError` if this tower's texts have no end token.
        """
        text = self._text
        if (text.text_pool_type if text is self.clip else text.pool_type) not in ("argmax", "eos"):
            raise ConfigError("this backbone's texts have no end token, so its words cannot be told from padding")
        ends, padded = self._ends(tokens), F.pad(tokens, (0, count))
        present = torch.arange(1, count + 1, device=tokens.device) < ends[:, None]
        return text.token_embedding(padded[:, 1 : count + 1]) * present[..., None], present

    def trunk(self, tokens: torch.Tensor, layout: Packed) -> torch.Tensor:
        """Token ids [n, context] up to the first tuned block: [states, width]."""
        text, blocks = self._text, self._text.transformer.resblocks
        hidden = text.token_embedding(layout.pack(tokens[:, : layout.length]))
        hidden = hidden + text.positional_embedding[layout.positions]
        return _run(blocks[: len(blocks) - self.tuned], hidden, layout, mask=text.attn_mask)

    def features(
        self,
        hidden: torch.Tensor,
        layout: Packed,
        prompts: JoinedPrompts | None,
        adapters: Adapters = NOTHING,
        updates: Updates = NOTHING,
    ) -> torch.Tensor:
        """The trunk's output [states, width] to the pooled output before CLIP's projection, [n, width]."""
        text, blocks, first = self._text, self._text.transformer.resblocks, self.layers - self.tuned
        adapters, updates = _last(adapters, first), _last(updates, first)
        pooled = _run(blocks[-self.tuned :], hidden, layout, prompts, text.attn_mask, True, adapters, updates)
        with owned(layout.pooled_owners(current_owners())):
            normed: torch.Tensor = text.ln_final(pooled[:, 0])
        return normed

    def embed(self, features: torch.Tensor) -> torch.Tensor:
        """Features [n, width] in CLIP's common space, of length 1: [n, embed]."""
        return _embed(features, self._text.text_projection)


def _check_blocks(tower: str, blocks: Sequence[nn.Module], tuned: int) -> None:
    if not 1 <= tuned <= len(blocks):
        raise ConfigError(f"tuning in {tuned} blocks is asked for; the {tower} tower has {len(blocks)}")


def _last(beside: Mapping[int, Beside], first: int) -> Mapping[int, Beside]:
    """What stands beside the blocks from `first` on, counted from there. Raises `ConfigError` for a block before it."""
    if any(block < first for block in beside):
        raise ConfigError("an adapter or update belongs to a block below those that the cache was built for")
    return {block - first: part for block, part in beside.items()}


def _run(
    blocks: "Sequence[ResidualAttentionBlock]",
    hidden: torch.Tensor,
    layout: Layout,
    prompts: JoinedPrompts | None = None,
    mask: torch.Tensor | None = None,
    pool: bool = False,
    adapters: Adapters = NOTHING,
    updates: Updates = NOTHING,
) -> torch.Tensor:
    """All blocks on hidden states in this layout; with `pool` only the pooled positions, [items, 1, width].

    `mask` [context, context] is added to attention's scores. Prompts are for the last of the blocks.
    """
    unprompted = 0 if prompts is None else len(blocks) - prompts.keys.shape[-3]
    for index, block in enumerate(blocks):
        tokens = None if prompts is None or index < unprompted else _project(block, prompts, index - unprompted)
        last = pool and index == len(blocks) - 1
        hidden = _block(block, hidden, layout, tokens, mask, last, updates.get(index))
        if index in adapters:
            with owned(_owners(layout, last)):
                hidden = adapters[index](hidden)
    return hidden


def _owners(layout: Layout, pool: bool) -> torch.Tensor | None:
    """Whose the states that a block gives are."""
    return layout.pooled_owners(current_owners()) if pool else current_owners()


def _project(block: "ResidualAttentionBlock", prompts: JoinedPrompts, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One block's prompt tokens as projected keys and values, each [1 or items, tokens, width] (Eqs. 4-5)."""
    keys, values = prompts.keys[..., index, :, :], prompts.values[..., index, :, :]
    if prompts.placing == "before":
        weights, biases = block.attn.in_proj_weight.chunk(3), block.attn.in_proj_bias.chunk(3)
        keys, values = F.linear(keys, weights[1], biases[1]), F.linear(values, weights[2], biases[2])
    if prompts.owner is None:
        return keys[None], values[None]
    return keys.index_select(0, prompts.owner), values.index_select(0, prompts.owner)


def _block(
    block: "ResidualAttentionBlock",
    hidden: torch.Tensor,
    layout: Layout,
    prompts: tuple[torch.Tensor, torch.Tensor] | None,
    mask: torch.Tensor | None,
    pool: bool,
    update: Update | None = None,
) -> torch.Tensor:
    """One residual attention block; with `pool` only the pooled positions of it, [items, 1, width]."""
    queries, keys, values, mask = _heads(block, hidden, layout, prompts, mask, pool, update)
    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask).transpose(1, 2).flatten(2)
    attended = attended if pool else layout.pack(attended)
    with owned(_owners(layout, pool)):
        hidden = (layout.pooled(hidden) if pool else hidden) + block.ls_1(block.attn.out_proj(attended))
        grown: torch.Tensor = hidden + block.ls_2(block.mlp(block.ln_2(hidden)))
    return grown


def _heads(
    block: "ResidualAttentionBlock",
    hidden: torch.Tensor,
    layout: Layout,
    prompts: tuple[torch.Tensor, torch.Tensor] | None,
    mask: torch.Tensor | None,
    pool: bool,
    update: Update | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Queries, keys and values, each [items, heads, positions, width], and what is added to their scores."""
    attention, normed = block.attn, block.ln_1(hidden)
    weight, bias, width = attention.in_proj_weight, attention.in_proj_bias, hidden.shape[-1]
    if pool:
        pooled = layout.pooled(normed)
        with owned(_owners(layout, pool)):
            queries = F.linear(pooled, weight[:width], bias[:width])
            queries = queries if update is None else queries + update.queries(pooled)
        keys, values = F.linear(normed, weight[width:], bias[width:]).chunk(2, dim=-1)
    else:
        queries, keys, values = F.linear(normed, weight, bias).chunk(3, dim=-1)
        queries = layout.pad(queries if update is None else queries + update.queries(normed))
    keys, values = layout.pad(keys), layout.pad(values if update is None else values + update.values(normed))
    if mask is not None:
        mask = mask[: keys.shape[1], : keys.shape[1]]
        mask = layout.pooled_mask(mask) if pool else mask
    if prompts is not None:
        keys, values = (
            torch.cat([tokens.expand(len(own), -1, -1), own], dim=1)
            for tokens, own in zip(prompts, (keys, values), strict=True)
        )
        if mask is not None:  # every position sees all prompts
            mask = F.pad(mask, (prompts[0].shape[1], 0))
    queries, keys, values = (
        torch.unflatten(part, -1, (attention.num_heads, -1)).transpose(1, 2) for part in (queries, keys, values)
    )
    return queries, keys, values, mask


def _embed(features: torch.Tensor, projection: nn.Parameter | nn.Linear | None) -> torch.Tensor:
    if projection is None:
        raise ConfigError("this backbone has no common space of images and texts; join its features by 'concat'")
    projected = projection(features) if isinstance(projection, nn.Linear) else features @ projection
    return F.normalize(projected, dim=-1)
