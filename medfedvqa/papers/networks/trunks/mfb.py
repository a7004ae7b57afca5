"""MFB with co-attention: multi-modal factorised bilinear pooling (Z. Yu et al., ICCV 2017)."""

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.models.backbone import Regions
from medfedvqa.papers.networks.recurrent import Reader
from medfedvqa.papers.networks.trunks.parts import Trunk, masked

FACTORS, GLIMPSES = 5, 2
"""The paper's k, and the number of attention maps on either side."""
_LEAST = 1e-12
"""Keeps the square root's slope finite at 0."""


class BilinearPooling(nn.Module):
    """The sum over k of U x * V y, then signed square roots, then length 1 (Eqs. 5 to 7)."""

    def __init__(self, left: int, right: int, outputs: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(left, FACTORS * outputs), nn.Linear(right, FACTORS * outputs)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The pooled product, [..., outputs], of [..., left] and [..., right], which are broadcast."""
        pooled = torch.unflatten(self.left(left) * self.right(right), -1, (-1, FACTORS)).sum(dim=-1)
        rooted = pooled / (pooled.abs() + _LEAST).sqrt()
        return F.normalize(rooted, dim=-1)


class Glimpses(nn.Module):
    """Means of states by several attention maps, side by side."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.scores = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, GLIMPSES))

    def forward(
        self, scored: torch.Tensor, states: torch.Tensor, present: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The means of states [rows, n, width] under each attention map, [rows, GLIMPSES width], and the maps.

        The maps, [rows, GLIMPSES, n], are a softmax of scores of `scored` [rows, n, inputs]. `present`: bool [rows, n].
        """
        scores = self.scores(scored).transpose(1, 2)
        weights = masked(scores, present if present is None else present[:, None]).softmax(dim=2)
        return (weights @ states).flatten(1), weights


class Mfb(Trunk):
    """The question attends to itself, the picture by its pooling with the question; both are pooled once more."""

    def __init__(self, regions: int, words: int, width: int) -> None:
        """`regions`, `words`: the widths of the inputs; `width`: the width of the question's states, 1,024 in the
        paper.
        """
        super().__init__()
        self.features = max(1, width * 1000 // 1024)
        self.reader, hidden = Reader("lstm", words, width), max(1, width // 2)
        self.question = Glimpses(width, hidden)
        self.looked, self.picture = (
            BilinearPooling(regions, GLIMPSES * width, self.features),
            Glimpses(self.features, hidden),
        )
        self.joint = BilinearPooling(GLIMPSES * regions, GLIMPSES * width, self.features)

    def forward(
        self, regions: Regions, words: torch.Tensor, present: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.reader(words, present)
        question, _ = self.question(states, states, present)
        looked = self.looked(regions.values, question[:, None])
        picture, weights = self.picture(looked, regions.values, regions.present)
        return self.joint(picture, question), weights.mean(dim=1)
