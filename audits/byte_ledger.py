"""The byte ledger in the audit log: counts of bytes that left, compared with releases and named overhead.

The process that reads a site's rows, the vault, has one way out, its socket. It counts the bytes of its answers to a
job's tasks and of sealed mail for other sites. In logs of version 0.2.0 and before, no process is a vault: FLARE's
processes counted the frames that they handed to the network, and the payload that they meant to send.

An entry's `wire` holds `process` (`vault`; `site` or `job` before), `session` (one for each start of a process),
`number` (of the entry within the session, from 0), `last` (the session is over), `gap` (the machine went down: the
newest counts may be lost), `sent` and `refused` (`FrameCount`), `results` (`ResultCount`), `mailed` (bytes of sealed
parts for other sites).
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType, UnionType
from typing import Any, TypeAlias

from audits.entry import LARGEST, Entry, Event, Outcome
from audits.errors import LogError, NewerFormat
from audits.exchange import SITES

# Checks of objects within an entry, such as counts of bytes, before a class is made of one.

_NO_WORDS: Mapping[str, type[StrEnum]] = MappingProxyType({})


def check_members(
    kind: type, parts: Collection[Mapping[str, Any]], what: str, words: Mapping[str, type[StrEnum]] = _NO_WORDS
) -> None:
    """Raises `NewerFormat(what)` if a part has a member that the dataclass lacks, or an unknown word.

    `words`: the closed vocabulary of each member that has one, by the member's name.
    """
    names = {member.name for member in fields(kind)}
    for part in parts:
        strange = [name for name, vocabulary in words.items() if part.get(name) not in list(vocabulary)]
        if part.keys() - names or any(isinstance(part.get(name), str) for name in strange):
            raise NewerFormat(what)


def check_types(record: object, kind: type | UnionType, names: Iterable[str]) -> None:
    """Raises `TypeError` unless these fields have values of that type."""
    if not all(isinstance(getattr(record, name), kind) for name in names):
        raise TypeError


def check_counts(record: object, names: Iterable[str]) -> None:
    """Raises `ValueError` unless these fields are whole numbers that a file's size or a counter may have."""
    if not all(type(value := getattr(record, name)) is int and 0 <= value < LARGEST for name in names):
        raise ValueError


SITE, JOB, VAULT = "site", "job", "vault"


class Traffic(StrEnum):
    """The kinds of traffic that may cross the network."""

    HANDSHAKE = "handshake"
    PRESENCE = "presence"
    REQUEST = "task request"
    CONTROL = "task control"
    RESULT = "task result"
    MAIL = "mail between sites"
    RECEIPT = "receipt"
    REPLY = "reply"
    REFUSAL = "refusal"
    ADMIN = "administration"
    INTERNAL = "between the site's own processes"
    UNLISTED = "unlisted"


PREFIX = 16
HEADER = ENVELOPE = 2048
PER_TENSOR = 512
LOG_BYTES = 1 << 15
MAIL_PART = 1 << 20

LIMITS: Mapping[Traffic, int | None] = {
    Traffic.HANDSHAKE: PREFIX + 1024,
    Traffic.PRESENCE: PREFIX + HEADER + 4096,
    Traffic.REQUEST: PREFIX + HEADER + 2048,
    Traffic.CONTROL: PREFIX + HEADER + 2048,
    Traffic.RESULT: None,
    Traffic.MAIL: PREFIX + HEADER + MAIL_PART,
    Traffic.RECEIPT: PREFIX + HEADER,
    Traffic.REPLY: PREFIX + HEADER + 2048,
    Traffic.REFUSAL: PREFIX + 2 * HEADER,
    Traffic.ADMIN: PREFIX + HEADER + 4096,
    Traffic.INTERNAL: None,
    Traffic.UNLISTED: 0,
}
"""The most bytes of one frame of a kind, headers included. None: results are compared with what was released, and
frames between the site's own processes have no limit.

A frame may have `PREFIX + 2 * HEADER` bytes around its payload. A result's payload may exceed its tensors' values by
`ENVELOPE` bytes a message and `PER_TENSOR` bytes a tensor (name, shape, dtype, FLARE's own fields). At most `LOG_BYTES`
bytes of a message may be audit data: checkpoints, proofs and cosignatures.
"""


