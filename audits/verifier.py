"""Reads audit logs: whether the chain holds, and what crossed the site's border. Memory does not grow with the log."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from audits.entry import Entry, Event, LogLine, Outcome, TensorRecord, parse_line, read_line
from audits.errors import LogError, NewerFormat, OlderFormat
from audits.log import GENESIS
from audits.log_files import LOG_NAME, MAX_LINE, Snapshot, segments
from audits.signed_tree import TREE, expired_leaves
from audits.tree import Frontier


class Basis(StrEnum):
    """What shows that the retention has passed."""

    COSIGNED = "cosigned"
    """Times that other parties have signed."""
    DATE = "date"
    """Today's date, as a person at the site gave it."""
    UNKNOWN = "unknown"
    """A basis that only a newer version knows; to this version it shows nothing."""


@dataclass(frozen=True)
class Expiry:
    """An expiry that the log records: the lines of its first `entries` were deleted after at least `days`."""

    entries: int
    days: int
    basis: Basis
    date: str | None = None
    """The date that a person gave, such as 2032-11-23."""

    def record(self) -> dict[str, Any]:
        """The expiry as plain JSON."""
        return {"entries": self.entries, "days": self.days, "basis": self.basis.value, "date": self.date}

    def __str__(self) -> str:
        basis = f"by the date {self.date} that a person gave" if self.date else "as times show that others signed"
        last = self.entries - 1
        return f"the lines of entries 0 to {last} are past the retention of {self.days} days and are deleted, {basis}"

    @classmethod
    def of(cls, line: LogLine) -> "Expiry | None":
        """Reads an `expired` entry; None if it states no expiry."""
        record: Any = line.expiry
        if record is None:
            return None
        numbers = record.get("entries"), record.get("days")
        if not all(type(number) is int and number > 0 for number in numbers):
            return None
        basis, date = record.get("basis"), record.get("date")
        if not isinstance(basis, str) or not isinstance(date, str | None):
            return None
        return cls(*numbers, Basis(basis) if basis in list(Basis) else Basis.UNKNOWN, date)


@dataclass(frozen=True)
class Verdict:
    """Whether the chain holds, and up to where.

    `entries` counts the valid entries, and `head` is the hash of the last of them; `first_bad` is the position (from 0)
    of the first invalid one, and `reason` says why. `torn_bytes` counts bytes after the last line feed: a crash left
    them of an entry that was never acknowledged, which is no tampering. A chain that was cut at its end still holds:
    keep `head` elsewhere to notice. `newer` is the first entry with members that only a newer version of this software
    knows: chain and tree cover it, and nothing else is claimed.
    """

    entries: int
    head: str
    first_bad: int | None = None
    reason: str | None = None
    torn_bytes: int = 0
    newer: int | None = None

    @property
    def ok(self) -> bool:
        """True if no entry was changed, removed, added or moved."""
        return self.first_bad is None


@dataclass(frozen=True)
class EntryRow:
    """One tensor of one entry, or an entry without tensors (then `tensor` is `None`)."""

    entry: Entry
    tensor: TensorRecord | None


@dataclass(frozen=True)
class TensorTotal:
    """The messages and total bytes of one declared tensor in one direction with one peer."""

    direction: str
    peer: str
    name: str
    messages: int
    nbytes: int


@dataclass(frozen=True)
class Totals:
    """Sums over a log; bytes are those of tensors' values."""

    entries: int
    messages_out: int
    bytes_out: int
    messages_in: int
    bytes_in: int
    refused: int
    tensors: tuple[TensorTotal, ...]


