"""The audit log: one hash-chained line of canonical JSON per event, on disk before anything leaves.

An entry's `leaf_hash` is SHA-256 over a zero byte and the canonical entry without its `leaf_hash`; its `prev_hash` is
the `leaf_hash` of the entry before, 64 zeros for the first. Whatever follows the last line feed is what a crash left of
an entry that was never acknowledged: the next append cuts it off and says so in an entry of its own.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from audits.errors import LogError
from audits.exchange import Kind, Protection, canonical

LOG_NAME = "log.jsonl"
GENESIS = "0" * 64
MAX_LINE = 1 << 24  # bytes; bounds the memory that reading a damaged log can take


class Event(StrEnum):
    """The closed vocabulary of what is logged."""

    OPEN = "open"
    RECEIVE = "receive"
    RELEASE = "release"
    RECOVERED = "recovered"
    CLOSE = "close"
    WIRE = "wire"


class Outcome(StrEnum):
    """How a release or a receipt ended."""

    SENT = "sent"
    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True)
class TensorRecord:
    """One tensor of an entry. One that was refused or is shared has no digest; of a refused one no byte left either."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    sha256: str | None
    kind: Kind
    protection: Protection


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One event. Every field but `wire` is in every line, `null` where it does not apply.

    `time` is UTC, `monotonic` nanoseconds of the machine's steady clock, `peer` who receives or sent the message,
    `nbytes` the sum over `tensors`; `policy`, `exchange`, `code_digest` and `model_digest` are SHA-256 in hex.
    Where values are shared (`masked`, peer `sites`), `nbytes` counts values, not shares, and `reason` says among whom.
    """

    seq: int
    prev_hash: str
    leaf_hash: str
    time: str
    monotonic: int
    site: str
    event: Event
    actor: str | None = None
    job: str | None = None
    method: str | None = None
    round: int | None = None
    task: str | None = None
    direction: str | None = None
    peer: str | None = None
    tensors: tuple[TensorRecord, ...] = ()
    nbytes: int = 0
    policy: str | None = None
    exchange: str | None = None
    code_version: str | None = None
    code_digest: str | None = None
    model_digest: str | None = None
    dp_event: Mapping[str, Any] | None = None
    epsilon_before: float | None = None
    epsilon_after: float | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    wire: Mapping[str, Any] | None = None

    def record(self) -> dict[str, Any]:
        """The entry as the JSON object that its line holds."""
        found = vars(self) | {"tensors": [vars(tensor) for tensor in self.tensors]}
        if self.wire is None:
            del found["wire"]  # logs from before this field have lines without it, and stay as they are
        return found

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Entry":
        """The entry that `record` describes. Raises `LogError` if it is no record of this format."""
        try:
            return cls(
                **{
                    **record,
                    "event": Event(record["event"]),
                    "outcome": record["outcome"] and Outcome(record["outcome"]),
                    "tensors": tuple(_tensor(tensor) for tensor in record["tensors"]),
                }
            )
        except (KeyError, TypeError, ValueError):
            raise LogError("the entry does not have the fields of this version's format") from None


_HASHED = frozenset(field.name for field in fields(Entry)) - {"leaf_hash", "wire"}


def leaf_hash(record: Mapping[str, Any]) -> str:
    """The hash that an entry's record must carry as its `leaf_hash`, in hex."""
    body = canonical({name: value for name, value in record.items() if name != "leaf_hash"})
    return hashlib.sha256(b"\0" + body).hexdigest()


def parse_line(line: bytes) -> dict[str, Any]:
    """The record in a line. Raises `LogError` unless it is canonical, complete and hashes to its `leaf_hash`."""
    try:
        record: dict[str, Any] = json.loads(line)
        leaf = record.pop("leaf_hash")
        body, member = canonical(record), canonical({"leaf_hash": leaf})[1:-1] + b","
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise LogError("the line is no entry") from None
    # Taking the hash out of the line must leave the body: one encoding serves both checks, and fixes every byte.
    if record.keys() - {"wire"} != _HASHED or type(record["seq"]) is not int or line.replace(member, b"", 1) != body + b"\n":
        raise LogError("the line is not written as an entry of this version is")
    if hashlib.sha256(b"\0" + body).hexdigest() != leaf:
        raise LogError("the entry does not match its hash")
    record["leaf_hash"] = leaf
    return record


