"""The best round of a site: the one after which most validation rows are answered right.

The site chooses by its validation rows, without noise, so the choice is refused under differential privacy. No message
says which round was best, or after which round a site stopped.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch

from audits import Tensors
from medfedvqa.core.method import State, arrays_of, tensors_of
from medfedvqa.core.scores import VALIDATED
from medfedvqa.evaluation.flatness import rounds_since_best
from medfedvqa.training import Site

if TYPE_CHECKING:
    from medfedvqa.core.local_training import Alone

BEST = "best"
"""The key in the training state that holds the best round so far: its validation rows answered right, its state, and
the message that the site tests with. It never leaves."""


def remembered(method: "Alone[Any]", site: Site, state: State, received: Tensors, names: Collection[str]) -> State:
    """The state with its best round updated, after a round whose answer is `received`. On ties, the later round wins.

    `names`: the tensors to keep of `received`, those that the evaluation would receive.
    """
    if VALIDATED not in state:  # nothing is trained yet, or the site never trains
        return state
    message = {name: array for name, array in received.items() if name in names}
    right = int(method.answered(site, state, message, site.data.validate).sum())
    if BEST in state and state[BEST]["right"] > right:
        return state
    ended = {name: value for name, value in state.items() if name not in (BEST, VALIDATED)}
    return {**state, BEST: {"right": right, "state": ended, "message": tensors_of(message)}}


def recalled(state: State, received: Tensors) -> tuple[State, Tensors]:
    """The state and the message of the best round, with the curve of all rounds; unchanged if none is remembered."""
    if BEST not in state:
        return state, received
    best = state[BEST]
    return {**best["state"], VALIDATED: state[VALIDATED]}, arrays_of(best["message"])


def has_stopped(state: State, patience: int | None) -> bool:
    """Whether `patience` rounds have passed since the first round with the best validation accuracy."""
    curve: torch.Tensor = state.get(VALIDATED, torch.zeros(0))
    return patience is not None and rounds_since_best(curve.tolist()) >= patience


def unchanged(state: State) -> State:
    """The state after a round without training: the last validation accuracy is repeated."""
    return {**state, VALIDATED: torch.cat([state[VALIDATED], state[VALIDATED][-1:]])}
