"""open_clip's frozen towers with tuned parts in their last blocks. Outputs are exact, and nothing is computed twice.

- The *trunk* is everything below the first block with prompts or adapters. Nothing in it is trained, so a site
  computes it once per picture and question (`ClipCache`), and the backward pass ends above it.
- Questions are cut at their end token and share the states of common beginnings (`layouts`).
- In the last block only the pooled position has a query.
- Prompts are projected once for the batch, or once for each owner of items in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import UNTUNED, TowerTuning, Update
from medfedvqa.models.layouts import Aligned, Beginnings, Layout, Packed, beginnings
from medfedvqa.models.prompts import JoinedPrompts, Tokens, attention_to_patches, by_head, projected
from privacy import current_owners, owned

if TYPE_CHECKING:
    from open_clip.model import CLIP, CustomTextCLIP
    from open_clip.transformer import ResidualAttentionBlock, TextTransformer, VisionTransformer


@dataclass(frozen=True)
class ImageTower:
    """The image tower, tuned in its last `tuned` blocks."""

    visual: "VisionTransformer"
    tuned: int

    def __post_init__(self) -> None:
        _check_blocks("image", self.visual.transformer.resblocks, self.tuned)

    @property
    def layers(self) -> int:
        """The number of blocks."""
        return len(self.visual.transformer.resblocks)

    def trunk(self, images: torch.Tensor) -> torch.Tensor:
        """The input of the first tuned block, [n, tokens, width], for normalised images [n, 3, size, size]."""
        blocks = self.visual.transformer.resblocks
        return _run(blocks[: len(blocks) - self.tuned], self.visual._embeds(images), Aligned())

    def features(self, hidden: torch.Tensor, tuning: TowerTuning = UNTUNED) -> torch.Tensor:
        """The pooled output before the projection, [n, width], for the output of `trunk`."""
        visual = self.visual
        blocks, pool = visual.transformer.resblocks[-self.tuned :], visual.pool_type == "tok" and not visual.attn_pool
        hidden = _run(blocks, hidden, Aligned(), tuning.above(self.layers - self.tuned), pool=pool)
        return self.visual.ln_post(hidden[:, 0]) if pool else self.visual._pool(hidden)[0]

    def places(self, hidden: torch.Tensor) -> torch.Tensor:
        """The normalised output of each patch, [n, patches, width], for the output of `trunk` [n, tokens, width]."""
        hidden = _run(self.visual.transformer.resblocks[-self.tuned :], hidden, Aligned())
        return self.visual.ln_post(hidden[:, 1:])

    def attention(self, hidden: torch.Tensor, tuning: TowerTuning) -> torch.Tensor:
        """The attention to each patch in the last block, [n, patches], from the trunk's output.

        It is that of the pooled position or, in a tower that pools by places, their mean. Raises `ConfigError`
        for a tower that pools by a mean.
        """
        token = bool(self.visual.pool_type == "tok" and not self.visual.attn_pool)
        if not token and self.visual.pool_type != "places":
            raise ConfigError("this backbone pools pictures by a mean, so it has no attention to show")
        *below, last = self.visual.transformer.resblocks[-self.tuned :]
        tuning, tokens = tuning.above(self.layers - self.tuned), None
        lower = tuning
        if tuning.prompts is not None:
            tokens = _project(last, tuning.prompts, -1)
            keys, values = (part[..., :-1, :, :] for part in (tuning.prompts.keys, tuning.prompts.values))
            lower = replace(tuning, prompts=replace(tuning.prompts, keys=keys, values=values))
        hidden = _run(below, hidden, Aligned(), lower)
        queries, keys, *_ = _heads(last, hidden, Aligned(), tokens, None, token, tuning.updates.get(len(below)))
        weights = attention_to_patches(queries, keys, hidden.shape[1] - 1)
        weights = weights[:, 0] if token else weights[:, 1:].mean(dim=1)
        return weights / weights.sum(dim=1, keepdim=True)

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
        """The number of blocks."""
        return len(self._text.transformer.resblocks)

    @property
    def _text(self) -> "CLIP | TextTransformer":
        """The module with the text tower: CLIP itself, or its part `text`."""
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
        """The embeddings between start and end of token ids [n, context], [n, count, width], and which are present.

        Raises `ConfigError` if this tower's texts have no end token.
        """
        text = self._text
        if (text.text_pool_type if text is self.clip else text.pool_type) not in ("argmax", "eos"):
            raise ConfigError("this backbone's texts have no end token, so words and padding cannot be distinguished")
        ends, padded = self._ends(tokens), F.pad(tokens, (0, count))
        present = torch.arange(1, count + 1, device=tokens.device) < ends[:, None]
        return text.token_embedding(padded[:, 1 : count + 1]) * present[..., None], present

    def trunk(self, tokens: torch.Tensor, layout: Packed) -> torch.Tensor:
        """The input of the first tuned block, [states, width], for token ids [n, context]."""
        text, blocks = self._text, self._text.transformer.resblocks
        hidden = self._embedded(tokens, layout) + text.positional_embedding[layout.positions]
        return _run(blocks[: len(blocks) - self.tuned], hidden, layout, mask=self._mask(layout))

    def _embedded(self, tokens: torch.Tensor, layout: Packed) -> torch.Tensor:
        """The embeddings of token ids [n, context] without their positions, [states, width]."""
        return self._text.token_embedding(layout.pack(tokens[:, : layout.length]))

    def _mask(self, layout: Packed) -> torch.Tensor | None:
        """The additive attention mask, see `_run`."""
        return self._text.attn_mask

    def features(self, hidden: torch.Tensor, layout: Packed, tuning: TowerTuning = UNTUNED) -> torch.Tensor:
        """The pooled output before the projection, [n, width], for the output of `trunk` [states, width]."""
        text, tuning = self._text, tuning.above(self.layers - self.tuned)
        pooled = _run(text.transformer.resblocks[-self.tuned :], hidden, layout, tuning, self._mask(layout), pool=True)
        with owned(layout.pooled_owners(current_owners())):
            normed: torch.Tensor = text.ln_final(pooled[:, 0])
        return normed

    def embed(self, features: torch.Tensor) -> torch.Tensor:
        """Features [n, width] in CLIP's common space, of length 1: [n, embed]."""
        return _embed(features, self._text.text_projection)


