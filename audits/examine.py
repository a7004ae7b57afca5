"""The three verdicts on a log: is it whole (integrity), does it say everything (completeness), do others agree
(consistency)? Each says what is shown, what is not shown, and what is broken; none vouches for another.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from audits.checkpoint import Checkpoint, origin_of
from audits.cosigned_times import CosignedTimes, cosigned_times
from audits.counted import counted
from audits.errors import LogError, NewerFormat
from audits.evidence import Claims, Evidence, claims_on, matching, receipts_of
from audits.judgement import Judgement, Part, State, worst
from audits.lines import CLOSE, FINDING, OPEN, REFUSED, RELEASE, SENT, WIRE, Line
from audits.note import VerifierKey
from audits.own_checkpoints import OwnCheckpoints
from audits.tile_verifier import TileVerifier
from audits.time_verdicts import cosigned_times_parts, retention_parts, times_part
from audits.times import Times
from audits.verifier import Walk
from audits.wire import Reconciler, WireWindow
from audits.witness import KEYS, read_keys


@dataclass(frozen=True)
class Examination:
    """What was found about one log."""

    site: str
    entries: int
    head: str
    root: str
    torn_bytes: int
    integrity: Judgement
    completeness: Judgement
    consistency: Judgement

    @property
    def state(self) -> State:
        """The worst of the three."""
        return worst(verdict.state for _, verdict in self.verdicts())

    def verdicts(self) -> Iterator[tuple[str, Judgement]]:
        """By name."""
        for name in ("integrity", "completeness", "consistency"):
            yield name, getattr(self, name)

    def record(self) -> dict[str, Any]:
        """As plain JSON, with the state of each verdict."""
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
    """Judge the log of `site` in `folder`, offline.

    `against`: files of notes, and folders, that others hold. `key`: the site's, where it is known for sure; else that
    which lies with the log. `running`: jobs that are known not to be over. `network`: False for jobs in one process,
    which put nothing on a network.

    Raises `LogError` if there is no log, or what it is compared with cannot be read.
    """
    evidence = Evidence.gather(against, folder)
    tiles = TileVerifier(folder)
    walk = Walk(folder, tiles)
    own = OwnCheckpoints(folder, walk.first_entry())
    known = key or _known_key(folder, site, evidence)
    claims = claims_on(site, known, [*own.cosigned, *([own.newest] if own.newest else [])], evidence)
    times = Times(own.dated(), _cosigned_times(folder, site, known, own, evidence))
    seen = _Seen(own, times, claims, _receipts(site, evidence))
    seen.compare(walk)
    for line in walk:
        seen.take(line, walk)
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
                _tree(own, seen),
                _signature(own, known, site),
                *tiles.parts(site, known, bool(walk.bad)),
            )
        ),
        completeness=Judgement(
            (
                *retention_parts(walk, times.cosigned),
                _tail(walk, own),
                _jobs(seen, walk, running),
                *_wire(seen, walk, running, network),
            )
        ),
        consistency=Judgement((*_agreement(walk, claims, seen, evidence), *cosigned_times_parts(times))),
    )


def _known_key(folder: Path, site: str, evidence: Evidence) -> VerifierKey | None:
    """The key that lies with the log; without one, the key that others know as the log's, if they know one."""
    others = evidence.keys.get(origin_of(site), set())
    return read_keys(folder / KEYS).get(origin_of(site)) or min(others, key=str, default=None)


def _cosigned_times(
    folder: Path, site: str, key: VerifierKey | None, own: OwnCheckpoints, evidence: Evidence
) -> CosignedTimes:
    """By the keys that lie with the log, and those that others vouch for."""
    if key is None:
        return CosignedTimes()
    others = {*read_keys(folder / KEYS).values(), *(one for keys in evidence.keys.values() for one in keys)}
    notes = [*own.over_expired, *own.cosigned, *evidence.notes[origin_of(site)]]
    return CosignedTimes(cosigned_times(notes, key, others))


