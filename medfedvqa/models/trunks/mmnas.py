"""MMnas: the encoder-decoder that an architecture search chose for visual questions (Z. Yu et al., ACM MM 2020).

| operation | what it is                                                                          |
|-----------|-------------------------------------------------------------------------------------|
| `SA`      | self-attention                                                                      |
| `RSA`     | self-attention of regions whose scores have a prior from where the regions lie      |
| `GA`      | attention of regions guided by words                                                |
| `FFN`     | a feed-forward unit                                                                 |

Each has a residual and a normalisation. The search itself is not here: the sequences are its published outcome.
"""

import math

import torch
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models.recurrent import Reader
from medfedvqa.models.trunks.parts import AttentionUnit, FeedForwardUnit, PooledPair, Trunk

ENCODER = (*("SA",) * 4, *("FFN",) * 4, "SA", *("FFN",) * 3)
DECODER = (
    "GA", "GA", "FFN", "FFN", "GA", "FFN", "RSA", "GA", "FFN",
    "GA", "RSA", "FFN", "RSA", "SA", "FFN", "RSA", "GA", "FFN",
)  # fmt: skip
RELATION = 64
"""Units of a relation between two regions."""
_LEAST_DISTANCE, _LEAST_PRIOR = 1e-3, 1e-6


class Mmnas(Trunk):
    """The published architecture: twelve operations on words, eighteen on regions."""

    def __init__(self, regions: int, words: int, width: int) -> None:
        """`regions`, `words`: widths of what it reads; `width`: of its states."""
        super().__init__()
        self.features = min(2 * width, 1024)
        self.reader, self.regions = Reader("lstm", words, width), nn.Linear(regions, width)
        self.relations = nn.Sequential(nn.Linear(4, RELATION), nn.ReLU())
        self.encoder = nn.ModuleList(_unit(operation, width) for operation in ENCODER)
        self.decoder = nn.ModuleList(_unit(operation, width) for operation in DECODER)
        self.pooled = PooledPair(width, self.features)

    def forward(
        self, regions: torch.Tensor, words: torch.Tensor, present: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words, regions = self.reader(words, present), self.regions(regions)
        # Every row gets the same relations, as a row of its own: a row's gradient is then its patient's.
        offsets, between = grid_offsets(regions)
        relations = self.relations(offsets.expand(len(regions), -1, -1))
        for operation, unit in zip(ENCODER, self.encoder, strict=True):
            words = unit(words) if operation == "FFN" else unit(words, words, present)
        for operation, unit in zip(DECODER, self.decoder, strict=True):
            match operation:
                case "FFN":
                    regions = unit(regions)
                case "GA":
                    regions = unit(regions, words, present)
                case "SA":
                    regions = unit(regions, regions)
                case "RSA":
                    regions = unit(regions, relations, between)
        features, attention = self.pooled(regions, words, present)
        return features, attention


class RelationUnit(nn.Module):
    """LayerNorm(x + attention(x, x)), whose scores have the prior log max(relu(W r + b), 1e-6) of relations r."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.unit = AttentionUnit(width)
        self.prior = nn.Linear(RELATION, self.unit.attention.heads)

    def forward(self, regions: torch.Tensor, relations: torch.Tensor, between: torch.Tensor) -> torch.Tensor:
        """Regions [rows, n, width]; `relations` [rows, offsets, RELATION]; `between`: offset of each pair, [n, n]."""
        prior = self.prior(relations).relu().clamp(min=_LEAST_PRIOR).log()
        output: torch.Tensor = self.unit(regions, regions, prior=prior[:, between].permute(0, 3, 1, 2))
        return output


def grid_offsets(regions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct relations of a square grid's cells, [offsets, 4], and that of each pair, int64 [cells, cells].

    A relation is log(|x - x'| / w), log(|y - y'| / h), log(w' / w), log(h' / h), with distances of at least 0.001 of a
    cell; the last two are 0, since all cells are alike. `regions`: [rows, cells, width]. Raises `ConfigError` for a
    number of cells that is no square.
    """
    side = math.isqrt(regions.shape[1])
    if side**2 != regions.shape[1]:
        raise ConfigError("MMnas takes a square grid of places: choose another backbone, or another trunk")
    steps = torch.arange(side, device=regions.device)
    logs = steps.to(regions).clamp(min=_LEAST_DISTANCE).log()
    down, across = torch.meshgrid(logs, logs, indexing="ij")
    offsets = torch.stack([across, down, torch.zeros_like(down), torch.zeros_like(down)], dim=-1).flatten(0, 1)
    row, column = steps.repeat_interleave(side), steps.repeat(side)
    between = (row[:, None] - row).abs() * side + (column[:, None] - column).abs()
    return offsets, between


def _unit(operation: str, width: int) -> nn.Module:
    units = {"SA": AttentionUnit, "GA": AttentionUnit, "FFN": FeedForwardUnit, "RSA": RelationUnit}
    return units[operation](width)