@dataclass
class FrameCount:
    """Counts of frames of one kind of traffic. `job` is None for the site's own frames; `leaves`: they leave the site.

    `nbytes`: bytes of whole frames; `payload`: bytes without headers; `largest`: bytes of the longest frame.
    `announced`: payload bytes that were handed over to be sent; a lower layer added any payload beyond them.
    """

    traffic: Traffic
    job: str | None
    leaves: bool
    frames: int = 0
    nbytes: int = 0
    payload: int = 0
    largest: int = 0
    announced: int = 0

    def add(self, nbytes: int, payload: int) -> None:
        """Counts one frame."""
        self.frames += 1
        self.nbytes += nbytes
        self.payload += payload
        self.largest = max(self.largest, nbytes)


@dataclass(frozen=True)
class ResultCount:
    """Counts of one task's result: how often a job's process encoded it, and with how many tensors.

    Sums of bytes over the messages: `nbytes` (values of the tensors), `beside` (audit data), `encoded` (whole
    messages).
    """

    task: str
    round: int
    messages: int
    tensors: int
    nbytes: int
    beside: int
    encoded: int


@dataclass(frozen=True)
class WireWindow:
    """The counts of one process since its last entry: the field `wire` of an entry."""

    process: str
    session: str
    number: int
    last: bool = False
    gap: bool = False
    sent: tuple[FrameCount, ...] = ()
    refused: tuple[FrameCount, ...] = ()
    results: tuple[ResultCount, ...] = ()
    mailed: int = 0

    def record(self) -> dict[str, Any]:
        """The window as plain JSON."""
        parts = {name: [vars(part) for part in getattr(self, name)] for name in ("sent", "refused", "results")}
        return vars(self) | parts

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "WireWindow":
        """The window in a record. Raises `LogError` if it is malformed, `NewerFormat` if a newer version wrote it."""
        try:
            _check_names(record)
            sent, refused = (tuple(_count(part) for part in record[name]) for name in ("sent", "refused"))
            results = tuple(_result_count(part) for part in record["results"])
            window = cls(**{**record, "sent": sent, "refused": refused, "results": results})
            check_types(window, str, ("session",))
            check_types(window, bool, ("last", "gap"))
            check_counts(window, ("number", "mailed"))
            if window.process in (SITE, JOB, VAULT):
                return window
        except (AttributeError, KeyError, TypeError, ValueError):
            pass
        raise LogError("the entry's counts do not have the fields of this version's format")


def _check_names(record: Mapping[str, Any]) -> None:
    """Raises `NewerFormat` for members and kinds of traffic that this version does not know."""
    counts = [*record["sent"], *record["refused"]]
    check_members(WireWindow, [record], "the entry of counted bytes")
    check_members(ResultCount, record["results"], "the entry of counted bytes")
    check_members(FrameCount, counts, "the entry of counted bytes", {"traffic": Traffic})


def _count(record: Mapping[str, Any]) -> FrameCount:
    count = FrameCount(**{**record, "traffic": Traffic(record["traffic"])})
    check_types(count, str | None, ("job",))
    check_types(count, bool, ("leaves",))
    check_counts(count, (member.name for member in fields(FrameCount)[3:]))
    return count


def _result_count(record: Mapping[str, Any]) -> ResultCount:
    result = ResultCount(**record)
    check_types(result, str, ("task",))
    check_types(result, int, ("round",))
    check_counts(result, (member.name for member in fields(ResultCount)[2:]))
    if not result.messages:
        raise ValueError
    return result


@dataclass(frozen=True)
class WireFinding:
    """Unexplained bytes, or missing counts (then 0 bytes); `seq` is the number of the entry that shows them."""

    seq: int | None
    nbytes: int
    reason: str


@dataclass(frozen=True)
class Reconciliation:
    """Bytes that left the site, by kind, and the bytes among them that nothing explains.

    `covered` is False where no process kept a byte ledger (the in-process engine and FLARE's simulator). `running`
    counts processes whose counts may not all be in the log yet: their jobs are not compared. `pending` holds findings
    that the counts of running jobs may still explain.
    """

    left: Mapping[str, int]
    findings: tuple[WireFinding, ...]
    pending: tuple[WireFinding, ...]
    running: int
    covered: bool

    @property
    def unexplained(self) -> int:
        """Number of unexplained bytes."""
        return sum(finding.nbytes for finding in self.findings)

    @property
    def ok(self) -> bool:
        """True if every byte is explained and no count is missing."""
        return not self.findings


