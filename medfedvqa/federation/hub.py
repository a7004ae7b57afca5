"""The server's side of a run: gathers from the sites by any engine, and keeps what the server saw."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from audits import Exchange, MessageRefused
from medfedvqa.core import ACCURACY, EPSILON, Tensors
from medfedvqa.errors import FederationError
from medfedvqa.evaluation.history import History, RoundRecord
from medfedvqa.federation.server_receipts import Notary
from privacy import AggregationError, Gathering, Reliability, mix


class Reply(NamedTuple):
    """A site's answer to one task, how long it took in seconds, and what it said beside it: see `attest`."""

    tensors: Tensors
    seconds: float
    beside: bytes = b""


Excused = Callable[[Mapping[str, Reply]], Collection[str]]
"""Given the answers so far, the sites whose answers need not be waited for."""


def nobody(replies: Mapping[str, Reply]) -> Collection[str]:
    """All sites must answer."""
    return ()


MEAN = Gathering()


@dataclass(frozen=True)
class TaskCall:
    """One task of one round, for the sites that `messages` addresses, each with its own message."""

    task: str
    round: int
    messages: Mapping[str, Tensors]
    answered: Callable[[str], None] = lambda site: None
    """Is called with a site's name as that site answers."""
    excused: Excused = nobody
    beside: Mapping[str, bytes] = field(default_factory=dict)
    """The audit bytes that each site is sent alongside its message."""


Engine = Callable[[TaskCall], dict[str, Reply]]
"""Carries out a call: the answers, in order of arrival. Raises `FederationError`, which names a site that refuses."""


@dataclass(frozen=True)
class TaskAnswer:
    """Progress, for whoever watches: a task was sent to the sites, or a site answered it."""

    round: int
    rounds: int
    task: str
    site: str | None
    """The site that answered; None if the task was sent."""


class ServerHub:
    """Carries out `mean` and `mix` in clear at the server."""

    def __init__(
        self,
        sites: tuple[str, ...],
        call: Engine,
        exchange: Exchange,
        watch: Callable[[TaskAnswer], None] = lambda event: None,
        stop: Callable[[], bool] = lambda: False,
        ended: Callable[[History], None] = lambda history: None,
        seed: int = 0,
        backbone: str = "",
        notary: Notary | None = None,
        gathering: Gathering = MEAN,
    ) -> None:
        """`exchange`: what travels in the job; every answer is held against it before anything is computed.

        `watch` sees progress, `stop` is asked between rounds, `ended` sees the history after each round.

        `seed`: the job's. `backbone`: its name. `notary`: keeps receipts, and passes on what sites say of their logs.
        `gathering`: how means are taken.
        """
        self.sites, self.seed = sites, seed
        self.backbone = backbone
        self.history = History(sites=sites, rounds=[], uploads={}, shared={}, gathering=gathering.sentence)
        self._call, self._watch, self._stop, self._ended = call, watch, stop, ended
        self._notary, self._exchange, self._gathering = notary, exchange, gathering
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
        replies = self._ask(task, {site: {} for site in self.sites} if down is None else down)
        for site, (tensors, *_) in replies.items():
            if ACCURACY in tensors:
                self._accuracy[site] = float(tensors[ACCURACY])
            if EPSILON.name in tensors:
                self._epsilon[site] = tensors[EPSILON.name].tolist()
        return {site: _contributed(reply.tensors) for site, reply in replies.items()}

    def mean(self, task: str, down: Mapping[str, Tensors] | None = None, weight: str | None = None) -> Tensors:
        """See `Hub.mean`."""
        replies = self.collect(task, down)
        if weight is None:
            return self._gathering.gathered(replies)
        weights = {site: float(tensors.pop(weight)) for site, tensors in replies.items()}
        return self._gathering.gathered(replies, weights)

    def mix(
        self,
        task: str,
        reliability: Reliability,
        down: Mapping[str, Tensors] | None = None,
        targets: tuple[str, ...] | None = None,
    ) -> dict[str, Tensors]:
        """See `Hub.mix`. Sites that `down` leaves out take part with their last upload."""
        for site, tensors in self.collect(task, down).items():
            self.history.uploads[site] = {name: array for name, array in tensors.items() if name != ACCURACY}
        try:
            mixture = mix(self.history.uploads, self._accuracy, reliability, targets)
        except AggregationError as error:
            raise FederationError(f"round {self._round}: {error}") from None
        self.history.shared.update(mixture.shared)
        self._weights = mixture.weights
        return mixture.shared

    def _ask(self, task: str, messages: Mapping[str, Tensors], excused: Excused = nobody) -> dict[str, Reply]:
        """One task, watched, checked and counted. Raises `FederationError` naming a site whose answer is refused."""

        def answered(site: str) -> None:
            self._watch(TaskAnswer(self._round, self._planned, task, site))

        self._watch(TaskAnswer(self._round, self._planned, task, None))
        beside = {} if self._notary is None else self._notary.outgoing(messages)
        replies = self._call(TaskCall(task, self._round, messages, answered, excused, beside))
        replies = {site: checked for site, reply in replies.items() if (checked := self._checked(site, task, reply))}
        for site, message in messages.items():
            self._tally.sent(site, message)
        for site, reply in replies.items():
            self._tally.received(site, reply)
        return replies

    def _checked(self, site: str, task: str, reply: Reply) -> Reply | None:
        """The answer, if it is what the job declares, with a receipt either way; None if the job goes on without it."""
        try:
            reply = reply._replace(tensors=self._declared(task, reply.tensors))
        except MessageRefused as error:
            if self._notary is not None:
                self._notary.refused(site, task, self._round, str(error))
            return self._refused(site, task, error)
        if self._notary is not None:
            self._notary.incoming(site, task, self._round, reply.tensors, reply.beside)
        return reply

    def _declared(self, task: str, tensors: Tensors) -> Tensors:
        """The answer's tensors. Raises `MessageRefused` unless they are as the job declares them for the task."""
        return self._exchange.check(task, "up", tensors)

    def _refused(self, site: str, task: str, error: MessageRefused) -> Reply | None:
        """What happens to the job after an answer that it does not declare: it stops."""
        sentence = f"round {self._round}: site '{site}' sent a message that the job does not declare: {error}"
        raise FederationError(sentence) from None

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

    def sent(self, site: str, message: Tensors) -> None:
        self.down[site] += sum(array.nbytes for array in message.values())

    def received(self, site: str, reply: Reply) -> None:
        self.up[site] += sum(array.nbytes for array in reply.tensors.values())
        self.seconds[site] += reply.seconds
