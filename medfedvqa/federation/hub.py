"""The server's side of a run: it calls the sites through any engine, and keeps what the server received."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

import numpy as np

from audits import Exchange, MessageRefused, Refusal
from medfedvqa.core import ACCURACY, EPSILON, Tensors, withheld
from medfedvqa.core.hub import GroupMean
from medfedvqa.errors import FederationError
from medfedvqa.evaluation.accuracy import ServerScore
from medfedvqa.evaluation.history import History, RoundRecord
from medfedvqa.federation.journal import Journal, RecordedCall
from medfedvqa.federation.quorum import NOBODY_MISSES, RECONNECT, Quorum, QuorumRule
from medfedvqa.federation.server_receipts import ServerReceipts
from privacy import AggregationError, Gathering, Reliability, mix


class Reply(NamedTuple):
    """A site's answer to one task, its time in seconds, and the audit bytes sent alongside."""

    tensors: Tensors
    seconds: float
    audit_bytes: bytes = b""


Excused = Callable[[Mapping[str, Reply]], Collection[str]]
"""Takes the answers so far; returns the sites that need not be waited for."""


def excuse_none(replies: Mapping[str, Reply]) -> Collection[str]:
    """Excuses no site: every site must answer."""
    return ()


Refused = Callable[[str, Refusal, str], None]
"""Takes the name of a site that refuses, its code, and a detail that stays on this machine. It returns if the job
continues without the site, and raises `FederationError` if the refusal ends the job."""


def stop_job(site: str, code: Refusal, detail: str = "") -> None:
    """Ends the job at a refusal: see `Refused`. Raises `FederationError`."""
    raise FederationError(f"site '{site}' stopped the job: {detail or code.sentence}")


MEAN, ALL_ANSWER = Gathering(), QuorumRule()


@dataclass(frozen=True)
class TaskCall:
    """One task of one round, for the sites that `messages` addresses, each with its own message."""

    task: str
    round: int
    messages: Mapping[str, Tensors]
    answered: Callable[[str], None] = lambda site: None
    """The engine calls this with a site's name when that site answers."""
    excused: Excused = excuse_none
    audit_bytes: Mapping[str, bytes] = field(default_factory=dict)
    """The audit bytes that each site is sent alongside its message."""
    quorum: Quorum = NOBODY_MISSES
    """When the engine returns although sites have not answered."""
    refused: Refused = stop_job
    """The engine calls this when a site refuses; if it returns, the engine does not wait for that site."""


Engine = Callable[[TaskCall], dict[str, Reply]]
"""Carries out a call; returns the answers in order of arrival, without those of sites that are silent, late or refuse.
Raises what `TaskCall.refused` raises."""


@dataclass(frozen=True)
class TaskAnswer:
    """One event of a run's progress: a task was sent to the sites, or a site answered it."""

    round: int
    rounds: int
    task: str
    site: str | None
    """The site that answered; None if the task was sent."""
    accuracy: float | None = None
    """When a task was sent: the last round's validation accuracy, mean over sites; None unless all released it."""