def reconcile(entries: Iterable[Entry]) -> Reconciliation:
    """Compares a log's `wire` entries with its releases and ignores other entries. Entries come in the log's order.

    Raises `LogError` for a `wire` entry that is not of this format.
    """
    reconciler = Reconciler()
    for entry in entries:
        reconciler.add(entry)
    return reconciler.result()


@dataclass
class _Session:
    """One run of a process, with the number of the next entry that it should have."""

    process: str
    job: str | None
    next: int = 0
    over: bool = False
    partial: bool = False
    """Whether its first entries have expired."""


@dataclass
class _Job:
    """Sums over a job: frames and payload that its processes sent out, and that the site's own process passed on."""

    sent: Counter[Traffic] = field(default_factory=Counter)
    frames: Counter[Traffic] = field(default_factory=Counter)
    passed: Counter[Traffic] = field(default_factory=Counter)
    passed_frames: Counter[Traffic] = field(default_factory=Counter)
    encoded: int = 0
    mailed: int = 0
    shared: bool = False
    compared: bool = True
    """False once counts of the job's own processes are missing."""


_RESULTS, _VALUES = "encoding of task results", "values of released tensors"
_LOG_BYTES = "checkpoints and cosignatures of audit logs"


_Releases: TypeAlias = OrderedDict[tuple[int | None, int, int], None]  # round, bytes of values, number of tensors
_RECENT = 512
"""Distinct recent releases of a job that are remembered, because its counts are logged only every few seconds."""