@dataclass
class _Seen:
    """What the walk has come by."""

    own: OwnCheckpoints
    times: Times
    claims: Claims
    receipts: dict[bytes, int]
    ledger: Reconciler = field(default_factory=Reconciler)
    jobs: dict[bytes, bool] = field(default_factory=dict)
    """Whether each is open."""
    last_release: int = -1
    answered: set[bytes] = field(default_factory=set)
    uncounted: int | None = None
    """The first entry of counts that are none."""
    unread: int | None = None
    """The first entry of which only a newer version can read everything."""
    findings: int = 0
    unlike_own: int | None = None
    unlike_others: list[int] = field(default_factory=list)
    compared: int = 0

    def take(self, line: Line, walk: Walk) -> None:
        self.compare(walk)
        self.times.take(line)
        event = line.event
        if line.newer:
            self.unread = line.seq if self.unread is None else self.unread
            self.last_release = line.seq  # for all that is known here
        if event == RELEASE and line.outcome == SENT:
            self.last_release = line.seq
            round = None if line.round == b"null" else int(line.round)
            named = _shared(line.job), round, _shared(line.peer), int(line.nbytes)
            self.ledger.released(*named, line.tensors.count(b'"dtype":'))
            if self.receipts and (digest := matching(line)) in self.receipts:
                self.answered.add(digest)
        elif event == OPEN and line.outcome != REFUSED:
            self.jobs[line.job] = True
        elif event == CLOSE:
            self.jobs.pop(line.job, None)
        elif event == WIRE:
            self.ledger.expired = walk.first > 0
            try:
                window = WireWindow.from_record(json.loads(line.wire or b"{}"))
                self.ledger.counted(line.seq, json.loads(line.job), window)
            except NewerFormat:
                self.unread = line.seq if self.unread is None else self.unread
            except LogError:
                self.uncounted = line.seq if self.uncounted is None else self.uncounted
        elif event == FINDING:
            self.findings += 1

    def compare(self, walk: Walk) -> None:
        """The log so far with the checkpoints that are signed of it."""
        size = walk.entries
        if size == self.own.next_size:
            roots = self.own.due(size)
            self.compared += len(roots)
            if self.unlike_own is None and set(roots) != {walk.tree.root()}:
                self.unlike_own = size
        if size in self.claims.sizes and self.claims.sizes[size] != walk.tree.root():
            self.unlike_others.append(size)


@lru_cache(maxsize=64)
def _shared(value: bytes) -> Any:
    """The value of a member that most entries of a job have in common: parsing it takes longer than the rest."""
    return json.loads(value)


def _receipts(site: str, evidence: Evidence) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for folder in evidence.receipts:
        found |= receipts_of(site, folder)
    return found


def _chain(walk: Walk) -> Part:
    if walk.bad:
        return Part("chain", State.BROKEN, walk.bad, walk.entries)
    return Part(
        "chain",
        State.SHOWN,
        f"{counted(walk.entries, 'entry holds', 'entries hold')}, none changed, removed, added or moved",
    )


def _format(walk: Walk) -> Iterator[Part]:
    if walk.newer is not None:
        said = (
            "written by a newer version: chain and tree cover the entry, and what it says is for that version to read"
        )
        yield Part("format", State.NOT_SHOWN, said, walk.newer)


def _entries(number: int) -> str:
    return counted(number, "entry", "entries")


def _tree(own: OwnCheckpoints, seen: _Seen) -> Part:
    if seen.unlike_own is not None:
        said = "a checkpoint is of other entries than the log has: it was rewritten after it was signed"
        return Part("tree", State.BROKEN, said, max(seen.unlike_own - 1, 0))
    if own.newest is None:
        return Part("tree", State.NOT_SHOWN, "there is no checkpoint to compare the entries with")
    return Part("tree", State.SHOWN, f"{counted(seen.compared, 'checkpoint is', 'checkpoints are')} of these entries")


def _signature(own: OwnCheckpoints, key: VerifierKey | None, site: str) -> Part:
    if own.unreadable:
        return Part("signature", State.BROKEN, own.unreadable)
    if own.newest is None or key is None:
        missing = "checkpoint is signed" if key else "key of the site is known"
        return Part("signature", State.NOT_SHOWN, f"no {missing}")
    if Checkpoint.parse(own.newest.text).origin != origin_of(site) or not key.signed(own.newest):
        return Part("signature", State.BROKEN, "the newest checkpoint is not signed by the site's key")
    said = f"the newest checkpoint, of {_entries(own.size)}, is signed by the site"
    return Part("signature", State.SHOWN, said)


def _tail(walk: Walk, own: OwnCheckpoints) -> Part:
    if own.size > walk.entries:
        said = f"the log ends before its newest checkpoint, of {_entries(own.size)}: it was cut, or is another one"
        return Part("tail", State.BROKEN, said, walk.entries)
    if own.size < walk.entries:
        return Part(
            "tail",
            State.NOT_SHOWN,
            f"{counted(walk.entries - own.size, 'entry follows', 'entries follow')} the newest checkpoint",
        )
    return Part("tail", State.SHOWN, "the last entry is under the newest checkpoint")


def _jobs(seen: _Seen, walk: Walk, running: Collection[str]) -> Part:
    opened = {str(json.loads(job)) for job in seen.jobs}
    now = len(walk.counting.running)
    if still := opened - walk.counting.running - set(running):
        jobs = counted(len(still), "job was", "jobs were")
        said = (
            f"{jobs} not closed: {'it runs' if len(still) == 1 else 'they run'} (say which), or the log lacks the end"
        )
        return Part("jobs", State.NOT_SHOWN, said)
    said = "every job that was opened is closed, or said to be running"
    return Part("jobs", State.SHOWN, f"{_running(now)}; {said}" if now else said)


def _running(jobs: int) -> str:
    return counted(jobs, "job is running", "jobs are running")


