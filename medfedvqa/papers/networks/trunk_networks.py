"""The networks that are trunks, trained from scratch on a frozen backbone's grid or regions, and their shared parts."""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.errors import ConfigError
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
        return self.out(attended)


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
        return self.norm(states + self.attention(states, others, present, prior))


class FeedForwardUnit(nn.Module):
    """LayerNorm(x + W_2 relu(W_1 x + b_1) + b_2), four times as wide within."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.norm(states + self.layers(states))


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


# LSTM and GRU over words, made of plain linear layers.
#
# Private training must record every use of a layer (`privacy.recorder`), and torch's fused cells hide theirs.

Cell = Literal["lstm", "gru"]
GATES = {"lstm": 4, "gru": 3}


def lstm(gates: torch.Tensor, weight: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """The state after each word, [items, words, width] (S. Hochreiter, J. Schmidhuber, 1997, with a forget gate).

    `gates`: the projected words with all biases, [items, words, 4 width], in torch's order; `weight`: that of the
    state, [4 width, width]; `present`: bool [items, words]. A word that is not present changes nothing.
    """
    state = memory = gates.new_zeros(len(gates), weight.shape[1])
    states = []
    for word, there in zip(gates.unbind(dim=1), present.unbind(dim=1), strict=True):
        input_gate, forget_gate, candidate, output_gate = (word + F.linear(state, weight)).chunk(4, dim=1)
        updated = forget_gate.sigmoid() * memory + input_gate.sigmoid() * candidate.tanh()
        memory = torch.where(there[:, None], updated, memory)
        state = torch.where(there[:, None], output_gate.sigmoid() * updated.tanh(), state)
        states.append(state)
    return torch.stack(states, dim=1)


def gru(gates: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """The state after each word, [items, words, width] (K. Cho et al., EMNLP 2014, with torch's reset gate).

    Like `lstm`, with three gates; `bias`: the state's bias, [3 width]; the reset gate scales the last third.
    """
    state = gates.new_zeros(len(gates), weight.shape[1])
    states = []
    for word, there in zip(gates.unbind(dim=1), present.unbind(dim=1), strict=True):
        reset, update, candidate = word.chunk(3, dim=1)
        reset_state, update_state, candidate_state = F.linear(state, weight, bias).chunk(3, dim=1)
        kept = (update + update_state).sigmoid()
        new = (candidate + (reset + reset_state).sigmoid() * candidate_state).tanh()
        state = torch.where(there[:, None], (1 - kept) * new + kept * state, state)
        states.append(state)
    return torch.stack(states, dim=1)


class Reader(nn.Module):
    """One recurrent layer over the embeddings of words."""

    def __init__(self, cell: Cell, inputs: int, width: int) -> None:
        super().__init__()
        self._cell = cell
        self.input = nn.Linear(inputs, GATES[cell] * width)
        # The biases of an LSTM's words and state only ever add up.
        self.state = nn.Linear(width, GATES[cell] * width, bias=cell == "gru")

    def forward(self, words: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """The state after each word, [items, words, width]; `words` [items, words, inputs], `present` bool."""
        gates = self.input(words)
        if self._cell == "lstm":
            return lstm(gates, self.state.weight, present)
        return gru(gates, self.state.weight, self.state.bias, present)


# BUTD: top-down attention over regions (P. Anderson et al., CVPR 2018, section 3.3, Eqs. 6 to 12).


class GatedTanh(nn.Module):
    """tanh(W x + b) * sigmoid(W' x + b')."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.value(inputs).tanh() * self.gate(inputs).sigmoid()


class Butd(Trunk):
    """The question, a GRU's last state, weighs regions once; both are multiplied and go through a last gated layer."""

    def __init__(self, regions: int, words: int, width: int) -> None:
        """`regions`, `words`: the widths of the inputs; `width`: the width of the states, 512 in the paper."""
        super().__init__()
        self.features = width
        self.reader = Reader("gru", words, width)
        self.attend, self.score = GatedTanh(regions + width, width), nn.Linear(width, 1)
        self.question, self.picture = GatedTanh(width, width), GatedTanh(regions, width)
        self.joint = GatedTanh(width, width)

    def forward(
        self, regions: Regions, words: torch.Tensor, present: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        question = self.reader(words, present)[:, -1]
        beside = question[:, None].expand(-1, regions.values.shape[1], -1)
        scores = self.score(self.attend(torch.cat([regions.values, beside], dim=2)))[..., 0]
        weights = masked(scores, regions.present).softmax(dim=1)
        picture = (weights[:, None] @ regions.values)[:, 0]
        return self.joint(self.question(question) * self.picture(picture)), weights


# BAN: bilinear attention between words and regions, glimpse after glimpse (J.-H. Kim et al., NeurIPS 2018).

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
        return self.out((self.words(words).relu() * looked).sum(dim=1))


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


# MFB with co-attention: multi-modal factorised bilinear pooling (Z. Yu et al., ICCV 2017).

FACTORS, MAPS = 5, 2
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
        self.scores = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, MAPS))

    def forward(
        self, scored: torch.Tensor, states: torch.Tensor, present: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The means of states [rows, n, width] under each attention map, [rows, MAPS width], and the maps.

        The maps, [rows, MAPS, n], are a softmax of scores of `scored` [rows, n, inputs]. `present`: bool [rows, n].
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
            BilinearPooling(regions, MAPS * width, self.features),
            Glimpses(self.features, hidden),
        )
        self.joint = BilinearPooling(MAPS * regions, MAPS * width, self.features)

    def forward(
        self, regions: Regions, words: torch.Tensor, present: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.reader(words, present)
        question, _ = self.question(states, states, present)
        looked = self.looked(regions.values, question[:, None])
        picture, weights = self.picture(looked, regions.values, regions.present)
        return self.joint(picture, question), weights.mean(dim=1)


# MCAN: deep modular co-attention, an encoder of words and a decoder of regions (Z. Yu et al., CVPR 2019).
#
# The paper's small model has states of 512 in heads of 64, the large one of 1,024; both have six layers.

LAYERS = 6


class _EncoderLayer(nn.Module):
    """SA: self-attention of words, then a feed-forward unit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attend, self.forward_unit = AttentionUnit(width), FeedForwardUnit(width)

    def forward(self, words: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        return self.forward_unit(self.attend(words, words, present))


class _DecoderLayer(nn.Module):
    """SGA: self-attention of regions, attention guided by words, then a feed-forward unit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attend, self.guide, self.forward_unit = AttentionUnit(width), AttentionUnit(width), FeedForwardUnit(width)

    def forward(
        self, regions: torch.Tensor, words: torch.Tensor, present: torch.Tensor, existing: torch.Tensor | None
    ) -> torch.Tensor:
        regions = self.guide(self.attend(regions, regions, existing), words, present)
        return self.forward_unit(regions)


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


# MMnas: the encoder-decoder that an architecture search chose for visual questions (Z. Yu et al., ACM MM 2020).
#
# | operation | what it is                                                                          |
# |-----------|-------------------------------------------------------------------------------------|
# | `SA`      | self-attention                                                                      |
# | `RSA`     | self-attention of regions whose scores have a prior from where the regions lie      |
# | `GA`      | attention of regions guided by words                                                |
# | `FFN`     | a feed-forward unit                                                                 |
#
# Each has a residual and a normalisation. The search itself is not here: the sequences are its published outcome.

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
        return self.unit(regions, regions, existing, prior[:, between].permute(0, 3, 1, 2))


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
