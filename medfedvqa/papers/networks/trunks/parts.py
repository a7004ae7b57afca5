"""Building blocks of several trunks: masked attention, units with residuals, and pooling by attention."""

from abc import ABC, abstractmethod

import torch
from torch import nn

from medfedvqa.models.backbone import Regions
from medfedvqa.models.prompts import by_head

HEAD_WIDTH = 64
"""The width of an attention head, if it divides a state's width."""


class Trunk(nn.Module, ABC):
    """A network that joins a picture's regions with a question's words. No row depends on another."""

    features: int
    """The width of its output."""

    @abstractmethod
    def forward(
        self, regions: Regions, words: torch.Tensor, present: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The features of rows, [rows, features], and their attention to regions, [rows, regions], whose rows sum to 1.

        `words`: [rows, words, width]; `present`: bool [rows, words].
        """


def masked(scores: torch.Tensor, present: torch.Tensor | None) -> torch.Tensor:
    """Scores with the absent items masked, so that a softmax gives them no weight.

    If no item is present, the softmax is uniform. `present` is None if all items are.
    """
    return scores if present is None else scores.masked_fill(~present, torch.finfo(scores.dtype).min)


class Attention(nn.Module):
    """Scaled dot-product attention in several heads (A. Vaswani et al., NeurIPS 2017)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH if width % HEAD_WIDTH == 0 else 1
        self.queries, self.keys, self.values, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(
        self,
        states: torch.Tensor,
        others: torch.Tensor,
        present: torch.Tensor | None = None,
        prior: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The output, [rows, n, width], of states [rows, n, width] that attend to `others` [rows, m, width].

        `present`: which of the others there are, bool [rows, m]; `prior`: added to scores, [rows, heads, n, m].
        """
        queries, keys, values = by_head(self.heads, self.queries(states), self.keys(others), self.values(others), None)
        scores = queries @ keys.transpose(-2, -1) * queries.shape[-1] ** -0.5
        if prior is not None:
            scores = scores + prior
        scores = masked(scores, present if present is None else present[:, None, None])
        attended = (scores.softmax(dim=-1) @ values).transpose(1, 2).flatten(2)
        output: torch.Tensor = self.out(attended)
        return output


class AttentionUnit(nn.Module):
    """LayerNorm(x + attention(x, others)). It is self-attention where `others` is x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm = Attention(width), nn.LayerNorm(width)

    def forward(
        self,
        states: torch.Tensor,
        others: torch.Tensor,
        present: torch.Tensor | None = None,
        prior: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Attention`."""
        output: torch.Tensor = self.norm(states + self.attention(states, others, present, prior))
        return output


class FeedForwardUnit(nn.Module):
    """LayerNorm(x + W_2 relu(W_1 x + b_1) + b_2), four times as wide within."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.norm(states + self.layers(states))
        return output


class AttentionPooling(nn.Module):
    """Pools many vectors to one: their mean with weights from a layer of `hidden` units, then a projection."""

    def __init__(self, width: int, hidden: int, output: int) -> None:
        super().__init__()
        self.scores = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.out = nn.Linear(width, output)

    def forward(self, states: torch.Tensor, present: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """States [rows, n, width] to [rows, output], and the weights [rows, n]; `present`: bool [rows, n]."""
        scores = self.scores(states)[..., 0]
        weights = masked(scores, present).softmax(dim=1)
        return self.out((weights[:, None] @ states)[:, 0]), weights


class PooledPair(nn.Module):
    """The output layer of MCAN and MMnas: both pooled sides, summed, normalised (Z. Yu, CVPR 2019, Eqs. 11 to 13)."""

    def __init__(self, width: int, output: int) -> None:
        super().__init__()
        hidden = min(512, width)
        self.words, self.regions = AttentionPooling(width, hidden, output), AttentionPooling(width, hidden, output)
        self.norm = nn.LayerNorm(output)

    def forward(
        self, regions: torch.Tensor, words: torch.Tensor, present: torch.Tensor, existing: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The pooled features, [rows, output], and the attention to regions, [rows, regions]."""
        question, _ = self.words(words, present)
        picture, weights = self.regions(regions, existing)
        return self.norm(picture + question), weights
