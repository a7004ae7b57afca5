"""An index of the entries in the logs, so that a page of entries is found without reading the rest.

The index lies in a temporary file of SQLite's own, which nobody else can open and which goes with the process; what a
page shows is read from the logs again. Memory does not grow with the logs.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from audits.entry import Entry, Event, Outcome, parse_line
from audits.errors import LogError, known_code
from audits.exchange import Kind
from audits.log import GENESIS
from audits.log_files import LOG_NAME, MAX_LINE, closed_segments, first_entry, lines_of, segments

# Reads a log as it grows, over all its segments, and finds an entry again by where it stands.


class Follower:
    """One log, read as far as its chain holds.

    `first` is the number of the first entry that has not expired, `entries` the number of the next entry, and
    `broken` says what is wrong if the next line is not a valid entry.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first = self.entries = 0
        self.broken: str | None = None
        self._head: str | None = None
        self._begun = self._inode = 0  # of the first segment, and of the one that was read last
        self._seen = (0, 0)  # size and time of that one
        self._segment = self._offset = 0

    def stale(self) -> bool:
        """Whether the log must be read from its beginning: at first, and when its files were replaced or changed.

        Raises `OSError`, and `LogError` if there is no log.
        """
        files = [(found.st_ino, found) for found in map(os.stat, self._files())]
        now = dict(files).get(self._inode)
        if now is None or files[0][0] != self._begun:
            return True
        size, time = self._seen
        return now.st_size < size or (now.st_size == size and now.st_mtime_ns != time)

    def grown(self) -> Iterator[tuple[int, int, Entry]]:
        """New entries since the last call: the segment's first number, the offset in the segment, the entry.

        Raises `OSError`, and `LogError` if there is no log.
        """
        files = [(path, os.stat(path)) for path in self._files()]
        if not self._inode:
            self._begin(*files[0])
        inodes = [found.st_ino for _, found in files]
        for path, found in files[inodes.index(self._inode) :]:
            if found.st_ino != self._inode:
                self._inode, self._segment, self._offset = found.st_ino, self.entries, 0
            if not self.broken:
                yield from self._fitting(lines_of(path, offset=self._offset))
            self._seen = found.st_size, found.st_mtime_ns

    def entry(self, seq: int, segment: int, offset: int) -> Entry:
        """Reads the entry at this place again. Raises `LogError` if it is another one, or damaged; `OSError`."""
        path = closed_segments(self.folder).get(segment, self.folder / LOG_NAME)
        try:
            entry = Entry.from_record(parse_line(next(lines_of(path, offset=offset), b"")))
        except LogError:
            entry = None
        if entry is None or entry.seq != seq:
            raise LogError(f"entry {seq} is no longer what it was when it was read: have the log verified")
        return entry

    def _files(self) -> list[Path]:
        files = segments(self.folder)
        if not files:
            raise LogError("the folder no longer has an audit log")
        return files

    def _begin(self, path: Path, found: os.stat_result) -> None:
        self._begun = self._inode = found.st_ino
        try:
            self.first = self.entries = self._segment = first_entry(path) or 0
        except LogError as error:
            self.broken = f"entry 0: {error}"
        self._head = None if self.first else GENESIS

    def _fitting(self, lines: Iterable[bytes]) -> Iterator[tuple[int, int, Entry]]:
        for line in lines:
            if not line.endswith(b"\n") and len(line) <= MAX_LINE:
                return
            try:
                record = parse_line(line)
                if record["seq"] != self.entries or self._head not in (None, record["prev_hash"]):
                    raise LogError("it does not follow the entry before it")
                entry = Entry.from_record(record)
            except LogError as error:
                self.broken = f"entry {self.entries}: {error}"
                return
            place = self._segment, self._offset
            self._offset, self.entries, self._head = self._offset + len(line), self.entries + 1, entry.leaf_hash
            yield *place, entry


POINTS = 240  # steps of a course that a page draws at most

