"""The model that a site keeps: finished after its last release, without noise, or trained alone from the beginning.

Only releases need noise. Training after the last release costs no epsilon, and no epsilon covers its model: the model
stays at the site, and its answers need protection before anybody outside sees them.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from audits import Tensors
from medfedvqa.core.method import State, tensors_of
from medfedvqa.core.scores import RIGHT
from medfedvqa.data import Examples
from medfedvqa.training import Site

if TYPE_CHECKING:
    from medfedvqa.core.local_training import Alone

KEPT = "kept"
"""The key in the state after `evaluate` that holds the kept model: its name, its state, the message that it uses, and
for each candidate whether it answers each test row right, bool [rows]."""


class Keeping:
    """Trains a site's candidate models after the last round, and keeps the best on validation rows."""

    def __init__(self, method: "Alone[Any]", site: Site, state: State, received: Tensors, rounds: int) -> None:
        """`state` and `received` are those of `evaluate`; `rounds` is the job's number of rounds."""
        self._method, self._site, self._state, self._received = method, site, state, received
        self._rounds = rounds
        self._plain = method.without_others()
        self._longer = method.without_others(method.config.finish_epochs or None)
        self._used = method.used(received)

    @cached_property
    def alone(self) -> State:
        """The state of a site that trains for as many rounds without the others and without noise."""
        return self._plain.trained_alone(self._site, self._rounds)

    @cached_property
    def alone_equal(self) -> State:
        """The state after training alone for as many passes as the finished model."""
        state, _ = self._longer.train(self._site, self.alone, {}, self._rounds)
        return state

    @cached_property
    def finished(self) -> State:
        """The state after further training from the federation's last model."""
        values = self._method.tested(self._site, self._state, tensors_of(self._received, self._site.device))
        state, _ = self._longer.train(
            self._site, self._method.begun_anew(self._state, values), self._used, self._rounds
        )
        return state

    @property
    def states(self) -> Mapping[str, State]:
        """The candidates by name."""
        return {"finished": self.finished, "alone": self.alone, "alone_equal": self.alone_equal}

    @cached_property
    def kept(self) -> State:
        """The best candidate on validation rows; the finished model wins a tie."""
        right = {name: int(self.right(name, self._site.data.validate).sum()) for name in self.states}
        best = max(right, key=lambda name: right[name])
        message = tensors_of(self._message(best))
        return {"model": best, "state": self.states[best], "message": message, RIGHT: self._tested}

    @property
    def counted(self) -> dict[str, int]:
        """The test rows that each candidate answers right, and whether the finished model is kept."""
        right = {f"{name}_correct": int(rows.sum()) for name, rows in self._tested.items()}
        return {**right, "kept_finished": int(self.kept["model"] == "finished")}

    @cached_property
    def _tested(self) -> dict[str, torch.Tensor]:
        return {name: self.right(name, self._site.data.test) for name in self.states}

    def right(self, name: str, examples: Examples) -> torch.Tensor:
        """Whether the model of this name answers each row right, bool [rows]."""
        return self._plain.answered(self._site, getattr(self, name), self._message(name), examples)

    def _message(self, name: str) -> Tensors:
        return self._used if name == "finished" else {}
