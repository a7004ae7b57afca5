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
from medfedvqa.models.backbone import Regions
from medfedvqa.papers.networks.recurrent import Reader
from medfedvqa.papers.networks.trunks.parts import AttentionUnit, FeedForwardUnit, PooledPair, Trunk

ENCODER = (*("SA",) * 4, *("FFN",) * 4, "SA", *("FFN",) * 3)
DECODER = (
    "GA", "GA", "FFN", "FFN", "GA", "FFN", "RSA", "GA", "FFN",
    "GA", "RSA", "FFN", "RSA", "SA", "FFN", "RSA", "GA", "FFN",
)  # fmt: skip
RELATION = 64
"""Units of a relation between two regions."""
_LEAST_DISTANCE, _LEAST_PRIOR, _LEAST_SIZE = 1e-3, 1e-6, 1e-6


class Mmnas(Trunk):
    """The published architecture: twelve operations on words, eighteen on regions."""

    def __init__(self, regions: int, words: int, width: int) -> None:
        """`regions`, `words`: the widths of the inputs; `width`: the width of the states."""
        super().__init__()
        self.features = min(2 * width, 1024)
        self.reader, self.regions = Reader("lstm", words, width), nn.Linear(regions, width)
        self.relations = nn.Sequential(nn.Linear(4, RELATION), nn.ReLU())
        self.encoder = nn.ModuleList(_unit(operation, width) for operation in ENCODER)
        self.decoder = nn.ModuleList(_unit(operation, width) for operation in DECODER)
        self.pooled = PooledPair(width, self.features)

    def forward(
        self, regions: Regions, words: torch.Tensor, present: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words, states, existing = self.reader(words, present), self.regions(regions.values), regions.present
        offsets, between = relations_of(regions)
        relations = self.relations(offsets)
        for operation, unit in zip(ENCODER, self.encoder, strict=True):
            words = unit(words) if operation == "FFN" else unit(words, words, present)
        for operation, unit in zip(DECODER, self.decoder, strict=True):
            match operation:
                case "FFN":
                    states = unit(states)
                case "GA":
                    states = unit(states, words, present)
                case "SA":
                    states = unit(states, states, existing)
                case "RSA":
                    states = unit(states, relations, between, existing)
        features, attention = self.pooled(states, words, present, existing)
        return features, attention


class RelationUnit(nn.Module):
    """LayerNorm(x + attention(x, x)), whose scores have the prior log max(relu(W r + b), 1e-6) of relations r."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.unit = AttentionUnit(width)
        self.prior = nn.Linear(RELATION, self.unit.attention.heads)

    def forward(
        self, regions: torch.Tensor, relations: torch.Tensor, between: torch.Tensor, existing: torch.Tensor | None
    ) -> torch.Tensor:
        """The unit's output for regions, both [rows, n, width].

        `relations`: [rows, offsets, RELATION]; `between`: the offset of each pair, [n, n]; `existing`: which regions
        there are, bool [rows, n].
        """
        prior = self.prior(relations).relu().clamp(min=_LEAST_PRIOR).log()
        output: torch.Tensor = self.unit(regions, regions, existing, prior[:, between].permute(0, 3, 1, 2))
        return output


def relations_of(regions: Regions) -> tuple[torch.Tensor, torch.Tensor]:
    """The relations of regions, [rows, relations, 4], and each pair's index into them, int64 [regions, regions].

    A relation is log(|x - x'| / w), log(|y - y'| / h), log(w' / w), log(h' / h), with distances of at least 0.001 of a
    region. Raises `ConfigError` for regions of files without boxes, and for a number of cells that is not a square.
    """
    values, boxes = regions.values, regions.boxes
    if boxes is None and regions.present is not None:
        raise ConfigError("MMnas uses the positions of regions: write 'boxes' into the region files")
    if boxes is None:
        offsets, between = grid_offsets(values)
        # Every row gets the same relations, as a row of its own: a row's gradient is then its patient's.
        return offsets.expand(len(values), -1, -1), between
    # A region that does not exist has a box of zeros; attention leaves out whatever relation it has then.
    sizes = (boxes[..., 2:] - boxes[..., :2]).clamp(min=_LEAST_SIZE)
    centres = (boxes[..., 2:] + boxes[..., :2]) / 2
    apart = (centres[:, :, None] - centres[:, None]).abs() / sizes[:, :, None]
    relative = sizes[:, None] / sizes[:, :, None]
    relations = torch.cat([apart.clamp(min=_LEAST_DISTANCE), relative], dim=-1).log().flatten(1, 2)
    count = values.shape[1]
    return relations, torch.arange(count**2, device=values.device).view(count, count)


def grid_offsets(regions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct relations of a square grid's cells, [offsets, 4], and each pair's index, int64 [cells, cells].

    Their last two numbers are 0, since all cells are alike. `regions`: [rows, cells, width]. Raises `ConfigError` for a
    number of cells that is not a square.
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
