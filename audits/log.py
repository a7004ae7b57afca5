"""The audit log: one hash-chained line of canonical JSON per event, on disk before anything leaves.

`audits.entry.Entry` is the grammar of a line. An entry's `leaf_hash` is SHA-256 over a zero byte and the canonical
entry without its `leaf_hash`; its `prev_hash` is the `leaf_hash` of the entry before, 64 zeros for the first. Bytes
after the last line feed are the torn line of an entry that a crash interrupted before it was acknowledged: the next
append cuts them off and adds an entry about it.
"""

import contextlib
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from audits.announcements import announce
from audits.checkpoint import Checkpoint, time_text
from audits.entry import Entry, Event, parse_any, parse_line, read_line
from audits.errors import LogError, NewerFormat, OlderFormat
from audits.exchange import canonical
from audits.log_files import (
    LOG_NAME,
    MAX_LINE,
    closed_segments,
    first_entry,
    last_line,
    lines_from,
    lines_of,
    segment_name,
    sync_folder,
)
from audits.signed_note import AuditKey, Note, VerifierKey
from audits.signed_tree import Anchor, Link, signed_size
from audits.tiles import WIDTH

# Group commit: of several threads that append at once, one writes the entries of all, and they share one fsync.
#
# A thread that finds no other writing writes. Threads that come meanwhile wait. After the write, the first of them
# writes for all that wait by then, but first leaves the threads of the last group a moment to return with their next
# entries. So a single thread never waits for others, and many threads share few fsyncs.

_PATIENCE = 0.005
"""The most seconds that a group waits for as many requests as the last one had; the last write time if that is less."""
Draft = tuple[Event, Mapping[str, Any]]
"""An event, and the fields that its caller gives."""


class Request:
    """The entries that one caller appends together: all of them are written, or none."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = drafts
        self.entries: list[Entry] = []
        """The entries on disk, once the request is settled without an error."""
        self.error: Exception | None = None
        self.settled = False
        self.writes = False
        """Whether this caller's thread has to write next."""
        self.wake = threading.Lock()
        self.wake.acquire()

    def settle(self, entries: list[Entry]) -> None:
        """Marks the entries as written."""
        self.entries, self.settled = entries, True

    def fail(self, error: Exception) -> None:
        """Marks the request as failed: none of its entries is written."""
        self.error, self.settled = error, True


