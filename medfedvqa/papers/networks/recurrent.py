"""LSTM and GRU over words, made of plain linear layers.

Private training must record every use of a layer (`privacy.recorder`), and torch's fused cells hide theirs.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

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
