"""The server's side of a run: gathers from the sites by any engine, and keeps what the server saw."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from medfedvqa.errors import FederationError
from medfedvqa.evaluation.history import History, RoundRecord
from medfedvqa.methods import EPSILON, Tensors
from privacy import AggregationError, Reliability, mean, mix


class Reply(NamedTuple):
    """A site's answer to one task, and how long it took, in seconds."""

    tensors: Tensors
    seconds: float


Call = Callable[[str, int, Mapping[str, Tensors], Callable[[str], None]], dict[str, Reply]]
"""An engine: sends a task of a round to the named sites with each one's message, returns their answers.

Calls its last argument with a site's name as that site answers.
Raises `FederationError` naming the site and its reason if one refuses.
"""


@dataclass(frozen=True)
class Event:
    """Progress, for whoever watches: a site answered a task."""

    round: int
    rounds: int
    task: str
    site: str


class ServerHub:
    """Carries out `mean` and `mix` in clear at the server."""

    def __init__(
        self,
        sites: tuple[str, ...],
        call: Call,
        watch: Callable[[Event], None] = lambda event: None,
        stop: Callable[[], bool] = lambda: False,
        ended: Callable[[History], None] = lambda history: None,
    ) -> None:
        """`watch` sees progress, `stop` is asked between rounds, `ended` sees the history after each round."""
        self.sites = sites
        self.history = History(sites=sites, rounds=[], uploads={}, shared={})
        self._call, self._watch, self._stop, self._ended = call, watch, stop, ended
        self._round, self._planned = 0, 0
        self._tally = _Tally(sites)
        self._weights: dict[str, np.ndarray] = {}
        self._accuracy: dict[str, float] = {}
        self._epsilon: dict[str, list[float]] = {}

    def rounds(self, count: int) -> Iterator[int]:
        """Rounds 1..count, each recorded as it ends; none begins once `stop` says so."""
        self._planned = count
        for number in range(1, count + 1):
            if self._stop():
                return
            self._round, self._tally = number, _Tally(self.sites)
            began = time.monotonic()
            yield number
            self._record(time.monotonic() - began)
            self._tally = _Tally(self.sites)
            self.history.closing_up, self.history.closing_down = self._tally.up, self._tally.down
            self._ended(self.history)

    def collect(self, task: str, down: Mapping[str, Tensors] | None = None) -> dict[str, Tensors]:
        """The uploads of the sites in `down`, or of all sites, each sent an empty message."""
        messages: Mapping[str, Tensors] = {site: {} for site in self.sites} if down is None else down

        def answered(site: str) -> None:
            self._watch(Event(self._round, self._planned, task, site))

        replies = self._call(task, self._round, messages, answered)
        for site, (tensors, seconds) in replies.items():
            self._tally.add(site, messages[site], tensors, seconds)
            if "accuracy" in tensors:
                self._accuracy[site] = float(tensors["accuracy"])
            if EPSILON.name in tensors:
                self._epsilon[site] = tensors[EPSILON.name].tolist()
        return {site: _contributed(reply.tensors) for site, reply in replies.items()}

    def mean(self, task: str, down: Mapping[str, Tensors] | None = None, weight: str | None = None) -> Tensors:
        """See `Hub.mean`."""
        replies = self.collect(task, down)
        if weight is None:
            return mean(replies)
        return mean(replies, {site: float(tensors.pop(weight)) for site, tensors in replies.items()})

    def mix(
        self,
        task: str,
        reliability: Reliability,
        down: Mapping[str, Tensors] | None = None,
        targets: tuple[str, ...] | None = None,
    ) -> dict[str, Tensors]:
        """See `Hub.mix`. Sites that `down` leaves out take part with their last upload."""
        for site, tensors in self.collect(task, down).items():
            self.history.uploads[site] = {name: array for name, array in tensors.items() if name != "accuracy"}
        try:
            mixture = mix(self.history.uploads, self._accuracy, reliability, targets)
        except AggregationError as error:
            raise FederationError(f"round {self._round}: {error}") from None
        self.history.shared.update(mixture.shared)
        self._weights = mixture.weights
        return mixture.shared

    def _record(self, seconds: float) -> None:
        self.history.rounds.append(
            RoundRecord(
                round=self._round,
                seconds=seconds,
                site_seconds=self._tally.seconds,
                bytes_up=self._tally.up,
                bytes_down=self._tally.down,
                accuracy=dict(self._accuracy),
                reliability={name: weights.tolist() for name, weights in self._weights.items()},
                epsilon=dict(self._epsilon),
            )
        )


def _contributed(tensors: Tensors) -> Tensors:
    """What the site's method sent, without what the privacy accounting put beside it."""
    return {name: array for name, array in tensors.items() if name != EPSILON.name}


class _Tally:
    """Bytes and seconds of one round, by site."""

    def __init__(self, sites: tuple[str, ...]) -> None:
        self.up = dict.fromkeys(sites, 0)
        self.down = dict.fromkeys(sites, 0)
        self.seconds = dict.fromkeys(sites, 0.0)

    def add(self, site: str, sent: Tensors, received: Tensors, seconds: float) -> None:
        self.down[site] += sum(array.nbytes for array in sent.values())
        self.up[site] += sum(array.nbytes for array in received.values())
        self.seconds[site] += seconds
