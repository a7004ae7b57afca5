"""MCAN: deep modular co-attention, an encoder of words and a decoder of regions (Z. Yu et al., CVPR 2019).

The paper's small model has states of 512 in heads of 64, the large one of 1,024; both have six layers.
"""

import torch
from torch import nn

from medfedvqa.models.backbone import Regions
from medfedvqa.papers.networks.recurrent import Reader
from medfedvqa.papers.networks.trunks.parts import AttentionUnit, FeedForwardUnit, PooledPair, Trunk

LAYERS = 6


class _EncoderLayer(nn.Module):
    """SA: self-attention of words, then a feed-forward unit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attend, self.forward_unit = AttentionUnit(width), FeedForwardUnit(width)

    def forward(self, words: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.forward_unit(self.attend(words, words, present))
        return output


class _DecoderLayer(nn.Module):
    """SGA: self-attention of regions, attention guided by words, then a feed-forward unit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attend, self.guide, self.forward_unit = AttentionUnit(width), AttentionUnit(width), FeedForwardUnit(width)

    def forward(
        self, regions: torch.Tensor, words: torch.Tensor, present: torch.Tensor, existing: torch.Tensor | None
    ) -> torch.Tensor:
        regions = self.guide(self.attend(regions, regions, existing), words, present)
        output: torch.Tensor = self.forward_unit(regions)
        return output


class Mcan(Trunk):
    """The encoder-decoder model: every decoder layer sees the words of the last encoder layer."""

    def __init__(self, regions: int, words: int, width: int) -> None:
        """`regions`, `words`: the widths of the inputs; `width`: the width of the states."""
        super().__init__()
        self.features = 2 * width
        self.reader, self.regions = Reader("lstm", words, width), nn.Linear(regions, width)
        self.encoder = nn.ModuleList(_EncoderLayer(width) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(_DecoderLayer(width) for _ in range(LAYERS))
        self.pooled = PooledPair(width, self.features)

    def forward(
        self, regions: Regions, words: torch.Tensor, present: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words, states, existing = self.reader(words, present), self.regions(regions.values), regions.present
        for layer in self.encoder:
            words = layer(words, present)
        for layer in self.decoder:
            states = layer(states, words, present, existing)
        features, attention = self.pooled(states, words, present, existing)
        return features, attention