_SCHEMA = """
CREATE TABLE entries (site TEXT, seq INTEGER, segment INTEGER, offset INTEGER, time TEXT, job TEXT,
    event TEXT, outcome TEXT, code TEXT, kinds INTEGER, charged INTEGER, before REAL, after REAL,
    PRIMARY KEY (site, seq)) WITHOUT ROWID;
CREATE INDEX by_time ON entries (time, site, seq);
CREATE INDEX by_charge ON entries (site, seq, before, after) WHERE charged;
CREATE TABLE passed (site TEXT, job TEXT, event TEXT, outcome TEXT, entries INTEGER, nbytes INTEGER, last TEXT,
    PRIMARY KEY (site, job, event, outcome)) WITHOUT ROWID;
CREATE TABLE tensors (site TEXT, job TEXT, direction TEXT, peer TEXT, name TEXT, kind TEXT, protection TEXT,
    messages INTEGER, nbytes INTEGER,
    PRIMARY KEY (site, job, direction, peer, name, kind, protection)) WITHOUT ROWID;
CREATE TABLE spent (site TEXT, job TEXT, delta REAL, charges INTEGER, before REAL, after REAL,
    PRIMARY KEY (site, job)) WITHOUT ROWID;
"""
_ENTRY = "INSERT INTO entries VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
_PASSED = (
    "INSERT INTO passed VALUES (?,?,?,?,1,?,?) ON CONFLICT DO UPDATE SET "
    "entries = entries + 1, nbytes = nbytes + excluded.nbytes, last = max(last, excluded.last)"
)
_TENSOR = (
    "INSERT INTO tensors VALUES (?,?,?,?,?,?,?,1,?) ON CONFLICT DO UPDATE SET "
    "messages = messages + 1, nbytes = nbytes + excluded.nbytes"
)
_SPENT = (
    "INSERT INTO spent VALUES (?,?,?,1,?,?) ON CONFLICT DO UPDATE SET "
    "charges = charges + 1, after = excluded.after, delta = excluded.delta"
)
_BITS = {kind: 1 << bit for bit, kind in enumerate(Kind)}


@dataclass(frozen=True)
class Filter:
    """Selects entries; a field that is `None` selects all.

    `code`: of a refused job; `kind`: of a tensor; `charged`: only entries with a charge of the site's ledger.
    """

    site: str | None = None
    job: str | None = None
    event: str | None = None
    outcome: str | None = None
    code: str | None = None
    kind: Kind | None = None
    charged: bool = False

    def where(self) -> tuple[str, list[str | int]]:
        """The condition in SQL, and its parameters."""
        equal = {"site": self.site, "job": self.job, "event": self.event, "outcome": self.outcome}
        equal["code"] = self.code
        asked = {name: value for name, value in equal.items() if value is not None}
        terms, values = [f"{name} = ?" for name in asked], list[str | int](asked.values())
        if self.kind:
            terms, values = [*terms, "kinds & ?"], [*values, _BITS[self.kind]]
        if self.charged:
            terms.append("charged")
        return " AND ".join(terms) or "1", values


@dataclass(frozen=True)
class SiteFacts:
    """Totals of one log from its entry `first` on; earlier ones have expired. Bytes are those of tensors' values.

    `broken` says what stopped the index, if anything did.
    """

    site: str
    first: int
    entries: int
    released: int
    bytes_out: int
    received: int
    bytes_in: int
    refused: int
    refused_jobs: int
    last: str | None
    epsilon: float | None
    broken: str | None


@dataclass(frozen=True)
class JobFacts:
    """Totals of one job at one site; `job` is empty for entries without a job."""

    job: str
    site: str
    entries: int
    released: int
    bytes_out: int
    refused: int
    last: str


@dataclass(frozen=True)
class TensorFacts:
    """Totals of one tensor in one direction with one peer at one site. Refused messages are not counted."""

    site: str
    direction: str
    peer: str
    name: str
    kind: str
    protection: str
    messages: int
    nbytes: int


