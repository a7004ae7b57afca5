"""Where in the logs each entry stands, so that a page of entries is found without reading the rest.

The index lies in a temporary file of SQLite's own, which nobody else can open and which goes with the process; what a
page shows is read from the logs again. Memory does not grow with the logs.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from audits.errors import LogError
from audits.exchange import Kind
from audits.log import GENESIS, LOG_NAME, MAX_LINE, Entry, Outcome, parse_line

POINTS = 240  # steps of a course that a page draws at most

_SCHEMA = """
CREATE TABLE entries (site TEXT, seq INTEGER, place INTEGER, time TEXT, job TEXT, event TEXT, outcome TEXT,
    kinds INTEGER, charged INTEGER, before REAL, after REAL, PRIMARY KEY (site, seq)) WITHOUT ROWID;
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
_ENTRY = "INSERT INTO entries VALUES (?,?,?,?,?,?,?,?,?,?,?)"
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
    """Which entries are asked for; `None` asks for all. `kind` is that of a tensor, `charged` of the site's ledger."""

    site: str | None = None
    job: str | None = None
    event: str | None = None
    outcome: str | None = None
    kind: Kind | None = None
    charged: bool = False

    def where(self) -> tuple[str, list[str | int]]:
        """The condition in SQL, and its parameters."""
        equal = {"site": self.site, "job": self.job, "event": self.event, "outcome": self.outcome}
        asked = {name: value for name, value in equal.items() if value is not None}
        terms, values = [f"{name} = ?" for name in asked], list[str | int](asked.values())
        if self.kind:
            terms, values = [*terms, "kinds & ?"], [*values, _BITS[self.kind]]
        if self.charged:
            terms.append("charged")
        return " AND ".join(terms) or "1", values


@dataclass(frozen=True)
class SiteFacts:
    """One log in sum; bytes are those of tensors' values. `broken` says what stopped the index, if anything did."""

    site: str
    entries: int
    released: int
    bytes_out: int
    received: int
    bytes_in: int
    refused: int
    last: str | None
    epsilon: float | None
    broken: str | None


@dataclass(frozen=True)
class JobFacts:
    """One job at one site in sum; no `job` where an entry belongs to none."""

    job: str
    site: str
    entries: int
    released: int
    bytes_out: int
    refused: int
    last: str


@dataclass(frozen=True)
class TensorFacts:
    """One tensor, one direction, one peer, at one site, as it passed: refused messages are not counted."""

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
    """What one job was charged at one site: epsilon of the cohort's worst patient over all jobs, in nats."""

    site: str
    job: str
    delta: float | None
    charges: int
    before: float
    after: float


@dataclass
class _Place:
    """How far a log is indexed."""

    folder: Path
    inode: int = 0
    seen: tuple[int, int] = (0, 0)
    size: int = 0
    entries: int = 0
    head: str = GENESIS
    broken: str | None = None

    def rewritten(self, found: os.stat_result) -> bool:
        """Whether the file was written to since it was `seen` (size, time), and did not grow."""
        return found.st_size == self.seen[0] and found.st_mtime_ns != self.seen[1]