class Reconciler:
    """`reconcile`, entry by entry. Memory grows with the number of jobs and process starts, not with the log."""

    def __init__(self, expired: bool = False) -> None:
        """`expired`: the log's first entries are gone, so that counts may begin in the middle."""
        self.expired = expired
        self._sessions: dict[str, _Session] = {}
        self._jobs: defaultdict[str, _Job] = defaultdict(_Job)
        self._released: defaultdict[str, _Releases] = defaultdict(OrderedDict)
        self._handed: Counter[tuple[str, Traffic, str | None, bool]] = Counter()
        self._left: Counter[str] = Counter()
        self._values = self._beside = 0
        self._findings: list[WireFinding] = []

    def add(self, entry: Entry) -> None:
        """Adds one entry. Raises `LogError`."""
        if entry.event is Event.RELEASE and entry.outcome is Outcome.SENT and entry.job is not None:
            self.add_release(entry.job, entry.round, entry.peer, entry.nbytes, len(entry.tensors))
        if entry.event is Event.WIRE:
            self.add_window(entry.seq, entry.job, WireWindow.from_record(entry.wire or {}))

    def add_release(self, job: str, round: int | None, peer: str | None, nbytes: int, tensors: int) -> None:
        """Adds a logged release to `peer`, with its number of tensors and the bytes of their values."""
        if peer == SITES:
            self._jobs[job].shared = True
        else:
            recent = self._released[job]
            recent[round, nbytes, tensors] = None
            if len(recent) > _RECENT:
                recent.popitem(last=False)

    def add_window(self, seq: int, job: str | None, window: WireWindow) -> None:
        """Adds the counts of a `wire` entry."""
        if window.session not in self._sessions:
            partial = self.expired and window.number > 0
            first = window.number if partial else 0
            self._sessions[window.session] = _Session(window.process, job, first, partial=partial)
        session = self._sessions[window.session]
        if window.number < session.next:
            return  # logged twice: the process died between the entry and forgetting its counts
        missing = window.number > session.next or window.gap
        if missing:
            self._find(seq, 0, "counts of frames are missing: an entry was left out, or the machine went down")
        if job is not None and (missing or session.partial):
            self._jobs[job].compared = False
        session.next, session.over = window.number + 1, window.last
        for count in window.sent:
            self._frames(seq, window, count)
        if window.process != SITE and job is not None and not session.partial:
            self._job(seq, job, window)

    def result(self, counting: Collection[str] = ()) -> Reconciliation:
        """The result over the entries so far. `counting`: jobs whose counts are not all in the log yet."""
        running = {session.job for session in self._sessions.values() if session.process == JOB and not session.over}
        across = list(self._across(running))
        findings = [*self._findings, *(finding for job, finding in across if job not in counting)]
        by_kind = self._left + Counter({_VALUES: self._values, _LOG_BYTES: self._beside})
        by_kind[_RESULTS] -= self._values + self._beside
        return Reconciliation(
            left={name: nbytes for name, nbytes in sorted(by_kind.items()) if nbytes},
            findings=tuple(findings),
            pending=tuple(finding for job, finding in across if job in counting),
            running=sum(not session.over for session in self._sessions.values()),
            covered=bool(self._sessions),
        )

    def _find(self, seq: int | None, nbytes: int, reason: str) -> None:
        self._findings.append(WireFinding(seq, nbytes, reason))

    def _frames(self, seq: int, window: WireWindow, count: FrameCount) -> None:
        limit = LIMITS[count.traffic]
        if limit is not None and count.largest > limit:
            self._find(seq, count.largest - limit, f"a frame of the kind '{count.traffic}' is longer than such may be")
        overhead = count.nbytes - count.payload
        if overhead > count.frames * (PREFIX + 2 * HEADER):
            self._find(seq, overhead, f"frames of the kind '{count.traffic}' have longer headers than such may have")
        if count.traffic is not Traffic.HANDSHAKE:
            key = window.session, count.traffic, count.job, count.leaves
            self._handed[key] += count.announced - count.payload
            if self._handed[key] < 0:
                self._find(seq, -self._handed[key], f"more was sent as '{count.traffic}' than was handed over to be")
                self._handed[key] = 0
        if window.process == SITE and count.leaves:
            self._left[_RESULTS if count.traffic is Traffic.RESULT else count.traffic] += count.nbytes
            if count.job is not None:
                self._jobs[count.job].passed[count.traffic] += count.payload
                self._jobs[count.job].passed_frames[count.traffic] += count.frames

    def _job(self, seq: int, job: str, window: WireWindow) -> None:
        sums = self._jobs[job]
        for count in window.sent:
            if count.leaves:
                sums.sent[count.traffic] += count.payload
                sums.frames[count.traffic] += count.frames
        for result in window.results:
            self._result(seq, job, result)
        encoded = sum(result.encoded for result in window.results)
        sums.encoded, sums.mailed = sums.encoded + encoded, sums.mailed + window.mailed
        if window.process == VAULT:
            self._left += Counter({_RESULTS: encoded, Traffic.MAIL: window.mailed})
            sums.sent[Traffic.MAIL] += window.mailed
        if (more := sums.sent[Traffic.RESULT] - sums.encoded) > 0:
            self._find(seq, more, "more was sent as results of tasks than the job's process encoded")
            sums.encoded += more
        if (more := sums.sent[Traffic.MAIL] - sums.mailed) > 0:
            self._find(seq, more, "more was sent to other sites than was sealed for them")
            sums.mailed += more
        if window.last and all(session.over for session in self._sessions.values() if session.job == job):
            self._released.pop(job, None)

    def _result(self, seq: int, job: str, result: ResultCount) -> None:
        """Notes a finding unless a release has the result's bytes per message; at most LOG_BYTES may be audit data."""
        release = result.round, result.nbytes // result.messages, result.tensors
        if result.nbytes % result.messages == 0 and release in self._released[job]:
            self._values += result.nbytes
        elif result.tensors:
            self._find(seq, result.nbytes, "a task's result holds tensors that no release logged before it holds")
        self._beside += result.beside
        if (more := result.beside - result.messages * LOG_BYTES) > 0:
            self._find(seq, more, "a task's result tells more of audit logs than there can be to tell")
        overhead = result.encoded - result.nbytes - result.beside
        if overhead > (most := result.messages * (ENVELOPE + PER_TENSOR * result.tensors)):
            self._find(seq, overhead - most, "a task's result holds more around its tensors than their encoding needs")

    def _across(self, running: set[str | None]) -> Iterator[tuple[str, WireFinding]]:
        """Findings by job: bytes that the site's own process passed on beyond those that the job's processes sent."""
        for name, job in self._jobs.items():
            if job.sent[Traffic.MAIL] and not job.shared:
                reason = "shares went to other sites, and no release names what they are of"
                yield name, WireFinding(None, job.sent[Traffic.MAIL], reason)
            if name in running or not job.compared:
                continue
            for traffic, payload in job.passed.items():
                more = payload - job.sent[traffic]
                if more > 0 or job.passed_frames[traffic] > job.frames[traffic]:
                    reason = f"the site passed on more '{traffic}' of a job than the job's process counted"
                    yield name, WireFinding(None, max(more, 1), reason)
