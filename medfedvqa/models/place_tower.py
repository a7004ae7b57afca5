"""A picture tower that keeps positions: a convolutional stem, attention blocks, and pooling by place.

The stem sees edges at full resolution, which a cut into patches of 16 pixels does not. The pooled output is not one
summary token but the features of 4 x 4 places, each narrowed to the same small width, one after the other. So an answer
head can tell where something is. The class token stays as a token that all places can write to.
"""

from typing import Any

import torch
import torch.nn.functional as F
from open_clip.transformer import VisionTransformer
from torch import nn

PLACES = 4
"""Rows and columns of places in the pooled output."""

STEM = (48, 96)
"""Channels of the stem at a quarter and at an eighth of the input's side."""


class PlaceTower(VisionTransformer):  # type: ignore[misc]  # open_clip has no annotations
    """open_clip's vision transformer with another stem and another pooling, and with `pool_type` `places`.

    Its width less `whole` is a multiple of `PLACES` squared.
    """

    def __init__(self, width: int, stem: nn.Module | None = None, whole: int = 0, **options: Any) -> None:
        """`stem`: pictures to [n, width, rows, columns], without later normalisation; None: the tower's own
        convolutions. `whole`: the width of the whole picture's part of the pooled output. `options`: open_clip's."""
        super().__init__(width=width, pool_type="avg", **options)
        # open_clip admits only the names of its own kinds of pooling.
        self.pool_type = "places"
        self.conv1 = _stem(width) if stem is None else stem
        if stem is not None:
            self.ln_pre, self.ln_post = nn.Identity(), nn.Identity()
        self.narrow = nn.Linear(width, (width - whole) // PLACES**2)
        self.whole = nn.Linear(width, whole) if whole else None

    def _pool(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [n, 1 + cells, width] to the pooled output [n, width] and the cells [n, cells, width]."""
        cells = self.ln_post(x)[:, 1:]
        grid = cells.transpose(1, 2).unflatten(2, self.grid_size)
        places = F.adaptive_avg_pool2d(grid, PLACES).flatten(2).transpose(1, 2)
        pooled = self.narrow(places).flatten(1)
        return pooled if self.whole is None else torch.cat([self.whole(cells.mean(1)), pooled], dim=1), cells


def _stem(width: int) -> nn.Sequential:
    """Pictures [n, 3, side, side] to [n, width, side / 16, side / 16].

    Normalisation is within one picture and has no weights, so that patients stay separate under differential privacy.
    """
    quarter, eighth = STEM
    return nn.Sequential(
        nn.Conv2d(3, quarter, 7, stride=4, padding=3),
        _Normalised(),
        nn.Conv2d(quarter, eighth, 3, stride=2, padding=1),
        _Normalised(),
        _Residual(eighth),
        _Normalised(),
        nn.Conv2d(eighth, width, 3, stride=2, padding=1),
    )


class _Normalised(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(_GroupNorm(), nn.GELU())


class _GroupNorm(nn.Module):
    """Normalises each picture's channels in eight groups."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.group_norm(hidden, 8)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = hidden + self.conv(hidden)
        return output
