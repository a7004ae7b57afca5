"""Self-attention with prompts, for the towers of CLIP and ViLT."""

from collections.abc import Callable

import torch

from medfedvqa.models.prompts import JoinedPrompts

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
