"""The model that a site keeps: of its best round, finished after its last release without noise, or trained alone.

Only releases need noise. Training after the last release costs no epsilon, and no epsilon covers its model: the model
stays at the site, and its answers need protection before anybody outside sees them.

The site chooses by its validation rows, without noise, so the choice is refused under differential privacy. No message
says which round was best, or after which round a site stopped.
"""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from audits import Tensors
from medfedvqa.core.method import Answering, State, arrays_of, tensors_of, together
from medfedvqa.core.scores import RIGHT, VALIDATED
from medfedvqa.data import Examples, numbered
from medfedvqa.evaluation.accuracy import rounds_since_best
from medfedvqa.evaluation.history import KEPT_MODELS
from medfedvqa.training import Site

if TYPE_CHECKING:
    from medfedvqa.core.local_training import Alone

BEST = "best"
"""The key in the training state that holds the best round so far: its validation rows answered right, its state, and
the message that the site tests with. It never leaves."""


def remembered(method: "Alone[Any]", site: Site, state: State, received: Tensors, names: Collection[str]) -> State:
    """The state after a round, in which `BEST` holds the best round so far. On ties, the later round wins.

    `received`: the server's answer in this round; `names`: its tensors that the evaluation receives.
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


KEPT = "kept"
"""The key of the kept model in the state after `evaluate`: its name, state and message, the state and message of a
model that answers with it, and for each candidate whether it answers each test row right, bool [rows]."""
ENSEMBLE = ("received", "alone")
"""The candidates that answer together as the candidate `ensemble`."""
FIRST = "first"
"""The key of the values that the server sent first, where the job starts from an earlier run's model: from them the
site also trains alone."""


class Keeping:
    """Trains a site's candidate models after the last round, and keeps one of them."""

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
        return self._plain.trained_alone(self._site, self._rounds, self._state.get(FIRST))

    @cached_property
    def alone_equal(self) -> State:
        """The state after training alone for as many passes as the finished model."""
        state, _ = self._longer.train(self._site, self.alone, {}, self._rounds)
        return state

    @cached_property
    def finished(self) -> State:
        """The state after further training from the federation's last model."""
        state, _ = self._longer.train(self._site, self.received, self._used, self._rounds)
        return state

    @cached_property
    def received(self) -> State:
        """The state that was tested after the last release."""
        values = self._method.tested(self._site, self._state, tensors_of(self._received, self._site.device))
        return self._method.begun_anew(self._state, values)

    @property
    def first_choice(self) -> str:
        """The model that is kept unless another one is better beyond chance."""
        return "finished"

    @cached_property
    def kept(self) -> State:
        """The first choice, or the best on validation rows if it is better by more than one standard error.

        Of n rows that only one of the two answers right, chance gives each n/2 with a standard deviation of sqrt(n)/2.
        Without this rule the best of five on a few rows is mostly luck. On ties, the first of `KEPT_MODELS` is best.
        """
        right = {name: self.right(name, self._site.data.validate) for name in KEPT_MODELS}
        best, usual = max(KEPT_MODELS, key=lambda name: int(right[name].sum())), right[self.first_choice]
        gained, lost = int((right[best] & ~usual).sum()), int((usual & ~right[best]).sum())
        name = best if gained - lost > (gained + lost) ** 0.5 else self.first_choice
        first, *rest = [self._saved(each) for each in (ENSEMBLE if name == "ensemble" else (name,))]
        return {"model": name, **first, "together": rest, RIGHT: self._tested}

    @property
    def counted(self) -> dict[str, int]:
        """How many test rows each further candidate answers right, and the kept one's index in `KEPT_MODELS`."""
        right = {f"{name}_correct": int(rows.sum()) for name, rows in self._tested.items() if name != "received"}
        return {**right, "kept_model": KEPT_MODELS.index(self.kept["model"])}

    @cached_property
    def _tested(self) -> dict[str, torch.Tensor]:
        return {name: self.right(name, self._site.data.test) for name in KEPT_MODELS}

    def right(self, name: str, examples: Examples) -> torch.Tensor:
        """Whether the model of this name answers each row right, bool [rows]."""
        if name != "ensemble":
            return self._plain.answered(self._site, getattr(self, name), self._message(name), examples)
        if not len(examples):
            return torch.zeros(0, dtype=torch.bool)
        answers = answering(self._plain, self._site, [self._saved(each) for each in ENSEMBLE])
        chosen = answers.probabilities(self._site, examples).argmax(dim=1)
        return chosen.eq(numbered(self._site.data.answers, answers.answers, examples.answers))

    def _saved(self, name: str) -> State:
        return {"state": getattr(self, name), "message": tensors_of(self._message(name))}

    def _message(self, name: str) -> Tensors:
        return self._used if name in ("finished", "received") else {}


def answering(method: "Alone[Any]", site: Site, saved: Sequence[State]) -> Answering:
    """The ensemble of the models with these saved states and messages. It averages their probabilities."""
    return together([method.answering_with(site, each["state"], each["message"]) for each in saved])