class Index:
    """Finds entries of these logs (site: folder). One thread at a time may use it."""

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._db = sqlite3.connect("", check_same_thread=False)
        self._db.executescript(_SCHEMA)
        self._places = {site: _Place(folder) for site, folder in logs.items()}

    def close(self) -> None:
        """Gives the temporary file back."""
        self._db.close()

    @property
    def folders(self) -> dict[str, Path]:
        """The logs' folders, by site."""
        return {site: place.folder for site, place in self._places.items()}

    def refresh(self) -> None:
        """Takes in what the logs have grown by; all of a log that is no longer the one that was read.

        Raises `LogError` if a log cannot be read.
        """
        for site, place in self._places.items():
            try:
                found = os.stat(place.folder / LOG_NAME)
                if found.st_ino != place.inode or found.st_size < place.size or place.rewritten(found):
                    place = self._forgotten(site)
                if found.st_size > place.size and not place.broken:
                    self._grow(site, place)
                place.inode, place.seen = found.st_ino, (found.st_size, found.st_mtime_ns)
            except OSError as error:
                raise LogError(f"the audit log of {site} cannot be read ({error.strerror})") from None
            except sqlite3.Error:
                place.inode = 0  # what was half taken in is forgotten the next time
                raise LogError("the index cannot be written: make room where temporary files go") from None

    def _forgotten(self, site: str) -> _Place:
        for table in ("entries", "passed", "tensors", "spent"):
            self._db.execute(f"DELETE FROM {table} WHERE site = ?", (site,))
        self._places[site] = _Place(self._places[site].folder)
        return self._places[site]

    def _grow(self, site: str, place: _Place) -> None:
        with self._db:
            for begin, entry in self._fitting(place, _lines(place.folder / LOG_NAME, place.size)):
                self._insert(site, begin, entry)

    def _fitting(self, place: _Place, lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Entry]]:
        """Entries with where they stand, as long as each follows the one before."""
        for begin, line in lines:
            if not line.endswith(b"\n") and len(line) <= MAX_LINE:
                return
            try:
                record = parse_line(line)
                if record["seq"] != place.entries or record["prev_hash"] != place.head:
                    raise LogError("it does not follow the entry before it")
                entry = Entry.from_record(record)
            except LogError as error:
                place.broken = f"entry {place.entries}: {error}"
                return
            place.size, place.entries, place.head = begin + len(line), place.entries + 1, entry.leaf_hash
            yield begin, entry

    def _insert(self, site: str, begin: int, entry: Entry) -> None:
        job, outcome = entry.job or "", str(entry.outcome or "")
        kinds = sum({_BITS[tensor.kind] for tensor in entry.tensors})
        epsilons, event = (entry.epsilon_before, entry.epsilon_after), str(entry.event)
        charged = entry.epsilon_after is not None
        row = site, entry.seq, begin, entry.time, job, event, outcome, kinds, charged, *epsilons
        self._db.execute(_ENTRY, row)
        self._db.execute(_PASSED, (site, job, event, outcome, entry.nbytes, entry.time))
        if charged:
            self._db.execute(_SPENT, (site, job, (entry.dp_event or {}).get("delta"), *epsilons))
        if entry.outcome in (Outcome.SENT, Outcome.ACCEPTED):
            way = site, job, str(entry.direction), str(entry.peer)
            rows = ((*way, one.name, str(one.kind), str(one.protection), one.nbytes) for one in entry.tensors)
            self._db.executemany(_TENSOR, rows)

    def count(self, asked: Filter) -> int:
        """How many entries are as asked for."""
        where, values = asked.where()
        return int(self._db.execute(f"SELECT count(*) FROM entries WHERE {where}", values).fetchone()[0])

    def entries(self, asked: Filter, skip: int, most: int) -> list[tuple[str, Entry]]:
        """Entries with their sites, newest first. Raises `LogError` if one is no longer what was indexed."""
        where, values = asked.where()
        query = (
            f"SELECT site, seq, place FROM entries WHERE {where} ORDER BY time DESC, site, seq DESC LIMIT ? OFFSET ?"
        )
        return [(site, self._at(site, *at)) for site, *at in self._db.execute(query, (*values, most, skip)).fetchall()]

    def entry(self, site: str, seq: int) -> Entry | None:
        """One entry, if there is one. Raises `LogError` if it is no longer what was indexed."""
        found = self._db.execute("SELECT seq, place FROM entries WHERE site = ? AND seq = ?", (site, seq)).fetchone()
        return self._at(site, *found) if found else None

    def _at(self, site: str, seq: int, place: int) -> Entry:
        _, line = next(_lines(self._places[site].folder / LOG_NAME, place), (0, b""))
        try:
            entry = Entry.from_record(parse_line(line))
        except LogError:
            entry = None
        if entry is None or entry.seq != seq:
            raise LogError(f"entry {seq} of {site} is no longer what it was when it was read: have the log verified")
        return entry

    def sites(self) -> list[SiteFacts]:
        """Every log in sum."""
        return [self._site(site, place) for site, place in self._places.items()]

    def _site(self, site: str, place: _Place) -> SiteFacts:
        query = "SELECT outcome, sum(entries), sum(nbytes), max(last) FROM passed WHERE site = ? GROUP BY outcome"
        found = {outcome: facts for outcome, *facts in self._db.execute(query, (site,))}
        out, taken = found.get(Outcome.SENT, (0, 0, "")), found.get(Outcome.ACCEPTED, (0, 0, ""))
        after = self._db.execute(
            "SELECT after FROM entries WHERE site = ? AND charged ORDER BY seq DESC LIMIT 1", (site,)
        ).fetchone()
        return SiteFacts(
            site=site,
            entries=place.entries,
            released=out[0],
            bytes_out=out[1],
            received=taken[0],
            bytes_in=taken[1],
            refused=found.get(Outcome.REFUSED, (0,))[0],
            last=max((facts[2] for facts in found.values()), default=None),
            epsilon=after and after[0],
            broken=place.broken,
        )

    def jobs(self, site: str | None, most: int) -> list[JobFacts]:
        """Jobs by site, the latest first."""
        query = """SELECT job, site, sum(entries), sum(iif(outcome = 'sent', entries, 0)),
            sum(iif(outcome = 'sent', nbytes, 0)), sum(iif(outcome = 'refused', entries, 0)), max(last) AS latest
            FROM passed WHERE job != '' AND ? IN ('', site) GROUP BY job, site
            ORDER BY latest DESC, job, site LIMIT ?"""
        return [JobFacts(*row) for row in self._db.execute(query, (site or "", most))]

    def tensors(self, asked: Filter, skip: int, most: int) -> list[TensorFacts]:
        """What passed, by tensor; of the filter, site, job and kind count."""
        query = """SELECT site, direction, peer, name, kind, protection, sum(messages), sum(nbytes) FROM tensors
            WHERE ? IN ('', site) AND ? IN ('', job) AND ? IN ('', kind)
            GROUP BY site, direction, peer, name, kind, protection ORDER BY site, direction DESC, peer, name
            LIMIT ? OFFSET ?"""
        chosen = [str(value or "") for value in (asked.site, asked.job, asked.kind)]
        return [TensorFacts(*row) for row in self._db.execute(query, (*chosen, most, skip))]

    def spent(self, asked: Filter, most: int) -> list[Spent]:
        """Charges by site and job, in their order; of the filter, site and job count."""
        query = """SELECT * FROM spent WHERE ? IN ('', site) AND ? IN ('', job) ORDER BY site, after, job LIMIT ?"""
        return [Spent(*row) for row in self._db.execute(query, (asked.site or "", asked.job or "", most))]

    def course(self, site: str) -> list[tuple[int, float, float]]:
        """Charges (entry number, epsilon before and after), those in each of at most `POINTS` stretches as one."""
        stretch = 1 + self._places[site].entries // POINTS
        query = """SELECT max(seq), min(before), max(after) FROM entries WHERE site = ? AND charged
            GROUP BY seq / ? ORDER BY max(seq)"""
        return self._db.execute(query, (site, stretch)).fetchall()


def _lines(path: Path, begin: int) -> Iterator[tuple[int, bytes]]:
    """Lines with where they begin, from an offset on, none longer than one byte more than an entry may take."""
    with open(path, "rb") as log:
        log.seek(begin)
        while line := log.readline(MAX_LINE + 1):
            yield begin, line
            begin += len(line)
