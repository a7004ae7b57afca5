"""Prefix prompts: tokens that join the keys and values of self-attention (Zhu et al., 2024, section 2.2).

A prompt is a tensor [blocks, length, width]. In each block its first half are keys and its second half values.
"""

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
            raise ConfigError(f"a prompt's length is {self.length}; it is split into keys and values, so it is even")
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