class AuditLog:
    """Appends to the chain in `folder`; safe for several threads and processes, each process with its own object.

    Raises `LogError` if the folder or the file cannot be created.
    """

    def __init__(self, folder: Path, site: str) -> None:
        self.site = site
        self._path = folder / LOG_NAME
        self._head = _Head()
        self._thread = threading.Lock()
        with _reported("opened"):
            made = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self._closer = weakref.finalize(self, os.close, self._file)
            for parent in {folder, *(path.parent for path in made)}:
                _sync_folder(parent)

    def close(self) -> None:
        """Gives the file back; every entry is on disk already."""
        self._closer()

    def append(self, event: Event, **said: Any) -> Entry:
        """Adds an entry with these fields and returns once it is on disk.

        Raises `LogError` if it cannot be written, in which case it counts as not written; `TypeError` or `ValueError`
        for a field, event or value that the format does not have.
        """
        with self._thread, _reported("written"), self._locked():
            head, torn = self._refreshed()
            if torn:
                os.ftruncate(self._file, head.size)
                reason = f"the last {torn} bytes, left by a crash, were cut off"
                head = self._write(head, self._entry(head, Event.RECOVERED, {"reason": reason}))
            entry = self._entry(head, event, said)
            self._write(head, entry)
            return entry

    def _entry(self, head: "_Head", event: Event, said: Mapping[str, Any]) -> Entry:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        draft = Entry(
            seq=head.entries,
            prev_hash=head.leaf,
            leaf_hash="",
            time=now,
            monotonic=time.monotonic_ns(),
            site=self.site,
            event=Event(event),
            **said,
        )
        return replace(draft, leaf_hash=leaf_hash(draft.record()))

    def _write(self, head: "_Head", entry: Entry) -> "_Head":
        line = canonical(entry.record()) + b"\n"
        if len(line) > MAX_LINE:
            raise LogError(f"the entry would take {len(line)} bytes, more than the {MAX_LINE} that a line may have")
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):  # else the next append finds the torn line and cuts it off
                os.ftruncate(self._file, head.size)
            raise
        self._head = _Head(head.size + len(line), head.entries + 1, entry.leaf_hash)
        return self._head

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._closer.alive:
            raise LogError("the audit log was closed: open it again before the site goes on")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _refreshed(self) -> tuple["_Head", int]:
        """The head of the chain, and how many bytes of a torn line follow it."""
        found = os.fstat(self._file)
        if not os.path.samestat(found, os.stat(self._path)) or found.st_size < self._head.size:
            raise LogError("the audit log was replaced or shortened while in use: have it verified before going on")
        if found.st_size > self._head.size:
            line, end = _last_line(self._file, found.st_size)
            if line:
                self._head = self._head_after(line, end)
        return self._head, found.st_size - self._head.size

    def _head_after(self, line: bytes, end: int) -> "_Head":
        try:
            record = parse_line(line)
        except LogError as error:
            raise LogError(f"the audit log's last entry is damaged ({error}): have the log verified") from None
        if record["site"] != self.site:
            raise LogError("the audit log belongs to another site: give each site a folder of its own")
        return _Head(end, record["seq"] + 1, record["leaf_hash"])


@dataclass(frozen=True)
class _Head:
    """Where the chain ends: its size in bytes, its number of entries, its last hash."""

    size: int = 0
    entries: int = 0
    leaf: str = GENESIS


def _last_line(file: int, size: int) -> tuple[bytes, int]:
    """The last complete line of a file of that size, and the offset of its end; empty if there is none."""
    span = 1 << 16
    while True:
        begin = max(0, size - span)
        block = os.pread(file, size - begin, begin)
        end = block.rfind(b"\n") + 1
        line = block.rfind(b"\n", 0, max(end - 1, 0)) + 1
        if line or begin == 0:
            return block[line:end], begin + end
        if span > 2 * MAX_LINE:
            raise LogError("the audit log ends in a line longer than any entry: have it verified")
        span *= 2


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogError(f"the audit log cannot be {what} ({error.strerror}): nothing leaves until it can") from None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tensor(record: Mapping[str, Any]) -> TensorRecord:
    typed = {"kind": Kind(record["kind"]), "protection": Protection(record["protection"])}
    return TensorRecord(**{**record, "shape": tuple(record["shape"]), **typed})
