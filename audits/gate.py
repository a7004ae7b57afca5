"""The gate is the only way out of a site and the only way in: it passes only what is declared and allowed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter, index
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from audits.code import JobCode
from audits.entry import Event, Isolation, Outcome, TensorRecord
from audits.errors import (
    AuditError,
    JobRefused,
    MessageRefused,
    ReceiptRefused,
    Refusal,
    ReleaseFault,
    ReleaseRefused,
)
from audits.exchange import SITES, Exchange, Kind, TaskSpec, Tensors, TensorSpec
from audits.log import AuditLog
from audits.policy import SitePolicy
from audits.sharing import Sharing

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class JobContext:
    """The facts about the job in every entry: its id, method, model, code and submitter.

    `actor`: SHA-256 of the certificate that the job is signed with, as hex; empty if nobody signed it.
    `code`: the parts that `code_digest` covers. The entry that opens the job names them, and `isolation`.
    """

    job: str
    method: str
    model_digest: str
    code_version: str
    code_digest: str
    actor: str = ""
    code: JobCode | None = None
    isolation: Isolation = Isolation.NONE


@dataclass(frozen=True)
class LogCharge:
    """The ledger's charge for a message, as the message's log entry states it.

    `event`: the mechanism, its noise and where in the ledger the charge stands, as plain JSON. The epsilons are those
    of the cohort's worst-off patient over all jobs, in nats.
    """

    event: Mapping[str, Any]
    epsilon_before: float
    epsilon_after: float


@dataclass(frozen=True)
class _Way:
    """One direction through the gate: its event, the tensors that a task declares for it, and its error."""

    direction: str
    event: Event
    passed: Outcome
    declared: Callable[[TaskSpec], tuple[TensorSpec, ...]]
    refusal: type[AuditError]
    consequence: str


_ROUNDS = 1 << 31
_EPSILONS = ("epsilon_before", "epsilon_after")
_OUT = _Way("out", Event.RELEASE, Outcome.SENT, attrgetter("up"), ReleaseRefused, "nothing was sent")
_IN = _Way("in", Event.RECEIVE, Outcome.ACCEPTED, attrgetter("down"), ReceiptRefused, "nothing received was used")


class Gate:
    """Checks one job's messages against the method's exchange and the site's policy, and logs them.

    Raises `AuditError` if exchange and context belong to different methods.
    """

    def __init__(self, exchange: Exchange, policy: SitePolicy, log: AuditLog, context: JobContext) -> None:
        if context.method != exchange.method:
            raise AuditError("the job and the exchange are of different methods: build both from one method")
        self._exchange, self._policy, self._log = exchange, policy, log
        facts = {name: value or None for name, value in vars(context).items() if name not in ("code", "isolation")}
        self._opened = {"code": context.code and context.code.record(), "isolation": context.isolation}
        self._standing: dict[str, Any] = facts | {
            "policy": policy.digest(),
            "exchange": exchange.digest(),
        }

    def open(self) -> None:
        """Logs that the job starts, or continues after a restart, on this site. Raises `LogError`."""
        self._log.append(Event.OPEN, **self._standing, **self._opened)

    def refuse_job(self, code: Refusal, detail: str = "") -> NoReturn:
        """Logs that the site leaves the job, and raises `JobRefused`; `detail` stays at the site."""
        fields = {"outcome": Outcome.REFUSED, "reason": detail or code.sentence, "admission": {"code": code.value}}
        self._log.append(Event.REFUSAL, **self._standing, **fields)
        raise JobRefused(code, detail)

    def close(self) -> None:
        """Logs that the job has ended on this site. Raises `LogError`."""
        self._log.append(Event.CLOSE, **self._standing)

    def release(
        self,
        task: str,
        round: int,
        tensors: Mapping[str, NDArray[Any]],
        recipient: str = "server",
        charge: LogCharge | None = None,
        sharing: Sharing | None = None,
    ) -> Tensors:
        """Checks and logs a message; returns the read-only, C-contiguous, little-endian copies to send, as logged.

        A site calls it last: when it returns, the entry is on disk. Raises `ReleaseRefused`, after logging the
        refusal, unless the message is exactly what the task declares and the policy allows, with a charge if the task
        declares differential privacy; `LogError` if the entry cannot be written. `sharing`: the computation on shares
        that the message belongs to.
        """
        return self._pass(_OUT, task, round, dict(tensors), recipient, charge, sharing)

    def share(
        self,
        task: str,
        round: int,
        tensors: Mapping[str, NDArray[Any]],
        sharing: Sharing,
        charge: LogCharge | None = None,
    ) -> Tensors:
        """The input of this site to a computation on shares, checked and logged as by `release`; call it first.

        The values are logged without digests: no message holds them, and they could be guessed from a digest.
        """
        return self._pass(_OUT, task, round, dict(tensors), SITES, charge, sharing)

    def reveal(self, task: str, round: int, tensors: Mapping[str, NDArray[Any]], sharing: Sharing) -> Tensors:
        """This site's result of a computation on shares, checked and logged as `receive` does, without digests."""
        return self._pass(_IN, task, round, dict(tensors), SITES, None, sharing)

    def receive(self, task: str, round: int, tensors: Mapping[str, NDArray[Any]], sender: str = "server") -> Tensors:
        """The received message, checked, copied and logged as by `release`. Raises `ReceiptRefused`, `LogError`."""
        return self._pass(_IN, task, round, dict(tensors), sender)

    def _pass(
        self,
        way: _Way,
        name: str,
        round: object,
        message: Mapping[str, Any],
        peer: str,
        charge: LogCharge | None = None,
        sharing: Sharing | None = None,
    ) -> Tensors:
        number = round_number(round)
        fields: dict[str, Any] = self._standing | {"round": number, "direction": way.direction}
        if charge is not None:
            fields |= {"dp_event": charge.event} | {name: getattr(charge, name) for name in _EPSILONS}
        if sharing is not None:
            fields |= {"reason": str(sharing), "sharing": sharing.record()}
        if peer in self._policy.recipients:
            fields["peer"] = peer
        try:
            task = self._exchange.task(name)
        except AuditError:
            self._refuse(way, fields, [ReleaseFault.TASK])
        fields["task"] = task.name
        if number is None:
            self._refuse(way, fields, [ReleaseFault.ROUND])
        specs = tuple(spec for spec in way.declared(task) if peer in spec.recipients or spec.name in message)
        copies, reasons = self._check_tensors(specs, message, peer)
        if way is _OUT:
            reasons += self._missing_protection(specs, charge)
            reasons += _too_long(task, copies)
        if reasons:
            fields["tensors"] = tuple(_record_of_refused(spec) for spec in specs if spec.name not in copies)
            self._refuse(way, fields, reasons)
        record = _record_without_digest if peer == SITES else _record_with_digest
        records = tuple(record(spec, copies[spec.name]) for spec in specs)
        nbytes = sum(record.nbytes for record in records)
        self._log.append(way.event, **fields, tensors=records, nbytes=nbytes, outcome=way.passed)
        return copies

    def _check_tensors(
        self, specs: Iterable[TensorSpec], message: Mapping[str, Any], peer: str
    ) -> tuple[Tensors, list[str]]:
        """Copies of the tensors that may pass, and the reasons why the message as a whole may not; none if it may."""
        copies: Tensors = {}
        reasons = [] if peer in self._policy.recipients else [str(ReleaseFault.PEER)]
        if self._exchange.method not in self._policy.methods:  # also where a task sends or receives no tensor
            reasons.append(ReleaseFault.METHOD.format(method=self._exchange.method))
        surplus = len(message.keys() - {spec.name for spec in specs})
        if surplus:
            reasons.append(ReleaseFault.UNDECLARED.format(count=surplus))
        for spec in specs:
            try:
                self._check_allowed(spec, peer)
                copies[spec.name] = spec.checked_copy(message)
            except MessageRefused as error:
                reasons.append(str(error))
        return copies, reasons

    def _missing_protection(self, specs: Iterable[TensorSpec], charge: LogCharge | None) -> Iterator[str]:
        """The reasons why tensors may not leave with their declared protection; none if they may."""
        for spec in specs:
            if spec.protection.private and charge is None:
                yield ReleaseFault.UNCHARGED.format(name=spec.name)
            if spec.kind is Kind.PUBLIC:
                continue
            if self._policy.require_dp and not spec.protection.private:
                yield ReleaseFault.UNPROTECTED.format(name=spec.name)
            if self._policy.require_secagg and not spec.protection.masked:
                yield ReleaseFault.UNMASKED.format(name=spec.name)

    def _check_allowed(self, spec: TensorSpec, peer: str) -> None:
        reason = self._policy.allows(self._exchange.method, spec)
        if reason:
            raise MessageRefused(reason)
        if peer not in spec.recipients:
            raise MessageRefused(ReleaseFault.ADDRESS.format(name=spec.name))

    def _refuse(self, way: _Way, fields: Mapping[str, Any], reasons: list[str]) -> NoReturn:
        reason = "; ".join(dict.fromkeys(reasons))
        self._log.append(way.event, **{**fields, "outcome": Outcome.REFUSED, "reason": reason})
        when = "" if fields["round"] is None else f" in round {fields['round']}"
        raise way.refusal(f"{way.consequence}{when}: {reason}")


