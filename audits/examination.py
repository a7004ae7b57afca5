"""The three verdicts on a log: is it intact (integrity), is nothing missing (completeness), do others hold the same
(consistency)? Each lists what is shown, not shown and broken. No verdict implies another.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from audits.byte_ledger import Reconciler, WireWindow
from audits.checkpoint import (
    CHECKPOINTS,
    SUCCESSIONS,
    Checkpoint,
    NoteFile,
    SucceededKey,
    origin_of,
    read_successions,
    succeeded,
)
from audits.entry import Event, LogLine, Outcome
from audits.errors import LogError, NewerFormat, NoteError
from audits.escaping import quantity
from audits.external_evidence import Claims, ExternalEvidence, claims_on, matching, receipts_of
from audits.judgement import BROKEN, NOT_SHOWN, SHOWN, Judgement, VerdictPart, VerdictState, worst
from audits.signed_note import Note, VerifierKey
from audits.tile_verifier import TileVerifier
from audits.time_order import LEAP, TOLERANCE, TRAVEL, CosignedTimes, Times, cosigned_times
from audits.verifier import Basis, Walk
from audits.witness import KEYS, read_keys

# Verdicts on the times in a log. Only text that is not a time is reported as broken.
#
# A wrong clock, the site's or another party's, cannot be told from a changed date.


def times_part(times: Times) -> VerdictPart:
    """Whether the dates of the entries are plausible by themselves, without others' cosigned times."""
    if times.malformed is not None:
        return VerdictPart("times", BROKEN, "the entry's time is not one that this format has", times.malformed)
    if times.earlier is not None:
        by = str(times.back).split(".")[0]
        text = f"the entry is dated {by} before what comes before it: the clock was set back, or it was dated anew"
        return VerdictPart("times", NOT_SHOWN, text, times.earlier)
    if (leap := times.leap()) is not None:
        text = f"more than {LEAP.days} days lie before the entry, and no signed time of others reaches its date"
        return VerdictPart("times", NOT_SHOWN, text, leap)
    if (future := times.future(datetime.now(UTC))) is not None:
        text = "the entry is dated in the future: its clock or this machine's is wrong, or it was dated anew"
        return VerdictPart("times", NOT_SHOWN, text, future)
    return VerdictPart("times", SHOWN, f"times are in order to {TOLERANCE.seconds // 60} minutes, none in the future")


def cosigned_times_parts(times: Times) -> Iterator[VerdictPart]:
    """Whether the dates of the entries fit the times that other parties signed; yields nothing if none is known."""
    name = "cosigned times"
    if not times.cosigned.sizes:
        return
    if times.cosigned.backwards is not None:
        text = "a party cosigned the log up to this entry before it cosigned less of it: its clock was set back"
        yield VerdictPart(name, NOT_SHOWN, text, times.cosigned.backwards)
    elif times.cosigned_earlier is not None:
        text = "others cosigned the entry before its date: the site's clock was ahead, or theirs is behind"
        yield VerdictPart(name, NOT_SHOWN, text, times.cosigned_earlier)
    elif times.cosigned_later is not None:
        text = f"the entry is dated more than {TRAVEL.days} days before others cosigned what precedes it"
        yield VerdictPart(name, NOT_SHOWN, text, times.cosigned_later)
    else:
        yield VerdictPart(name, SHOWN, "the dates of the entries fit the times at which others cosigned them")


def retention_parts(walk: Walk, cosigned: CosignedTimes) -> Iterator[VerdictPart]:
    """Whether others' times show that the expired first entries of a log were old enough."""
    if not walk.first or walk.expiry is None:
        return
    days, existed_since = walk.expiry.days, cosigned.existed(walk.first - 1)
    text = f"entries 0 to {walk.first - 1} have expired"
    if existed_since and cosigned.newest and cosigned.newest - existed_since >= timedelta(days=days):
        yield VerdictPart("retention", SHOWN, f"{text}, and others' signed times show that {days} days have passed")
    elif walk.expiry.basis is Basis.DATE:
        yield VerdictPart("retention", NOT_SHOWN, f"{text} by a date that a person gave, not by others' signed times")
    else:
        yield VerdictPart(
            "retention", NOT_SHOWN, f"{text}, and no signed times of others show that they were old enough"
        )


# The checkpoints stored next to a log.

_COSIGNED = 64
"""The number of newest cosigned checkpoints that are examined: each covers all entries before it."""
_OVER_EXPIRED = 16
"""The number of first cosigned checkpoints over expired entries that are examined."""