@dataclass(frozen=True)
class ClassTextTower(TextTower):
    """The text tower of CoCa: a class token after the text is pooled, and does not see padding."""

    def beginnings(self, tokens: torch.Tensor) -> Beginnings:
        # The class token stands for an id that no token has, so that `visible` and `trunk` find it.
        tokens = F.pad(tokens, (0, 1), value=self._text.vocab_size)
        return beginnings(tokens, torch.full_like(tokens[:, 0], tokens.shape[1] - 1), causal=True)

    def words(self, tokens: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        ends, padded = tokens.argmax(dim=-1), F.pad(tokens, (0, count))
        present = torch.arange(1, count + 1, device=tokens.device) < ends[:, None]
        return self._text.token_embedding(padded[:, 1 : count + 1]) * present[..., None], present

    def _embedded(self, tokens: torch.Tensor, layout: Packed) -> torch.Tensor:
        text, last = self._text, layout.positions == tokens.shape[1]
        embedded = text.token_embedding(layout.pack(F.pad(tokens, (0, 1))))
        return torch.where(last[:, None], text.cls_emb, embedded)

    def _mask(self, layout: Packed) -> torch.Tensor | None:
        text, ids = self._text, layout.tokens[:, :-1]
        added = text._build_additive_mask(ids, layout.length, text.positional_embedding.dtype)
        return text.attn_mask + added[:: text.heads, None]


def _check_blocks(tower: str, blocks: Sequence[nn.Module], tuned: int) -> None:
    if not 1 <= tuned <= len(blocks):
        raise ConfigError(f"the job tunes {tuned} blocks, but the {tower} tower has {len(blocks)}")


def _run(
    blocks: "Sequence[ResidualAttentionBlock]",
    hidden: torch.Tensor,
    layout: Layout,
    tuning: TowerTuning = UNTUNED,
    mask: torch.Tensor | None = None,
    pool: bool = False,
) -> torch.Tensor:
    """Runs all blocks on hidden states in this layout; with `pool` only the pooled positions, [items, 1, width].

    `mask`, [context, context] or [items, 1, context, context], is added to attention's scores. Prompts join in the
    last blocks.
    """
    prompts = tuning.prompts
    unprompted = 0 if prompts is None else len(blocks) - prompts.keys.shape[-3]
    for index, block in enumerate(blocks):
        tokens = None if prompts is None or index < unprompted else _project(block, prompts, index - unprompted)
        last = pool and index == len(blocks) - 1
        hidden = _block(block, hidden, layout, tokens, mask, last, tuning.updates.get(index))
        if index in tuning.adapters:
            with owned(_owners(layout, last)):
                hidden = tuning.adapters[index](hidden)
    return hidden


def _owners(layout: Layout, pool: bool) -> torch.Tensor | None:
    """The owners of a block's output states."""
    return layout.pooled_owners(current_owners()) if pool else current_owners()


def _project(block: "ResidualAttentionBlock", prompts: JoinedPrompts, index: int) -> Tokens:
    weights, biases = block.attn.in_proj_weight.chunk(3), block.attn.in_proj_bias.chunk(3)
    key, value = (partial(F.linear, weight=weights[n], bias=biases[n]) for n in (1, 2))
    return projected(prompts, index, key, value)


def _block(
    block: "ResidualAttentionBlock",
    hidden: torch.Tensor,
    layout: Layout,
    prompts: Tokens | None,
    mask: torch.Tensor | None,
    pool: bool,
    update: Update | None = None,
) -> torch.Tensor:
    """The output of one residual attention block; with `pool` only at the pooled positions, [items, 1, width]."""
    queries, keys, values, mask = _heads(block, hidden, layout, prompts, mask, pool, update)
    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask).transpose(1, 2).flatten(2)
    attended = attended if pool else layout.pack(attended)
    with owned(_owners(layout, pool)):
        hidden = (layout.pooled(hidden) if pool else hidden) + block.ls_1(block.attn.out_proj(attended))
        output: torch.Tensor = hidden + block.ls_2(block.mlp(block.ln_2(hidden)))
    return output


def _heads(
    block: "ResidualAttentionBlock",
    hidden: torch.Tensor,
    layout: Layout,
    prompts: Tokens | None,
    mask: torch.Tensor | None,
    pool: bool,
    update: Update | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Queries, keys and values, each [items, heads, positions, width], and the mask that is added to their scores."""
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
        mask = mask[..., : keys.shape[1], : keys.shape[1]]
        mask = layout.pooled_mask(mask) if pool else mask
    if prompts is not None and mask is not None:  # every position sees all prompts
        mask = F.pad(mask, (prompts[0].shape[1], 0))
    return *by_head(attention.num_heads, queries, keys, values, prompts), mask


def _embed(features: torch.Tensor, projection: nn.Parameter | nn.Linear | None) -> torch.Tensor:
    if projection is None:
        raise ConfigError("this backbone has no common space of images and texts; join its features by 'concat'")
    projected = projection(features) if isinstance(projection, nn.Linear) else features @ projection
    return F.normalize(projected, dim=-1)