class Walk:
    """Follows the chain in a folder over all segments: iterate to the end, then ask for the verdict.

    The hashes of expired lines stand in for them, if the log itself records the expiry.
    """

    def __init__(self, folder: Path, tree: Frontier | None = None) -> None:
        """`tree`: an empty tree, to which the entries are added. Raises `LogError` if there is no log to read."""
        self._folder = folder
        self._snapshot = Snapshot(folder)
        self.first, self.entries, self.torn_bytes = 0, 0, 0
        self.head, self.bad = GENESIS, ""
        self.tree = Frontier() if tree is None else tree
        self.expiry: Expiry | None = None
        """Of the expiries in the entries so far, the one of the most entries."""
        self.newer: int | None = None
        """The first entry with members that only a newer version of this software knows."""

    def __iter__(self) -> Iterator[LogLine]:
        """The valid entries, in order, up to the first that is invalid; then `bad` says why. Raises `OlderFormat`."""
        try:
            self._begin()
            for raw in self._snapshot.lines():
                if not raw.endswith(b"\n") and len(raw) <= MAX_LINE:
                    self.torn_bytes = len(raw)
                    break
                line = read_line(raw)
                if line.seq != self.entries:
                    raise LogError(f"the line has number {line.seq}, but entry {self.entries} is expected")
                if line.prev_hash != self.head:
                    raise LogError("the entry does not follow the one before it")
                self.tree.append(bytes.fromhex(line.leaf_hash), line.entry)
                self.entries, self.head = self.entries + 1, line.leaf_hash
                if line.newer and self.newer is None:
                    self.newer = line.seq
                if line.event == Event.EXPIRED:
                    self._take_expiry(Expiry.of(line))
                yield line
        except OlderFormat:
            raise OlderFormat(f"entry {self.entries} of the audit log") from None
        except LogError as error:
            self.bad = str(error)
            return
        if self.newer is None and self.first > (self.expiry.entries if self.expiry else 0):
            self.entries, self.bad = (
                0,
                f"entries 0 to {self.first - 1} are missing, and the log does not say they expired",
            )

    def verdict(self) -> Verdict:
        """The verdict on the entries so far."""
        if self.bad:
            return Verdict(self.entries, self.head, first_bad=self.entries, reason=self.bad, newer=self.newer)
        return Verdict(self.entries, self.head, torn_bytes=self.torn_bytes, newer=self.newer)

    @property
    def running(self) -> frozenset[str]:
        """The jobs on which processes work now."""
        return self._snapshot.running

    def first_entry(self) -> int:
        """The number of the oldest entry in the files, as the entry states it; 0 if it cannot be read."""
        try:
            return self._snapshot.first() or 0
        except LogError:
            return 0  # iterating says what is wrong with it

    def _take_expiry(self, expiry: Expiry | None) -> None:
        if expiry and (self.expiry is None or expiry.entries > self.expiry.entries):
            self.expiry = expiry

    def _begin(self) -> None:
        first = self._snapshot.first()
        if first and (self._folder / TREE).is_file():
            for leaf in expired_leaves(self._folder, first):
                self.tree.append(leaf)
                self.head = leaf.hex()
            self.first = self.entries = first


def verify(folder: Path) -> Verdict:
    """Follows the chain in `folder` from its first entry. Raises `LogError` if there is no log that can be read."""
    walk = Walk(folder)
    for _ in walk:
        pass
    return walk.verdict()


def read(folder: Path) -> Iterator[Entry]:
    """The entries in order, without a torn line at the end.

    Raises `LogError` with the position of the first line that is not an entry, or if there is no log to read.
    """
    snapshot = Snapshot(folder)
    for position, line in enumerate(snapshot.lines(), snapshot.first() or 0):
        if line.endswith(b"\n") or len(line) > MAX_LINE:
            try:
                yield Entry.from_record(parse_line(line))
            except (NewerFormat, OlderFormat) as error:
                raise type(error)(f"entry {position}") from None
            except LogError as error:
                raise LogError(f"entry {position}: {error}; have the log verified") from None


def describe(folder: Path) -> Iterator[EntryRow]:
    """The logged messages, tensor by tensor, in order. Raises `LogError` as `read` does."""
    for entry in read(folder):
        for tensor in entry.tensors or (None,):
            yield EntryRow(entry, tensor)


def totals(folder: Path) -> Totals:
    """Messages and bytes that passed, overall and per tensor. Raises `LogError` as `read` does."""
    entries, volume = Counter[Outcome | None](), Counter[Outcome | None]()
    messages, nbytes = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for entry in read(folder):
        entries[entry.outcome] += 1
        volume[entry.outcome] += entry.nbytes
        if entry.outcome is not Outcome.REFUSED:
            for tensor in entry.tensors:
                key = (str(entry.direction), str(entry.peer), tensor.name)
                messages[key] += 1
                nbytes[key] += tensor.nbytes
    return Totals(
        entries=entries.total(),
        messages_out=entries[Outcome.SENT],
        bytes_out=volume[Outcome.SENT],
        messages_in=entries[Outcome.ACCEPTED],
        bytes_in=volume[Outcome.ACCEPTED],
        refused=entries[Outcome.REFUSED],
        tensors=tuple(TensorTotal(*key, messages[key], nbytes[key]) for key in sorted(messages)),
    )


def find_logs(folder: Path) -> dict[str, Path]:
    """The folders that hold a log, by site: `folder` itself, or `sites/*/audit` of a run's output.

    Raises `LogError` if there is none.
    """
    if segments(folder):
        home = folder.resolve()
        return {(home.parent if home.name == "audit" else home).name: folder}
    logs = {place.parent.name: place for place in sorted(folder.glob("sites/*/audit")) if segments(place)}
    if not logs:
        raise LogError(f"there is no audit log here: give a run's folder, or a folder that holds {LOG_NAME}")
    return logs