class OwnCheckpoints:
    """The log's own checkpoints, read as the walk reaches their sizes. Only the newest one's signature is checked.

    An earlier checkpoint is compared with the log by its root; its signature would prove nothing more.
    """

    def __init__(self, folder: Path, first: int = 0) -> None:
        """`first`: the first entry that is still in the log; those before it have expired."""
        self._file, self._first = NoteFile(folder / CHECKPOINTS), first
        self.over_expired: list[Note] = []
        """The first cosigned checkpoints that cover all expired entries."""
        self.newest, self.cosigned, self.unreadable = self._gather()
        self._heads = iter(()) if self.unreadable else self._file.heads()
        self.next_size, self._next_root = self._advance(0)
        """The size of the next checkpoint that `roots_at` has not returned yet; -1 after the last."""

    def _gather(self) -> tuple[Note | None, list[Note], str]:
        cosigned: deque[bytes] = deque(maxlen=_COSIGNED)
        over_expired: list[bytes] = []
        try:
            for size, note_text in self._file.cosigned():
                cosigned.append(note_text)
                if 0 < self._first <= size and len(over_expired) < _OVER_EXPIRED:
                    over_expired.append(note_text)
            self.over_expired = list(map(_parse_note, over_expired))
            return self._file.latest(), list(map(_parse_note, cosigned)), ""
        except NoteError as error:
            return None, [], str(error)

    def roots_at(self, size: int) -> list[bytes]:
        """The roots of the checkpoints of this size."""
        roots: list[bytes] = []
        while self.next_size == size:
            roots.append(self._next_root)
            self.next_size, self._next_root = self._advance(size)
        return roots

    def _advance(self, size: int) -> tuple[int, bytes]:
        """The next checkpoint of at least `size`. Smaller ones are repeats, stored again later with cosignatures."""
        for head in self._heads:
            if head[0] >= size:
                return head
        return -1, b""

    @property
    def size(self) -> int:
        """The number of entries that the newest checkpoint covers; 0 without one."""
        return Checkpoint.parse(self.newest.text).size if self.newest else 0

    def dated(self) -> Iterator[Checkpoint]:
        """The checkpoints whose times are compared: the newest, and those that others have cosigned."""
        for note in [*self.cosigned, *([self.newest] if self.newest else [])]:
            yield Checkpoint.parse(note.text)


def _parse_note(note_text: bytes) -> Note:
    return Note.parse(note_text.decode(errors="replace"))


@dataclass(frozen=True)
class Examination:
    """The verdicts on one log."""

    site: str
    entries: int
    head: str
    root: str
    torn_bytes: int
    integrity: Judgement
    completeness: Judgement
    consistency: Judgement

    @property
    def state(self) -> VerdictState:
        """The worst of the three."""
        return worst(verdict.state for _, verdict in self.verdicts())

    def verdicts(self) -> Iterator[tuple[str, Judgement]]:
        """The three verdicts with their names."""
        for name in ("integrity", "completeness", "consistency"):
            yield name, getattr(self, name)

    def record(self) -> dict[str, Any]:
        """The examination as plain JSON, with the state of each verdict."""
        record = asdict(self) | {"state": self.state}
        for name, verdict in self.verdicts():
            record[name]["state"] = verdict.state
        return record


def examine(
    folder: Path,
    site: str,
    against: Collection[Path] = (),
    key: VerifierKey | None = None,
    running: Collection[str] = (),
    network: bool = True,
) -> Examination:
    """Examines the log of `site` in `folder`, offline.

    `against`: other parties' files of notes, and folders. `key`: the site's key from a trusted source; without it, the
    key stored next to the log counts. `running`: jobs that are known not to be over. `network`: False for jobs in one
    process, which put nothing on a network.

    Raises `LogError` if there is no log, or what it is compared with cannot be read.
    """
    evidence = ExternalEvidence.gather(against, folder)
    tiles = TileVerifier(folder)
    # Checkpoints first: while a log grows they may then cover fewer entries than are read, and never more.
    checkpoints = OwnCheckpoints(folder, Walk(folder).first_entry())
    walk = Walk(folder, tiles)
    known_key = key or _known_key(folder, site, evidence)
    successions = [*read_successions(folder / SUCCESSIONS), *evidence.successions]
    site_key = succeeded(known_key, successions) if known_key else None
    claims = claims_on(
        site, site_key, [*checkpoints.cosigned, *([checkpoints.newest] if checkpoints.newest else [])], evidence
    )
    times = Times(checkpoints.dated(), _cosigned_times(folder, site, site_key, checkpoints, evidence))
    facts = _LogFacts(checkpoints, times, claims, _receipts(site, evidence))
    facts.compare(walk)
    for line in walk:
        facts.take(line, walk)
    times.end(walk.entries)
    return Examination(
        site=site,
        entries=walk.entries,
        head=walk.head,
        root=walk.tree.root().hex(),
        torn_bytes=walk.torn_bytes,
        integrity=Judgement(
            (
                _chain(walk),
                *_format(walk),
                times_part(times),
                _tree(checkpoints, facts),
                _signature(checkpoints, site_key, site),
                *tiles.parts(site, site_key, bool(walk.bad)),
            )
        ),
        completeness=Judgement(
            (
                *retention_parts(walk, times.cosigned),
                _tail(walk, checkpoints),
                _jobs(facts, walk, running),
                *_wire(facts, walk, running, network),
            )
        ),
        consistency=Judgement((*_agreement(walk, claims, facts, evidence), *cosigned_times_parts(times))),
    )


