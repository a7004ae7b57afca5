"""The model that a site keeps: trained on after its last release, without noise, or alone from the beginning.

Only what leaves needs noise. A model that is trained on from the site's own state once nothing more will leave costs no
epsilon, and no epsilon covers it: it stays, and so must answers of it that are shown outside be guarded.
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
"""In the state after `evaluate`: the name of the model that the site keeps, its state, the message that it uses, and
whether each test row is answered right by each model that could have been kept, bool [rows]."""


class Keeping:
    """Trains a site's own models after the last round, and chooses the one to keep by validation rows."""

    def __init__(self, method: "Alone[Any]", site: Site, state: State, received: Tensors, rounds: int) -> None:
        """`state` and `received`: as `evaluate` has them; `rounds`: of the job."""
        self._method, self._site, self._state, self._received = method, site, state, received
        self._rounds = rounds
        self._plain = method.without_others()
        self._longer = method.without_others(method.config.finish_epochs or None)
        self._used = method.used(received)

    @cached_property
    def alone(self) -> State:
        """The state of a site that trains for as many rounds without the others and without noise."""
        plain, site = self._plain, self._site
        state = plain.setup(site)
        for number in range(1, self._rounds + 1):
            handler = plain.start if number == 1 else plain.train
            state, _ = handler(site, state, {}, number)
        return state

    @cached_property
    def alone_equal(self) -> State:
        """The same, trained alone for as long as the finished one."""
        state, _ = self._longer.train(self._site, self.alone, {}, self._rounds)
        return state

    @cached_property
    def finished(self) -> State:
        """The site's part of the federation, trained on."""
        values = self._method.tested(self._site, self._state, tensors_of(self._received, self._site.device))
        state, _ = self._longer.train(
            self._site, self._method.begun_anew(self._state, values), self._used, self._rounds
        )
        return state

    @property
    def states(self) -> Mapping[str, State]:
        """What can be kept."""
        return {"finished": self.finished, "alone": self.alone, "alone_equal": self.alone_equal}

    @cached_property
    def kept(self) -> State:
        """The best on validation rows; the finished one where none is better."""
        right = {name: int(self.right(name, self._site.data.validate).sum()) for name in self.states}
        best = max(right, key=lambda name: right[name])
        message = tensors_of(self._message(best))
        return {"model": best, "state": self.states[best], "message": message, RIGHT: self._tested}

    @property
    def counted(self) -> dict[str, int]:
        """Test rows that each answers right, and whether the finished model is kept."""
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
