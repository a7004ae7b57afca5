"""The layout of a batch's positions in memory: each distinct hidden state once, and padding only inside attention.

In causal attention, a position depends only on the tokens up to it. So a question is cut at its end token, and
questions with a common beginning share the hidden states of that beginning.
"""

from dataclasses import dataclass
from typing import Protocol

import torch


class Layout(Protocol):
    """The operations of a layout that a block needs."""

    def pad(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states as [items, length, width], for attention."""

    def pack(self, hidden: torch.Tensor) -> torch.Tensor:
        """The inverse of `pad`."""

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        """The one position of each item that is pooled, [items, 1, width]."""

    def pooled_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """The rows of a mask [length, length] or [items, 1, length, length] for the pooled positions.

        They broadcast to [items, heads, 1, length].
        """

    def pooled_owners(self, owners: torch.Tensor | None) -> torch.Tensor | None:
        """The owners of the items, int64 [items], from the owners of all states, int64 [states], if there are any."""


class Aligned:
    """A layout for items of one length, [items, length, width], that share nothing; the first position is pooled."""

    def pad(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def pack(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden[:, :1]

    def pooled_mask(self, mask: torch.Tensor) -> torch.Tensor:
        return mask[:1]

    def pooled_owners(self, owners: torch.Tensor | None) -> torch.Tensor | None:
        return owners


@dataclass(frozen=True)
class Beginnings:
    """The distinct beginnings of many questions, numbered: a state for each."""

    ends: torch.Tensor
    """The position that is pooled, int64 [questions]."""
    lengths: torch.Tensor
    """The number of positions to compute, int64 [questions]."""
    states: torch.Tensor
    """The state of each position, int64 [questions, longest]. Beyond its length a question repeats its last state."""
    count: int
    """The number of states."""
    tokens: torch.Tensor
    """The token ids, int64 [questions, longest]."""


def beginnings(tokens: torch.Tensor, ends: torch.Tensor, causal: bool, cut: bool = False) -> Beginnings:
    """Numbers the beginnings of token ids [questions, context].

    Without causal attention nothing is shared, and nothing is cut unless `cut` declares that a mask hides positions
    behind the end.
    """
    lengths = ends + 1 if causal or cut else torch.full_like(ends, tokens.shape[1])
    longest = int(lengths.max())
    numbers: dict[tuple[int, int], int] = {}
    rows = []
    for question, (ids, length) in enumerate(zip(tokens.tolist(), lengths.tolist(), strict=True)):
        state, row = -1 if causal else -1 - question, []
        for token in ids[:length]:
            state = numbers.setdefault((state, token), len(numbers))
            row.append(state)
        rows.append(row + [state] * (longest - length))
    states = torch.tensor(rows, dtype=torch.int64, device=tokens.device)
    return Beginnings(ends, lengths, states, len(numbers), tokens[:, :longest])


class Packed:
    """Some of the questions, each distinct state once, [states, width]; with owners, once for each owner."""

    def __init__(self, of: Beginnings, items: torch.Tensor, owner: torch.Tensor | None = None) -> None:
        """`items`: the questions, int64 [items]; `owner`: the owner of each, int64 [items]."""
        lengths, self._ends = of.lengths[items], of.ends[items]
        self.length = int(lengths.max())
        """Positions of the longest question."""
        self.present = torch.arange(self.length, device=lengths.device) < lengths[:, None]
        """Which positions each question has, bool [items, length]."""
        self.tokens = of.tokens[items, : self.length]
        """The token ids, int64 [items, length]."""
        states = of.states[items, : self.length]
        if owner is not None:
            states = states + owner[:, None] * of.count
        present, spots = torch.unique(states, return_inverse=True)
        self.states = present % of.count
        """The number of each row's state, int64 [states]."""
        self.owners = None if owner is None else present // of.count
        """The owner of each row, int64 [states], if there are owners."""
        place, inside = torch.arange(spots.numel(), device=spots.device), self.present.flatten()
        self._spots = spots.flatten()
        # The first of the places that share a state computes it.
        self._places = place.new_zeros(len(present)).scatter_reduce(
            0, self._spots[inside], place[inside], "amin", include_self=False
        )
        self._pooled = spots.gather(1, self._ends[:, None]).flatten()

    @property
    def positions(self) -> torch.Tensor:
        """The position of each row within its question, int64 [states]."""
        return self._places % self.length

    def pad(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(hidden.index_select(0, self._spots), 0, (-1, self.length))

    def pack(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.flatten(0, 1).index_select(0, self._places)

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.index_select(0, self._pooled)[:, None]

    def pooled_mask(self, mask: torch.Tensor) -> torch.Tensor:
        if mask.dim() == 4:
            return mask[torch.arange(len(mask), device=mask.device), :, self._ends, None]
        return mask[self._ends, None, None]

    def pooled_owners(self, owners: torch.Tensor | None) -> torch.Tensor | None:
        return None if owners is None else owners.index_select(0, self._pooled)