def _known_key(folder: Path, site: str, evidence: ExternalEvidence) -> VerifierKey | None:
    """The key stored next to the log; without one, the key that others know as the log's, if they know one."""
    others = evidence.keys.get(origin_of(site), set())
    return read_keys(folder / KEYS).get(origin_of(site)) or min(others, key=str, default=None)


def _cosigned_times(
    folder: Path, site: str, key: SucceededKey | None, checkpoints: OwnCheckpoints, evidence: ExternalEvidence
) -> CosignedTimes:
    """Cosigned times, by the keys stored next to the log and the keys that others vouch for."""
    if key is None:
        return CosignedTimes()
    others = {*read_keys(folder / KEYS).values(), *(other for keys in evidence.keys.values() for other in keys)}
    notes = [*checkpoints.over_expired, *checkpoints.cosigned, *evidence.notes[origin_of(site)]]
    return CosignedTimes(cosigned_times(notes, key, others))


@dataclass
class _LogFacts:
    """Facts that the walk over a log collects."""

    checkpoints: OwnCheckpoints
    times: Times
    claims: Claims
    receipts: dict[bytes, int]
    ledger: Reconciler = field(default_factory=Reconciler)
    jobs: dict[str, bool] = field(default_factory=dict)
    """The open jobs, by id."""
    last_release: int = -1
    answered: set[bytes] = field(default_factory=set)
    uncounted: int | None = None
    """The first entry whose counts of bytes are malformed."""
    unread: int | None = None
    """The first entry that only a newer version can read completely."""
    findings: int = 0
    unlike_own: int | None = None
    unlike_others: list[int] = field(default_factory=list)
    compared: int = 0

    def take(self, line: LogLine, walk: Walk) -> None:
        self.compare(walk)
        self.times.take(line)
        event, job = line.event, line.job or ""
        if line.newer:
            self.unread = line.seq if self.unread is None else self.unread
            self.last_release = line.seq  # it may be a release
        if event == Event.RELEASE and line.outcome == Outcome.SENT:
            self.last_release = line.seq
            self.ledger.add_release(job, line.round, line.peer, line.nbytes, len(line.tensors))
            if self.receipts and (digest := matching(line)) in self.receipts:
                self.answered.add(digest)
        elif event == Event.OPEN and line.outcome != Outcome.REFUSED:
            self.jobs[job] = True
        elif event == Event.CLOSE:
            self.jobs.pop(job, None)
        elif event == Event.WIRE:
            self.ledger.expired = walk.first > 0
            try:
                window = WireWindow.from_record(line.wire or {})
                self.ledger.add_window(line.seq, job, window)
            except NewerFormat:
                self.unread = line.seq if self.unread is None else self.unread
            except LogError:
                self.uncounted = line.seq if self.uncounted is None else self.uncounted
        elif event == Event.FINDING:
            self.findings += 1

    def compare(self, walk: Walk) -> None:
        """Compares the log so far with the signed checkpoints of this size."""
        size = walk.entries
        if size == self.checkpoints.next_size:
            roots = self.checkpoints.roots_at(size)
            self.compared += len(roots)
            if self.unlike_own is None and set(roots) != {walk.tree.root()}:
                self.unlike_own = size
        if size in self.claims.sizes and self.claims.sizes[size] != walk.tree.root():
            self.unlike_others.append(size)


def _receipts(site: str, evidence: ExternalEvidence) -> dict[bytes, int]:
    digests: dict[bytes, int] = {}
    for folder in evidence.receipts:
        digests |= receipts_of(site, folder)
    return digests