@dataclass(frozen=True)
class Spent:
    """One job's charges at one site: epsilon of the cohort's worst-off patient over all jobs, in nats."""

    site: str
    job: str
    delta: float | None
    charges: int
    before: float
    after: float


class Index:
    """Finds entries of these logs (site: folder). One thread at a time may use it."""

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._db = sqlite3.connect("", check_same_thread=False)
        self._db.executescript(_SCHEMA)
        self._logs = {site: Follower(folder) for site, folder in logs.items()}

    def close(self) -> None:
        """Closes the temporary file."""
        self._db.close()

    @property
    def folders(self) -> dict[str, Path]:
        """The logs' folders, by site."""
        return {site: log.folder for site, log in self._logs.items()}

    def refresh(self) -> None:
        """Reads the logs' new entries, and all entries of a log that was replaced since it was read.

        Raises `LogError` if a log cannot be read, or the index not be written.
        """
        for site, log in self._logs.items():
            try:
                with self._db:
                    if log.stale():
                        log = self._forgotten(site)
                    for segment, offset, entry in log.grown():
                        self._insert(site, segment, offset, entry)
            except (OSError, LogError, sqlite3.Error) as error:
                self._logs[site] = Follower(log.folder)  # which is stale: what was half taken in is forgotten
                raise LogError(f"the log of {site} cannot be indexed: {_told(error)}") from None

    def _forgotten(self, site: str) -> Follower:
        for table in ("entries", "passed", "tensors", "spent"):
            self._db.execute(f"DELETE FROM {table} WHERE site = ?", (site,))
        self._logs[site] = Follower(self._logs[site].folder)
        return self._logs[site]

    def _insert(self, site: str, segment: int, offset: int, entry: Entry) -> None:
        job, outcome = entry.job or "", str(entry.outcome or "")
        kinds = sum({_BITS[tensor.kind] for tensor in entry.tensors})
        epsilons, event = (entry.epsilon_before, entry.epsilon_after), str(entry.event)
        charged = entry.epsilon_after is not None
        code = str(known_code(entry.admission) or "")
        row = site, entry.seq, segment, offset, entry.time, job, event, outcome, code, kinds, charged, *epsilons
        self._db.execute(_ENTRY, row)
        self._db.execute(_PASSED, (site, job, event, outcome, entry.nbytes, entry.time))
        if charged:
            self._db.execute(_SPENT, (site, job, _delta(entry), *epsilons))
        if entry.outcome in (Outcome.SENT, Outcome.ACCEPTED):
            way = site, job, str(entry.direction), str(entry.peer)
            rows = ((*way, one.name, str(one.kind), str(one.protection), one.nbytes) for one in entry.tensors)
            self._db.executemany(_TENSOR, rows)

    def count(self, asked: Filter) -> int:
        """The number of entries that match the filter."""
        where, values = asked.where()
        return int(self._db.execute(f"SELECT count(*) FROM entries WHERE {where}", values).fetchone()[0])

    def entries(self, asked: Filter, skip: int, most: int) -> list[tuple[str, Entry]]:
        """Entries with their sites, newest first. Raises `LogError` if one is no longer what was indexed."""
        where, values = asked.where()
        order = "ORDER BY time DESC, site, seq DESC LIMIT ? OFFSET ?"
        query = f"SELECT site, seq, segment, offset FROM entries WHERE {where} {order}"
        found = self._db.execute(query, (*values, most, skip)).fetchall()
        return [(site, self._at(site, *place)) for site, *place in found]

    def entry(self, site: str, seq: int) -> Entry | None:
        """The entry of this number, or None. Raises `LogError` if it is no longer what was indexed."""
        query = "SELECT seq, segment, offset FROM entries WHERE site = ? AND seq = ?"
        found = self._db.execute(query, (site, seq)).fetchone()
        return self._at(site, *found) if found else None

    def _at(self, site: str, seq: int, segment: int, offset: int) -> Entry:
        try:
            return self._logs[site].entry(seq, segment, offset)
        except (OSError, LogError) as error:
            raise LogError(f"the log of {site} cannot be shown: {_told(error)}") from None

    def sites(self) -> list[SiteFacts]:
        """Totals of every log."""
        return [self._site(site, log) for site, log in self._logs.items()]

    def _site(self, site: str, log: Follower) -> SiteFacts:
        query = "SELECT outcome, sum(entries), sum(nbytes), max(last) FROM passed WHERE site = ? GROUP BY outcome"
        found = {outcome: facts for outcome, *facts in self._db.execute(query, (site,))}
        out, taken = found.get(Outcome.SENT, (0, 0, "")), found.get(Outcome.ACCEPTED, (0, 0, ""))
        after = self._db.execute(
            "SELECT after FROM entries WHERE site = ? AND charged ORDER BY seq DESC LIMIT 1", (site,)
        ).fetchone()
        jobs = self._db.execute(
            "SELECT coalesce(sum(entries), 0) FROM passed WHERE site = ? AND event = ?", (site, Event.REFUSAL)
        ).fetchone()
        return SiteFacts(
            site=site,
            first=log.first,
            entries=log.entries - log.first,
            released=out[0],
            bytes_out=out[1],
            received=taken[0],
            bytes_in=taken[1],
            refused=found.get(Outcome.REFUSED, (0,))[0],
            refused_jobs=jobs[0],
            last=max((facts[2] for facts in found.values()), default=None),
            epsilon=after and after[0],
            broken=log.broken,
        )

    def jobs(self, site: str | None, most: int) -> list[JobFacts]:
        """Jobs by site, the latest first."""
        query = """SELECT job, site, sum(entries), sum(iif(outcome = 'sent', entries, 0)),
            sum(iif(outcome = 'sent', nbytes, 0)), sum(iif(outcome = 'refused', entries, 0)), max(last) AS latest
            FROM passed WHERE job != '' AND ? IN ('', site) GROUP BY job, site
            ORDER BY latest DESC, job, site LIMIT ?"""
        return [JobFacts(*row) for row in self._db.execute(query, (site or "", most))]

    def tensors(self, asked: Filter, skip: int, most: int) -> list[TensorFacts]:
        """Transfers by tensor. The filter's site, job and kind apply."""
        query = """SELECT site, direction, peer, name, kind, protection, sum(messages), sum(nbytes) FROM tensors
            WHERE ? IN ('', site) AND ? IN ('', job) AND ? IN ('', kind)
            GROUP BY site, direction, peer, name, kind, protection ORDER BY site, direction DESC, peer, name
            LIMIT ? OFFSET ?"""
        chosen = [str(value or "") for value in (asked.site, asked.job, asked.kind)]
        return [TensorFacts(*row) for row in self._db.execute(query, (*chosen, most, skip))]

    def spent(self, asked: Filter, most: int) -> list[Spent]:
        """Charges by site and job, in their order. Only the filter's site and job apply."""
        query = """SELECT * FROM spent WHERE ? IN ('', site) AND ? IN ('', job) ORDER BY site, after, job LIMIT ?"""
        return [Spent(*row) for row in self._db.execute(query, (asked.site or "", asked.job or "", most))]

    def course(self, site: str) -> list[tuple[int, float, float]]:
        """The site's charges as (entry number, epsilon before, epsilon after), merged into at most `POINTS` steps."""
        stretch = 1 + self._logs[site].entries // POINTS
        query = """SELECT max(seq), min(before), max(after) FROM entries WHERE site = ? AND charged
            GROUP BY seq / ? ORDER BY max(seq)"""
        return self._db.execute(query, (site, stretch)).fetchall()


def _delta(entry: Entry) -> float | None:
    """The delta of an entry's charge, if it names one."""
    delta = (entry.dp_event or {}).get("delta")
    return delta if isinstance(delta, float) else None


def _told(error: Exception) -> str:
    """The error as a text without a path."""
    if isinstance(error, sqlite3.Error):
        return "the index cannot be written, make room where temporary files go"
    return str(error.strerror if isinstance(error, OSError) else error)
