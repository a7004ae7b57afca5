"""Self-supervised targets from a picture's pixels: its orientation, its edges, and its thumbnail."""

import math

import torch
import torch.nn.functional as F

ORIENTATIONS = 8
"""Four quarter turns, each plain or mirrored; 0 is the picture as it is."""

BINS = 8
"""Direction bins over half a turn: a gradient and its negative share a bin."""


def turned(images: torch.Tensor, orientations: torch.Tensor) -> torch.Tensor:
    """Square images [n, channels, side, side], each turned by its number of `orientations`, int64 [n]."""
    result = images.clone()
    for number in range(1, ORIENTATIONS):
        chosen = orientations == number
        if chosen.any():
            part = images[chosen].flip(-1) if number >= 4 else images[chosen]
            result[chosen] = torch.rot90(part, number % 4, (2, 3))
    return result


def edge_histograms(grey: torch.Tensor, cells: int) -> torch.Tensor:
    """Histograms of oriented gradients, [n, cells, cells, 8], of grey pictures [n, 1, side, side].

    Each pixel adds the length of its gradient to the two nearest directions; a cell's histogram has length 1 at most.
    Source: N. Dalal and B. Triggs, "Histograms of Oriented Gradients for Human Detection", CVPR 2005, without the
    overlapping blocks.
    """
    padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")
    across = padded[:, 0, 1:-1, 2:] - padded[:, 0, 1:-1, :-2]
    down = padded[:, 0, 2:, 1:-1] - padded[:, 0, :-2, 1:-1]
    length = (across.square() + down.square()).sqrt()
    place = (torch.atan2(down, across) % math.pi) / math.pi * BINS
    lower = place.floor()
    share = place - lower
    bins = torch.stack([lower.long() % BINS, (lower.long() + 1) % BINS], dim=1)
    weights = torch.stack([length * (1 - share), length * share], dim=1)
    planes = grey.new_zeros(len(grey), BINS, *grey.shape[2:]).scatter_add_(1, bins, weights)
    sums = F.adaptive_avg_pool2d(planes, cells).movedim(1, -1)
    return sums / (sums.square().sum(-1, keepdim=True) + 1e-3 * sums.square().mean() + 1e-12).sqrt()


def thumbnails(grey: torch.Tensor, side: int = 16) -> torch.Tensor:
    """Grey pictures [n, 1, ...] as means over `side` x `side` cells, minus each picture's mean: [n, side^2]."""
    small = F.adaptive_avg_pool2d(grey, side).flatten(1)
    return small - small.mean(dim=1, keepdim=True)