def _chain(walk: Walk) -> VerdictPart:
    if walk.bad:
        return VerdictPart("chain", BROKEN, walk.bad, walk.entries)
    return VerdictPart(
        "chain",
        SHOWN,
        f"{quantity(walk.entries, 'entry holds', 'entries hold')}, none changed, removed, added or moved",
    )


def _format(walk: Walk) -> Iterator[VerdictPart]:
    if walk.newer is not None:
        text = (
            "written by a newer version: chain and tree cover the entry, and what it says is for that version to read"
        )
        yield VerdictPart("format", NOT_SHOWN, text, walk.newer)


def _entries(number: int) -> str:
    return quantity(number, "entry", "entries")


def _tree(checkpoints: OwnCheckpoints, facts: _LogFacts) -> VerdictPart:
    if facts.unlike_own is not None:
        text = "a checkpoint is of other entries than the log has: it was rewritten after it was signed"
        return VerdictPart("tree", BROKEN, text, max(facts.unlike_own - 1, 0))
    if checkpoints.newest is None:
        return VerdictPart("tree", NOT_SHOWN, "there is no checkpoint to compare the entries with")
    return VerdictPart(
        "tree", SHOWN, f"{quantity(facts.compared, 'checkpoint is', 'checkpoints are')} of these entries"
    )


def _signature(checkpoints: OwnCheckpoints, key: VerifierKey | None, site: str) -> VerdictPart:
    if checkpoints.unreadable:
        return VerdictPart("signature", BROKEN, checkpoints.unreadable)
    if checkpoints.newest is None or key is None:
        what = "checkpoint is signed" if key else "key of the site is known"
        return VerdictPart("signature", NOT_SHOWN, f"no {what}")
    if Checkpoint.parse(checkpoints.newest.text).origin != origin_of(site) or not key.signed(checkpoints.newest):
        return VerdictPart("signature", BROKEN, "the newest checkpoint is not signed by the site's key")
    text = f"the newest checkpoint, of {_entries(checkpoints.size)}, is signed by the site"
    return VerdictPart("signature", SHOWN, text)


def _tail(walk: Walk, checkpoints: OwnCheckpoints) -> VerdictPart:
    if checkpoints.size > walk.entries:
        text = (
            f"the log ends before its newest checkpoint, of {_entries(checkpoints.size)}: it was cut, or is another one"
        )
        return VerdictPart("tail", BROKEN, text, walk.entries)
    if checkpoints.size < walk.entries:
        return VerdictPart(
            "tail",
            NOT_SHOWN,
            f"{quantity(walk.entries - checkpoints.size, 'entry follows', 'entries follow')} the newest checkpoint",
        )
    return VerdictPart("tail", SHOWN, "the last entry is under the newest checkpoint")


def _jobs(facts: _LogFacts, walk: Walk, running: Collection[str]) -> VerdictPart:
    open_jobs = set(facts.jobs)
    now = len(walk.running)
    if still := open_jobs - walk.running - set(running):
        jobs = quantity(len(still), "job was", "jobs were")
        text = (
            f"{jobs} not closed: {'it runs' if len(still) == 1 else 'they run'} (say which), or the log lacks the end"
        )
        return VerdictPart("jobs", NOT_SHOWN, text)
    text = "every job that was opened is closed, or said to be running"
    return VerdictPart("jobs", SHOWN, f"{_running(now)}; {text}" if now else text)


def _running(jobs: int) -> str:
    return quantity(jobs, "job is running", "jobs are running")


def _wire(facts: _LogFacts, walk: Walk, running: Collection[str], network: bool) -> Iterator[VerdictPart]:
    if not network:
        return
    total = facts.ledger.result(walk.running.union(running))
    if facts.uncounted is not None:
        yield VerdictPart(
            "wire", BROKEN, "counts of bytes on the network are not counts of this format", facts.uncounted
        )
    elif facts.unread is not None:
        yield VerdictPart(
            "wire", NOT_SHOWN, "entries of a newer version may explain bytes on the network", facts.unread
        )
    elif total.findings:
        first = total.findings[0]
        bare = quantity(total.unexplained, "byte on the network is", "bytes on the network are")
        text = f"{bare} not explained, in {quantity(len(total.findings), 'finding')}, first"
        yield VerdictPart("wire", BROKEN, f"{text}: {first.reason}", first.seq)
    elif not total.covered:
        yield VerdictPart("wire", NOT_SHOWN, "no process of the site kept a ledger of the bytes on the network")
    elif total.pending:
        jobs = len(walk.running.union(running))
        when = _running(jobs) if jobs else "a job has just ended"
        text = f"{when}: not all of its counts are in the log yet; bytes are compared once they are"
        yield VerdictPart("wire", NOT_SHOWN, text)
    else:
        nbytes, kinds = sum(total.left.values()), len(total.left)
        text = f"all {nbytes} bytes on the network are explained, in {quantity(kinds, 'kind')}"
        still = f"; {quantity(total.running, 'process still counts', 'processes still count')}" if total.running else ""
        yield VerdictPart("wire", SHOWN, text + still)


