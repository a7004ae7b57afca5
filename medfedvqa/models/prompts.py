"""Prefix prompts: tokens that join the keys and values of self-attention (Zhu et al., 2024, section 2.2).

A prompt is a tensor [blocks, length, width]. In each block its first half are keys and its second half values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from medfedvqa.errors import ConfigError

Joining = Literal["concatenate", "add"]
Placing = Literal["before", "after"]


@dataclass(frozen=True)
class PromptShape:
    """`blocks` r: the number of blocks; `length` L: tokens per block, half keys and half values; `width` D."""

    blocks: int
    length: int
    width: int

    def __post_init__(self) -> None:
        if self.length < 2 or self.length % 2:
            raise ConfigError(f"a prompt's length must be even (it is split into keys and values), not {self.length}")
        if self.blocks < 1:
            raise ConfigError(f"prompts in {self.blocks} blocks; at least 1 is needed")

    @property
    def size(self) -> tuple[int, int, int]:
        """The tensor's shape, [blocks, length, width]."""
        return self.blocks, self.length, self.width


@dataclass(frozen=True)
class JoinedPrompts:
    """Prompt tokens as attention takes them: [blocks, tokens, width], or [owners, blocks, tokens, width] with
    separate tokens for each owner of items in a batch.

    `placing`: they join keys and values `before` their projection (Eqs. 4-5 as printed) or `after` it.
    `owner`: the owner of each item, int64 [items], if owners have separate tokens.
    """

    keys: torch.Tensor
    values: torch.Tensor
    placing: Placing
    owner: torch.Tensor | None = None


def in_norm_of_states(prompt: torch.Tensor) -> torch.Tensor:
    """Scales each token [..., width] to norm sqrt(width), that of a state after LayerNorm; zeros stay zeros."""
    return F.rms_norm(prompt, prompt.shape[-1:], eps=1e-12)


def join(
    local: torch.Tensor,
    shared: torch.Tensor | None,
    joining: Joining,
    placing: Placing,
    owner: torch.Tensor | None = None,
) -> JoinedPrompts:
    """Splits the local and the shared prompt each into keys and values, then joins the halves.

    `local`: [blocks, length, width] or [owners, blocks, length, width]; `shared`: [blocks, length, width], a constant,
    or None before the first exchange. `concatenate` gives length tokens in each block, length / 2 without a shared
    prompt; `add` always length / 2. Raises `ConfigError` if the two do not fit.
    """
    keys, values = local.chunk(2, dim=-2)
    if shared is not None:
        if shared.shape != local.shape[-3:]:
            raise ConfigError(f"the shared prompt is {tuple(shared.shape)}, the local {tuple(local.shape[-3:])}")
        shared_keys, shared_values = (half.expand_as(keys) for half in shared.detach().chunk(2, dim=-2))
        if joining == "add":
            keys, values = keys + shared_keys, values + shared_values
        else:
            keys = torch.cat([keys, shared_keys], dim=-2)
            values = torch.cat([values, shared_values], dim=-2)
    return JoinedPrompts(keys, values, placing, owner)


Projection = Callable[[torch.Tensor], torch.Tensor]
Tokens = tuple[torch.Tensor, torch.Tensor]
"""One block's prompt tokens as projected keys and values, each [1 or items, tokens, width]."""


def projected(prompts: JoinedPrompts, index: int, key: Projection, value: Projection) -> Tokens:
    """The prompt tokens of one block, projected by its W^K and W^V if prompts join before these (Eqs. 4-5)."""
    keys, values = prompts.keys[..., index, :, :], prompts.values[..., index, :, :]
    if prompts.placing == "before":
        keys, values = key(keys), value(values)
    if prompts.owner is None:
        return keys[None], values[None]
    return keys.index_select(0, prompts.owner), values.index_select(0, prompts.owner)


def by_head(
    heads: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, prompts: Tokens | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values [items, positions, width] as [items, heads, positions, width]; prompts come first."""
    if prompts is not None:
        keys, values = (
            torch.cat([tokens.expand(len(part), -1, -1), part], dim=1)
            for tokens, part in zip(prompts, (keys, values), strict=True)
        )
    queries, keys, values = (torch.unflatten(part, -1, (heads, -1)).transpose(1, 2) for part in (queries, keys, values))
    return queries, keys, values


def attention_to_patches(
    queries: torch.Tensor, keys: torch.Tensor, patches: int, visible: torch.Tensor | None = None
) -> torch.Tensor:
    """The attention of each position to each of the last keys, a picture's patches: [items, positions, patches].

    Queries and keys are [items, heads, positions, width]; the result is the mean over heads. `visible`: the keys that
    a position may see, broadcast to the scores.
    """
    scores: torch.Tensor = queries @ keys.transpose(-2, -1) * queries.shape[-1] ** -0.5
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    return scores.softmax(dim=-1).mean(dim=1)[..., -patches:]