def _wire(seen: _Seen, walk: Walk, running: Collection[str], network: bool) -> Iterator[Part]:
    if not network:
        return
    found = seen.ledger.result(walk.counting.jobs.union(running))
    if seen.uncounted is not None:
        yield Part("wire", State.BROKEN, "counts of bytes on the network are no counts of this format", seen.uncounted)
    elif seen.unread is not None:
        yield Part("wire", State.NOT_SHOWN, "entries of a newer version may explain bytes on the network", seen.unread)
    elif found.findings:
        first = found.findings[0]
        bare = counted(found.unexplained, "byte on the network is", "bytes on the network are")
        said = f"{bare} not explained, in {counted(len(found.findings), 'finding')}, first"
        yield Part("wire", State.BROKEN, f"{said}: {first.reason}", first.seq)
    elif not found.covered:
        yield Part("wire", State.NOT_SHOWN, "no process of the site kept a ledger of the bytes on the network")
    elif found.pending:
        jobs = len(walk.counting.running.union(running))
        when = _running(jobs) if jobs else "a job has just ended"
        said = f"{when}: not all that its process counted is in the log yet, and bytes are compared once it is"
        yield Part("wire", State.NOT_SHOWN, said)
    else:
        nbytes, kinds = sum(found.left.values()), len(found.left)
        said = f"all {nbytes} bytes on the network are explained, in {counted(kinds, 'kind')}"
        still = f"; {counted(found.running, 'process still counts', 'processes still count')}" if found.running else ""
        yield Part("wire", State.SHOWN, said + still)


def _agreement(walk: Walk, claims: Claims, seen: _Seen, evidence: Evidence) -> Iterable[Part]:
    if claims.key or claims.other_keys:
        yield _others_keys(claims)
    if claims.key:
        yield _others_checkpoints(walk, claims, seen)
    else:
        yield Part("checkpoints", State.NOT_SHOWN, "no key of the site is known")
    if evidence.receipts:
        yield _others_receipts(walk, seen)
    if seen.findings:
        yield Part(
            "findings", State.NOT_SHOWN, f"the site itself logged {counted(seen.findings, 'finding')}: see 'audit show'"
        )


def _others_keys(claims: Claims) -> Part:
    if claims.other_keys:
        return Part("key", State.BROKEN, "others know this log by another key: it was signed anew, or the key changed")
    return Part("key", State.SHOWN, "nobody who was asked knows the log by another key")


def _others_checkpoints(walk: Walk, claims: Claims, seen: _Seen) -> Part:
    beyond = [size for size in claims.sizes if size > walk.entries]
    if claims.forks:
        said = "two histories of this log are signed by the site: it was forked, or rolled back and written anew"
        return Part("checkpoints", State.BROKEN, said, claims.forks[0] - 1)
    if seen.unlike_others:
        said = "others hold a checkpoint, signed by the site, of other entries: the log was rewritten or forked"
        return Part("checkpoints", State.BROKEN, said, max(seen.unlike_others[0] - 1, 0))
    if beyond:
        said = f"others hold a checkpoint of {_entries(max(beyond))}: the log was cut or rolled back"
        return Part("checkpoints", State.BROKEN, said, walk.entries)
    if not claims.sizes:
        return Part("checkpoints", State.NOT_SHOWN, "no checkpoint of this log was found with others: give --against")
    parties = counted(len(claims.parties), "party", "parties")
    who = f"others hold the log up to entry {claims.covered - 1}, cosigned by {parties}"
    if claims.covered <= seen.last_release:
        return Part("checkpoints", State.NOT_SHOWN, f"{who}; releases after that are not in their hands")
    return Part("checkpoints", State.SHOWN, f"{who}, with every release in it")


def _others_receipts(walk: Walk, seen: _Seen) -> Part:
    missing = [number for digest, number in seen.receipts.items() if digest not in seen.answered]
    if not missing:
        number = len(seen.receipts)
        messages = "the only message" if number == 1 else f"all {number} messages"
        said = f"{messages} that the server received {'is' if number == 1 else 'are'} in the log"
        return Part("receipts", State.SHOWN, said)
    if seen.unread is not None:
        said = f"{counted(len(missing), 'receipt')} may be of entries of a newer version"
        return Part("receipts", State.NOT_SHOWN, said, seen.unread)
    if walk.first:
        return Part(
            "receipts", State.NOT_SHOWN, f"{counted(len(missing), 'receipt')} may be of entries that are expired"
        )
    messages = counted(len(missing), "message")
    said = f"the server received {messages} that the log does not hold, first by receipt {min(missing)}"
    return Part("receipts", State.BROKEN, said)


def sites_of(logs: dict[str, Path], run: Path) -> dict[str, tuple[Path, tuple[Path, ...]]]:
    """Each log of a run with what the rest of the run holds of it; nothing for a single log."""
    alone = set(logs.values()) == {run}
    return {site: (folder, () if alone else (run,)) for site, folder in logs.items()}


def check_site(folder: Path, named: str) -> str:
    """The site that a log says it is of; `named` if it has no entry. Raises `LogError`."""
    for line in Walk(folder):
        return str(json.loads(line.site))
    if not named:
        raise LogError("the log is empty, and so does not say whose it is")
    return named