class GroupCommit:
    """Lets one thread at a time write the requests of all threads, group by group."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: list[Request] = []
        self._busy = False
        self._last, self._took = 1, 0.0
        """Requests of the last group, and the seconds that it took to write them."""
        self._complete = threading.Event()

    def commit(self, request: Request, write: Callable[[Sequence[Request]], None]) -> list[Entry]:
        """The entries of the request, once they are on disk. Raises the error that kept them from it.

        `write` settles each request of a group; those that it leaves open when it raises fail with that error.
        """
        try:
            with self._guard:
                self._waiting.append(request)
                request.writes, self._busy = not self._busy, True
                if len(self._waiting) >= self._last:
                    self._complete.set()
            if not request.writes:
                request.wake.acquire()
            if not request.settled:
                self._write_group(write)
        except BaseException:  # such as Ctrl-C: nobody may wait for this thread any more
            self._leave(request)
            raise
        if request.error:
            raise request.error
        return request.entries

    def _write_group(self, write: Callable[[Sequence[Request]], None]) -> None:
        group: list[Request] = []
        error: Exception = LogError("the audit log was interrupted while it was written: append again")
        try:
            self._gather()
            with self._guard:
                group, self._waiting = self._waiting, []
            began = time.monotonic()
            write(group)
            self._last, self._took = len(group), time.monotonic() - began
        except Exception as caught:
            error = caught
        finally:
            for request in group:
                if not request.settled:
                    request.fail(error)
                request.wake.release()
            with self._guard:
                self._pass_on()

    def _gather(self) -> None:
        """Waits for as many requests as the last group had, but not for long."""
        with self._guard:
            if len(self._waiting) >= self._last:
                return
            self._complete.clear()
        if not self._complete.wait(min(self._took, _PATIENCE)):
            self._last = 1

    def _pass_on(self) -> None:
        """Lets the first waiting thread write next."""
        self._busy = bool(self._waiting)
        if self._busy:
            self._waiting[0].writes = True
            self._waiting[0].wake.release()

    def _leave(self, request: Request) -> None:
        with self._guard:
            if request in self._waiting:
                self._waiting.remove(request)
                if request.writes:
                    self._pass_on()


GENESIS = "0" * 64
SEGMENT_BYTES = 1 << 26
"""A segment of at least this size is closed, and the next entry begins another."""


class AuditLog:
    """Appends to the chain in `folder`; safe for several threads and processes, each process with its own object.

    With a key it signs checkpoints. Raises `LogError` if the folder or the file cannot be created.
    """

    def __init__(
        self, folder: Path, site: str, key: AuditKey | None = None, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.site, self.folder = site, folder
        self._path, self._limit = folder / LOG_NAME, segment_bytes
        self._compared = False  # with the last checkpoint
        # Where a checkpoint was last signed here, and one published: entries, inode and offset.
        self._signed = self._published = (0, 0, 0)
        self._thread = threading.Lock()
        self._group = GroupCommit()
        with _log_errors("opened"):
            new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            self._open()
            for parent in {folder, *(path.parent for path in new_folders)}:
                sync_folder(parent)
            self._anchor = Anchor(folder, key) if key else None

    def close(self) -> None:
        """Signs the entries that are not signed yet, if the log has a key, and closes the files."""
        if self._closer.alive and self._anchor:
            try:
                self.publish()
            finally:
                self._closer()
                self._anchor.close()
        self._closer()

    @property
    def key(self) -> VerifierKey:
        """The key that signs this log. Raises `LogError` without one."""
        return self._required_anchor.key.public

    def checkpoint(self) -> Note:
        """Signs a checkpoint of the current log and writes it to disk. Raises `LogError` without a key, or if it fails.

        The public form follows once 256 entries are new, and when the log is closed.
        """
        return self._sign(lag=WIDTH)

    def publish(self, anew: bool = False) -> Note:
        """Like `checkpoint`, and also updates the public form. `anew`: rebuilds all of it from the lines."""
        return self._sign(lag=1, anew=anew)

    def _sign(self, lag: int, anew: bool = False) -> Note:
        with self._thread, _log_errors("signed"), self._locked():
            head, _ = self._refresh()
            leaf = bytes.fromhex(head.leaf)
            note = self._required_anchor.sign(head.entries, leaf, lambda begin: self._links(begin, head.entries))
            self._signed = head.entries, os.fstat(self._file).st_ino, head.size
            if self._required_anchor.publish(note, self._lines, lag, anew):
                self._published = self._signed
            return note

    def proof(self, old: int, note: Note) -> list[bytes]:
        """The proof that a signed checkpoint continues the log of `old` entries."""
        with self._thread, _log_errors("read"):
            return self._required_anchor.proof(old, Checkpoint.parse(note.text).size)

    def contradicts(self, note: Note) -> bool:
        """Whether a checkpoint that this log's key has signed covers other entries than those signed here."""
        with self._thread, _log_errors("read"):
            last = self._required_anchor.last()
            return self._required_anchor.contradicts(Checkpoint.parse(note.text), last.size if last else 0)

    def cosigned(self, notes: Iterable[Note], keys: Iterable[VerifierKey]) -> int:
        """Stores cosignatures of this log's checkpoints by these keys; returns how many were new. Raises `LogError`."""
        with self._thread, _log_errors("written"), self._locked():
            return self._required_anchor.cosigned(notes, keys)

    def keep_hashes(self) -> None:
        """Returns once the leaf hashes of all signed entries are on disk, in a file of their own."""
        with self._thread, _log_errors("written"):
            self._required_anchor.sync()

    def drop_expired(self) -> None:
        """Removes from the public form the bundles of lines that the log no longer has. Raises `LogError`."""
        with self._thread, _log_errors("written"), self._locked():
            self._required_anchor.drop_expired()

    def append(self, event: Event, **fields: Any) -> Entry:
        """Adds an entry with these fields and returns once it is on disk.

        Raises `LogError` if it cannot be written, in which case it counts as not written; `TypeError` or `ValueError`
        for a field, event or value that the format does not have.
        """
        return self.append_all([(event, fields)])[0]

    def append_all(self, drafts: Sequence[Draft]) -> list[Entry]:
        """Adds several entries, in order, at the price of one fsync, and returns once all are on disk.

        Either all are written or none. Raises as `append` does.
        """
        if not drafts:
            return []
        entries = self._group.commit(Request(drafts), self._append_group)
        for entry in entries:
            announce(entry)
        return entries

    def _append_group(self, group: Sequence[Request]) -> None:
        """Writes the entries of all requests with one fsync, or one for each segment that they fill."""
        with self._thread, _log_errors("written"), self._locked():
            head, torn = self._refresh()
            block = _Block(head)
            if torn:
                os.ftruncate(self._file, head.size)
                reason = f"the last {torn} bytes, left by a crash, were cut off"
                block.add(self._encode(head, (Event.RECOVERED, {"reason": reason})))
            for request in group:
                if block.head.size >= self._limit:
                    self._write(block)
                    block = _Block(self._roll())
                try:
                    block.take(request, self._encode)
                except (TypeError, ValueError, RecursionError, LogError) as error:
                    request.fail(error)
            self._write(block)

    def _encode(self, head: "_Head", draft: Draft) -> tuple[Entry, bytes]:
        """The next entry, and its line. It is encoded only once, since encoding is most of an entry's cost."""
        unhashed = self._entry(head, *draft)
        before, _, after = canonical(unhashed.record()).partition(b'"leaf_hash":"",')
        leaf = sha256(b"\0" + before + after).hexdigest()
        line = b'%s"leaf_hash":"%s",%s\n' % (before, leaf.encode(), after)
        if len(line) > MAX_LINE:
            raise LogError(f"the entry would take {len(line)} bytes, more than the {MAX_LINE} that a line may have")
        _check_readable(line)
        return replace(unhashed, leaf_hash=leaf), line

    def _entry(self, head: "_Head", event: Event, fields: Mapping[str, Any]) -> Entry:
        now = time_text(datetime.now(UTC))
        return Entry(
            seq=head.entries,
            prev_hash=head.leaf,
            leaf_hash="",
            time=now,
            monotonic=time.monotonic_ns(),
            site=self.site,
            event=Event(event),
            **fields,
        )

    def _write(self, block: "_Block") -> None:
        """Writes a block, returns once it is on disk, and settles its requests."""
        if not block.lines:
            return
        try:
            rest = memoryview(block.lines)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):  # else the next append finds the torn line and cuts it off
                os.ftruncate(self._file, block.begin)
            raise
        self._head = block.head
        block.settle()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._closer.alive:
            raise LogError("the audit log was closed: open it again before the site continues")
        while True:
            file = self._file
            fcntl.flock(file, fcntl.LOCK_EX)
            if not self._was_rolled():
                break
            self._reopen()  # gives the lock back as well
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._closer = weakref.finalize(self, os.close, self._file)
        self._head = _Head()

    def _reopen(self) -> None:
        """Opens the file that now has the log's name, and releases the lock of the previous file."""
        before = self._closer
        self._open()
        before()

    def _was_rolled(self) -> bool:
        """Whether the file has become a closed segment, here or in another process."""
        status = os.fstat(self._file)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(status, os.stat(self._path)):
                return False
        return any(os.path.samestat(status, path.stat()) for path in closed_segments(self.folder).values())

    def _roll(self) -> "_Head":
        """Closes the segment and begins another. The log on disk is complete whenever a crash comes."""
        os.rename(self._path, self.folder / segment_name(first_entry(self._path)))
        before = self._closer
        self._open()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        before()
        sync_folder(self.folder)
        return self._refresh()[0]

    def _refresh(self) -> tuple["_Head", int]:
        """The head of the chain, and the number of bytes of a torn line after it."""
        status = os.fstat(self._file)
        if not os.path.samestat(status, os.stat(self._path)) or status.st_size < self._head.size:
            raise LogError("the audit log was replaced or shortened while in use: have it verified before you continue")
        if status.st_size > self._head.size:
            line, end = last_line(self._file, status.st_size)
            if line:
                self._head = self._head_after(line, end)
        if not self._head.entries:
            self._head = self._head_before()
        if not self._compared and signed_size(self.folder) > self._head.entries:
            raise LogError("the audit log ends before its last signed checkpoint, so it was shortened: verify it")
        self._compared = True
        return self._head, status.st_size - self._head.size

    def _head_before(self) -> "_Head":
        """The head of the chain at the end of the last closed segment."""
        for path in reversed(closed_segments(self.folder).values()):
            with open(path, "rb") as file:
                line, _ = last_line(file.fileno(), os.fstat(file.fileno()).st_size)
            return self._head_after(line, 0)
        return _Head()

    def _links(self, begin: int, end: int) -> Iterator[Link]:
        """The previous hash and leaf hash of the entries `begin` to `end` - 1."""
        if begin == end:
            return
        for line in islice(self._lines(begin), end - begin):
            record, _ = parse_any(line)
            yield bytes.fromhex(record["prev_hash"]), bytes.fromhex(record["leaf_hash"])

    def _lines(self, begin: int) -> Iterator[bytes]:
        """The log's lines from entry `begin` on."""
        for entries, file, offset in (self._signed, self._published):
            if (entries, file) == (begin, os.fstat(self._file).st_ino):
                return lines_of(self._path, offset=offset)
        return lines_from(self.folder, begin)

    @property
    def _required_anchor(self) -> Anchor:
        if self._anchor is None:
            raise LogError("the audit log was opened without a key, and cannot be signed")
        return self._anchor

    def _head_after(self, line: bytes, end: int) -> "_Head":
        try:
            record = parse_line(line)
        except (NewerFormat, OlderFormat) as error:
            raise type(error)("the audit log's last entry") from None
        except LogError as error:
            raise LogError(f"the audit log's last entry is damaged ({error}): have the log verified") from None
        if record["site"] != self.site:
            raise LogError("the audit log belongs to another site: give each site a folder of its own")
        return _Head(end, record["seq"] + 1, record["leaf_hash"])