def _agreement(walk: Walk, claims: Claims, facts: _LogFacts, evidence: ExternalEvidence) -> Iterable[VerdictPart]:
    if claims.key or claims.other_keys:
        yield _others_keys(claims)
    if claims.key:
        yield _others_checkpoints(walk, claims, facts)
    else:
        yield VerdictPart("checkpoints", NOT_SHOWN, "no key of the site is known")
    if evidence.receipts:
        yield _others_receipts(walk, facts)
    if facts.findings:
        yield VerdictPart(
            "findings", NOT_SHOWN, f"the site itself logged {quantity(facts.findings, 'finding')}: see 'audit show'"
        )


def _others_keys(claims: Claims) -> VerdictPart:
    if claims.other_keys:
        return VerdictPart("key", BROKEN, "others know this log by another key: it was signed anew, or the key changed")
    return VerdictPart("key", SHOWN, "nobody who was asked knows the log by another key")


def _others_checkpoints(walk: Walk, claims: Claims, facts: _LogFacts) -> VerdictPart:
    beyond = [size for size in claims.sizes if size > walk.entries]
    if claims.forks:
        text = "two histories of this log are signed by the site: it was forked, or rolled back and written anew"
        return VerdictPart("checkpoints", BROKEN, text, claims.forks[0] - 1)
    if facts.unlike_others:
        text = "others hold a checkpoint, signed by the site, of other entries: the log was rewritten or forked"
        return VerdictPart("checkpoints", BROKEN, text, max(facts.unlike_others[0] - 1, 0))
    if beyond:
        text = f"others hold a checkpoint of {_entries(max(beyond))}: the log was cut or rolled back"
        return VerdictPart("checkpoints", BROKEN, text, walk.entries)
    if not claims.sizes:
        return VerdictPart("checkpoints", NOT_SHOWN, "no checkpoint of this log was found with others: give --against")
    parties = quantity(len(claims.parties), "party", "parties")
    who = f"others hold the log up to entry {claims.covered - 1}, cosigned by {parties}"
    if claims.covered <= facts.last_release:
        return VerdictPart("checkpoints", NOT_SHOWN, f"{who}; they do not hold the releases after it")
    return VerdictPart("checkpoints", SHOWN, f"{who}, with every release in it")


def _others_receipts(walk: Walk, facts: _LogFacts) -> VerdictPart:
    missing = [number for digest, number in facts.receipts.items() if digest not in facts.answered]
    if not missing:
        number = len(facts.receipts)
        messages = "the only message" if number == 1 else f"all {number} messages"
        text = f"{messages} that the server received {'is' if number == 1 else 'are'} in the log"
        return VerdictPart("receipts", SHOWN, text)
    if facts.unread is not None:
        text = f"{quantity(len(missing), 'receipt')} may be of entries of a newer version"
        return VerdictPart("receipts", NOT_SHOWN, text, facts.unread)
    if walk.first:
        return VerdictPart(
            "receipts", NOT_SHOWN, f"{quantity(len(missing), 'receipt')} may be of entries that are expired"
        )
    messages = quantity(len(missing), "message")
    text = f"the server received {messages} that the log does not hold, first by receipt {min(missing)}"
    return VerdictPart("receipts", BROKEN, text)


def sites_of(logs: dict[str, Path], run: Path) -> dict[str, tuple[Path, tuple[Path, ...]]]:
    """By site, the folder of its log and the folders to compare it with: the run's, or none for a single log."""
    alone = set(logs.values()) == {run}
    return {site: (folder, () if alone else (run,)) for site, folder in logs.items()}


def check_site(folder: Path, named: str) -> str:
    """The site that a log names; `named` if the log is empty. Raises `LogError` if neither names one."""
    for line in Walk(folder):
        return line.site
    if not named:
        raise LogError("the log is empty, so its site is unknown")
    return named
