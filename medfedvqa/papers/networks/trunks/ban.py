"""BAN: bilinear attention between words and regions, glimpse after glimpse (J.-H. Kim et al., NeurIPS 2018)."""

import torch
from torch import nn

from medfedvqa.models.backbone import Regions
from medfedvqa.papers.networks.recurrent import Reader
from medfedvqa.papers.networks.trunks.parts import Trunk, masked

GLIMPSES, RANK_TIMES = 8, 3
"""Attention maps, and the rank of their factors over the width of states: both the paper's."""


class BilinearMaps(nn.Module):
    """All attention maps: softmax over pairs of a word and a region of (relu(X U) * p_g) relu(Y V)^T (Eq. 6)."""

    def __init__(self, regions: int, width: int) -> None:
        super().__init__()
        rank = RANK_TIMES * width
        self.words, self.regions = nn.Linear(width, rank), nn.Linear(regions, rank)
        # A depthwise convolution multiplies each channel by one weight per glimpse. Private training knows each row's
        # share of its gradient.
        self.glimpses = nn.Conv2d(rank, rank * GLIMPSES, 1, groups=rank, bias=False)

    def forward(self, words: torch.Tensor, regions: Regions, present: torch.Tensor) -> torch.Tensor:
        """The attention maps, [rows, GLIMPSES, words, regions]; each map of a row sums to 1."""
        factors = self.words(words).relu().transpose(1, 2)[..., None]
        weighed = torch.unflatten(self.glimpses(factors)[..., 0], 1, (-1, GLIMPSES)).permute(0, 2, 3, 1)
        scores = weighed @ self.regions(regions.values).relu().transpose(1, 2)[:, None]
        pairs = present[:, None, :, None]
        if regions.present is not None:
            pairs = pairs & regions.present[:, None, None]
        return masked(scores, pairs).flatten(2).softmax(dim=2).view_as(scores)


class BilinearGlimpse(nn.Module):
    """P^T f with f_k = relu(X U)_k^T A relu(Y V)_k (Eqs. 4 and 5)."""

    def __init__(self, regions: int, width: int) -> None:
        super().__init__()
        self.words, self.regions = nn.Linear(width, width), nn.Linear(regions, width)
        self.out = nn.Linear(width, width)

    def forward(self, words: torch.Tensor, regions: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The glimpse, [rows, width]. `weights`: its map, [rows, words, regions]."""
        looked = weights @ self.regions(regions).relu()
        output: torch.Tensor = self.out((self.words(words).relu() * looked).sum(dim=1))
        return output


class Ban(Trunk):
    """A GRU reads the words; every glimpse adds its result to each state (Eq. 8). The output sums over words."""

    def __init__(self, regions: int, words: int, width: int) -> None:
        """`regions`, `words`: the widths of the inputs; `width`: the width of the states, 1,024 in the paper."""
        super().__init__()
        self.features = width
        self.reader, self.maps = Reader("gru", words, width), BilinearMaps(regions, width)
        self.glimpses = nn.ModuleList(BilinearGlimpse(regions, width) for _ in range(GLIMPSES))

    def forward(
        self, regions: Regions, words: torch.Tensor, present: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.reader(words, present)
        maps = self.maps(states, regions, present)
        for number, glimpse in enumerate(self.glimpses):
            states = states + glimpse(states, regions.values, maps[:, number])[:, None]
        return (states * present[..., None]).sum(dim=1), maps.mean(dim=1).sum(dim=1)