class ServerHub:
    """Computes `mean` and `mix` in clear at the server, always in order of the sites' names."""

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
        receipts: ServerReceipts | None = None,
        gathering: Gathering = MEAN,
        rule: QuorumRule = ALL_ANSWER,
        journal: Journal | None = None,
    ) -> None:
        """`exchange` declares what travels in the job; every answer is checked against it before anything is computed.

        The hub calls `watch` with each event of progress, `stop` between rounds, and `ended` with the history after
        each round. `seed` is the job's and `backbone` the name of its backbone. `receipts` logs what sites send and
        passes on their audit checkpoints. `gathering` is the rule by which means are taken, and `rule` says what
        becomes of sites that do not answer. `journal` holds the calls of the process that this one continues.
        """
        # Engines name sites in their own order. Draws and steps that go site by site follow names, in every engine.
        self.sites, self.seed = tuple(sorted(sites)), seed
        self.backbone = backbone
        self.model: Tensors = {}
        self.history = History(sites=sites, rounds=[], uploads={}, shared={}, gathering=gathering.sentence)
        self._call, self._watch, self._stop, self._ended = call, watch, stop, ended
        self._receipts, self._exchange, self._gathering, self._quorum_rule = receipts, exchange, gathering, rule
        self._journal, self._recalled = journal or Journal(), 0.0
        self._returned = self._journal.continues
        """Whether this process continues a run and has called no site yet."""
        self._absent: set[str] = set()
        self._round, self._planned = 0, 0
        self._tally = _Tally(sites)
        self._weights: dict[str, np.ndarray] = {}
        self._accuracy: dict[str, float] = {}
        self._epsilon: dict[str, list[float]] = {}

    def rounds(self, count: int) -> Iterator[int]:
        """Rounds 1 to `count`, each recorded when it ends. No round begins once `stop` returns true."""
        self._planned = count
        for number in range(1, count + 1):
            if self._stop() and not self._journal.recalls:
                return
            self._round, self._tally, self._recalled, self._weights = number, _Tally(self.sites), 0.0, {}
            began = time.monotonic()
            yield number
            self._record(time.monotonic() - began + self._recalled)
            self._tally = _Tally(self.sites)
            self.history.closing_up, self.history.closing_down = self._tally.up, self._tally.down
            self.history.closing_missing = self._tally.missing
            self._ended(self.history)

    def collect(self, task: str, down: Mapping[str, Tensors] | None = None) -> dict[str, Tensors]:
        """See `Hub.collect`. Raises `FederationError` if fewer sites answer than the job needs.

        The answers are in order of the sites' names: a sum of floats depends on its order, and the order of arrival is
        chance. All means, mixtures and methods get their answers here.
        """
        called = self.sites if down is None else tuple(site for site in down if site in self.sites)
        messages = {site: {} if down is None else down[site] for site in called}
        arrived = self._ask(task, messages, quorum=self._quorum_rule.of(task, self._absent & set(called)))
        replies = dict(sorted(arrived.items()))
        self._note_missing(task, called, replies)
        for site, (tensors, *_) in replies.items():
            if ACCURACY in tensors:
                self._accuracy[site] = float(tensors[ACCURACY])
            if EPSILON.name in tensors:
                self._epsilon[site] = tensors[EPSILON.name].tolist()
        return {site: _without_epsilon(reply.tensors) for site, reply in replies.items()}

    def mean(self, task: str, down: Mapping[str, Tensors] | None = None, weight: str | None = None) -> Tensors:
        """See `Hub.mean`."""
        return self.means(task, {"": self.sites if down is None else down}, down, weight)[""].tensors

    def means(
        self,
        task: str,
        groups: Mapping[str, Collection[str]],
        down: Mapping[str, Tensors] | None = None,
        weight: str | None = None,
    ) -> dict[str, GroupMean]:
        """See `Hub.means`."""
        replies, means = self.collect(task, down), {}
        for name, sites in groups.items():
            group = {site: tensors for site, tensors in replies.items() if site in sites}
            weights = {site: float(tensors.pop(weight)) if weight else 1.0 for site, tensors in group.items()}
            if group:
                means[name] = GroupMean(self._gathering.gathered(group, weights), sum(weights.values()))
        return means

    def weighed(self, weights: Mapping[str, Mapping[str, float]]) -> None:
        """See `Hub.weighed`."""
        sites = self.history.sites
        table = [[weights.get(site, {}).get(other, 0.0) for other in sites] for site in sites]
        self._weights = {"gradients": np.array(table)} if weights else {}

    def mix(
        self,
        task: str,
        reliability: Reliability,
        down: Mapping[str, Tensors] | None = None,
        targets: tuple[str, ...] | None = None,
    ) -> dict[str, Tensors]:
        """See `Hub.mix`. A site that `down` leaves out takes part with its last upload, unless the job has lost it."""
        for site, tensors in self.collect(task, down).items():
            self.history.uploads[site] = {name: array for name, array in tensors.items() if name != ACCURACY}
        present = {site: self.history.uploads[site] for site in self.sites if site in self.history.uploads}
        receiving = tuple(site for site in targets or present if site in present)
        try:
            mixture = mix(present, self._accuracy, reliability, receiving)
        except AggregationError as error:
            raise FederationError(f"round {self._round}: {error}") from None
        self.history.shared.update(mixture.shared)
        self._weights = {name: self._by_site(tuple(present), table) for name, table in mixture.weights.items()}
        return mixture.shared

    def tested(self, score: ServerScore) -> None:
        """See `Hub.tested`."""
        self.history.server = score

    def counted(self, statistics: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        """See `Hub.counted`."""
        self.history.statistics = {
            site: {name: dict(table) for name, table in statistics[site].items()}
            for site in sorted(statistics, key=[*self.history.sites, *statistics].index)
        }

    def _by_site(self, sites: tuple[str, ...], weights: np.ndarray) -> np.ndarray:
        """Weights among these sites, [sites, sites], as weights among all sites of the run; those of others are 0."""
        places = [self.history.sites.index(site) for site in sites]
        table = np.zeros((len(self.history.sites),) * 2)
        table[np.ix_(places, places)] = weights
        return table

    def _note_missing(self, task: str, called: Collection[str], replies: Collection[str]) -> None:
        """Record the sites that did not answer. Raises `FederationError` if too few did."""
        missing = set(called) - set(replies)
        self._absent = (self._absent - set(replies)) | missing
        if not missing:
            return
        self._tally.missing |= missing
        left, least = len(replies), self._quorum_rule.least_of(task, len(called))
        if not self._quorum_rule.rejoins:
            self._leave_out(missing)
            left = len(self.sites)
        if left < least:
            raise FederationError(
                f"round {self._round}: {', '.join(sorted(missing))} did not answer, {left} of the {len(called)} sites "
                f"asked are left, and the job needs {least}: start it again once they are back"
            )

    def _leave_out(self, fallen: Collection[str]) -> None:
        """Leave these sites out for the rest of the job."""
        for site in sorted(fallen):
            self.history.left_out[site] = self._round
        self.sites = tuple(site for site in self.sites if site not in self.history.left_out)

    def _ask(
        self,
        task: str,
        messages: Mapping[str, Tensors],
        excused: Excused = excuse_none,
        quorum: Quorum = NOBODY_MISSES,
    ) -> dict[str, Reply]:
        """Call one task, report progress, and check, count and record the answers.

        A call that the journal holds is not made again. Raises `FederationError` naming a site whose answer is refused.
        """
        if recorded := self._journal.recall(task, self._round, messages):
            replies = {site: Reply(*answer) for site, answer in recorded.answers.items()}
            refusals = recorded.refusals
            self._recalled += recorded.seconds
        else:
            if self._returned:
                self._returned, quorum = False, quorum.extended(RECONNECT)
            began = time.monotonic()
            replies, refusals = self._asked(task, messages, excused, quorum)
            answers = {site: (reply.tensors, reply.seconds) for site, reply in replies.items()}
            call = RecordedCall(answers, time.monotonic() - began, refusals)
            self._journal.record(task, self._round, messages, call)
        self.history.refusals |= refusals
        self._leave_out(refusals)
        for site, message in messages.items():
            self._tally.sent(site, message)
        for site, reply in replies.items():
            self._tally.received(site, reply)
        return replies

    def _asked(
        self, task: str, messages: Mapping[str, Tensors], excused: Excused, quorum: Quorum
    ) -> tuple[dict[str, Reply], dict[str, str]]:
        """The checked answers of the sites that answer, and the sentences of those that refuse."""
        refusals: dict[str, str] = {}

        def answered(site: str) -> None:
            self._watch(TaskAnswer(self._round, self._planned, task, site))

        def refused(site: str, code: Refusal, detail: str = "") -> None:
            refusals[site] = code.sentence
            among = messages if self._quorum_rule.rejoins else self.sites
            enough = len({*among} - {*refusals}) >= self._quorum_rule.least_of(task, len(messages))
            if not (enough and self._may_refuse(task)):
                stop_job(site, code, detail)

        self._watch(TaskAnswer(self._round, self._planned, task, None, self._last_accuracy()))
        audit_bytes = {} if self._receipts is None else self._receipts.outgoing(messages)
        call = TaskCall(task, self._round, messages, answered, excused, audit_bytes, quorum, refused)
        replies = self._call(call)
        checked = {site: self._checked(site, task, reply) for site, reply in replies.items()}
        return {site: reply for site, reply in checked.items() if reply}, refusals

    def _may_refuse(self, task: str) -> bool:
        """Whether the job continues when a site refuses this task, if enough sites are left."""
        return self._quorum_rule.outlives_refusals

    def _last_accuracy(self) -> float | None:
        """The mean over sites of the accuracies that they released in the last finished round, if all of them did."""
        last = self.history.rounds[-1].accuracy if self.history.rounds else {}
        return fmean(last.values()) if last.keys() == {*self.sites} else None

    def _checked(self, site: str, task: str, reply: Reply) -> Reply | None:
        """The answer if it is as the job declares it; None if the job continues without it. Both get a receipt."""
        declared = self._declared_as(task, reply.tensors)
        try:
            reply = reply._replace(tensors=self._exchange.check(declared, "up", reply.tensors))
        except MessageRefused as error:
            if self._receipts is not None:
                self._receipts.refused(site, declared, self._round, str(error))
            return self._refused(site, task, error)
        if self._receipts is not None:
            self._receipts.incoming(site, declared, self._round, reply.tensors, reply.audit_bytes)
        return reply

    def _declared_as(self, task: str, tensors: Tensors) -> str:
        """The name under which the job declares this answer to a task, and under which the site logs it."""
        name = withheld(task)
        return name if not tensors and any(each.name == name for each in self._exchange.tasks) else task

    def _refused(self, site: str, task: str, error: MessageRefused) -> Reply | None:
        """Stop the job after an answer that it does not declare. Raises `FederationError`."""
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
                missing=tuple(sorted(self._tally.missing)),
            )
        )


def _without_epsilon(tensors: Tensors) -> Tensors:
    """The tensors that the site's method sent, without the epsilon that the site's accounting adds."""
    return {name: array for name, array in tensors.items() if name != EPSILON.name}


class _Tally:
    """The bytes and seconds of one round, by site, and the sites that missed one of its tasks."""

    def __init__(self, sites: tuple[str, ...]) -> None:
        self.up = dict.fromkeys(sites, 0)
        self.down = dict.fromkeys(sites, 0)
        self.seconds: dict[str, float] = {}
        """Seconds of each site that answered."""
        self.missing: set[str] = set()
        """Sites that did not answer a task of the round."""

    def sent(self, site: str, message: Tensors) -> None:
        self.down[site] += sum(array.nbytes for array in message.values())

    def received(self, site: str, reply: Reply) -> None:
        self.up[site] += sum(array.nbytes for array in reply.tensors.values())
        self.seconds[site] = self.seconds.get(site, 0.0) + reply.seconds