def round_number(value: object) -> int | None:
    """The number of a round, 0 to 2^31 - 1; None for anything else, such as a bool or a float."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        number = index(value)
    except TypeError:  # such as an array of several numbers, or a truth value of NumPy
        return None
    return number if 0 <= number < _ROUNDS else None


def _too_long(task: TaskSpec, copies: Tensors) -> Iterator[str]:
    """The reason if the joint norm of an upload's parameters exceeds the task's limit; else nothing."""
    try:
        task.check_norm(copies)
    except MessageRefused as error:
        yield str(error)


def _record_with_digest(spec: TensorSpec, array: NDArray[Any]) -> TensorRecord:
    digest = hashlib.sha256(array.data).hexdigest()
    return TensorRecord(spec.name, spec.shape, spec.dtype, array.nbytes, digest, spec.kind, spec.protection)


def _record_without_digest(spec: TensorSpec, array: NDArray[Any]) -> TensorRecord:
    return TensorRecord(spec.name, spec.shape, spec.dtype, array.nbytes, None, spec.kind, spec.protection)


def _record_of_refused(spec: TensorSpec) -> TensorRecord:
    """The record of a refused tensor, without a digest, from which the values could be guessed."""
    return TensorRecord(spec.name, spec.shape, spec.dtype, 0, None, spec.kind, spec.protection)