@dataclass(frozen=True)
class _Head:
    """The end of the chain: its file's size in bytes, its number of entries, its last hash."""

    size: int = 0
    entries: int = 0
    leaf: str = GENESIS


class _Block:
    """Lines that are written and synced together."""

    def __init__(self, head: _Head) -> None:
        self.head, self.begin = head, head.size
        """`head`: the end of the chain once the lines are written."""
        self.lines = bytearray()
        self._entries: list[tuple[Request, list[Entry]]] = []

    def take(self, request: Request, make: Callable[[_Head, Draft], tuple[Entry, bytes]]) -> None:
        """Adds the entries of a request. Raises what `make` raises, and then adds none."""
        head, size, entries = self.head, len(self.lines), []
        try:
            for draft in request.drafts:
                entries.append(self.add(make(self.head, draft)))
        except BaseException:
            self.head = head
            del self.lines[size:]
            raise
        self._entries.append((request, entries))

    def add(self, entry_and_line: tuple[Entry, bytes]) -> Entry:
        """Adds an entry with its line."""
        entry, line = entry_and_line
        self.lines += line
        self.head = _Head(self.head.size + len(line), self.head.entries + 1, entry.leaf_hash)
        return entry

    def settle(self) -> None:
        """Notes that the written lines are on disk."""
        for request, entries in self._entries:
            request.settle(entries)


def _check_readable(line: bytes) -> None:
    """Raises `ValueError` for a line that readers reject: once written, it would break the log for good."""
    try:
        readable = not read_line(line).newer
    except LogError:
        readable = False
    if not readable:
        raise ValueError("a field of the entry has a value that the log's format does not allow")


@contextlib.contextmanager
def _log_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogError(f"the audit log cannot be {what} ({error.strerror}): nothing leaves until this works") from None
