"""The journal under the budget ledger: an append-only, hash-chained table in one SQLite file.

A row's `hash` is SHA-256 over a byte 2, the `hash` of the row before (64 zeros for the first) and the row's canonical
record. Everything that the ledger knows is derived by replaying the rows in the order of `seq`, which counts from 1.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from audits import canonical
from audits.bounded_files import read_bounded
from audits.secrets import place_new
from privacy.errors import PrivacyError

Record: TypeAlias = dict[str, Any]

GENESIS = "0" * 64
MAX_EXPORT = 1 << 28  # bytes
BUSY_SECONDS = 60.0  # how long a writer waits for the others before the ledger counts as locked
SCHEMA = (
    "CREATE TABLE journal (seq INTEGER PRIMARY KEY, prev TEXT NOT NULL, hash TEXT NOT NULL, record TEXT NOT NULL)",
    "CREATE TRIGGER no_update BEFORE UPDATE ON journal BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON journal BEGIN SELECT RAISE(ABORT, 'append only'); END",
    # INSERT OR REPLACE deletes without firing the trigger above.
    "CREATE TRIGGER in_order BEFORE INSERT ON journal "
    "WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM journal) "
    "BEGIN SELECT RAISE(ABORT, 'append only'); END",
)


class LedgerError(PrivacyError):
    """The ledger is damaged, rolled back, locked, or belongs to another site or key: no training may use it."""


class NewerRecord(LedgerError):
    """The ledger is sound, and holds what only a newer version of this software knows: nothing may be trained under it
    by this version."""

    def __init__(self, seq: int) -> None:
        super().__init__(
            f"record {seq} of the budget ledger was written by a newer version of this software: use that version, or "
            "a later one"
        )


class OlderRecord(LedgerError):
    """The ledger was begun by a development state before the first release, whose records are no longer read."""

    def __init__(self, seq: int) -> None:
        super().__init__(
            f"record {seq} of the budget ledger is of a development state before 0.2.0, which is no longer read: "
            "version 0.2.0 reads it"
        )


class BudgetRefused(PrivacyError):
    """The site's budget does not cover a request. The sentence may be shared: it names no patient and no path."""


class Head(NamedTuple):
    """A position in the journal and the hash of the record there; the default is before the first."""

    seq: int = 0
    hash: str = GENESIS


class JournalRow(NamedTuple):
    """One record at its place in the chain."""

    seq: int
    prev: str
    hash: str
    record: Record


def link(prev: str, record: Record) -> str:
    """The hash, in hex, of a record that follows the one of hash `prev`."""
    return hashlib.sha256(b"\2" + prev.encode() + canonical(record)).hexdigest()


def check_chain(table: Iterable[tuple[Any, Any, Any, Any]], after: Head) -> Iterator[JournalRow]:
    """The rows in `table` (seq, prev, hash, record as text). Raises `LedgerError` at the first that does not follow."""
    for seq, prev, digest, text in table:
        try:
            record = json.loads(text)
            fields = seq, prev, digest, text.encode()
            sound = fields == (after.seq + 1, after.hash, link(after.hash, record), canonical(record))
        except (ValueError, TypeError, AttributeError, RecursionError):
            sound = False
        if not sound:
            raise LedgerError(
                f"record {after.seq + 1} of the budget ledger is damaged or missing: stop training on this site and "
                "restore the ledger from its latest export"
            )
        after = Head(seq, digest)
        yield JournalRow(seq, prev, digest, record)


class LedgerJournal:
    """The table in the file at `path`, which is made if there is none. Not to be carried over a fork.

    Every method raises `LedgerError` if the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with disk_errors("opened"):
            if not path.exists():
                place_new(path, _make_empty)
            address = f"{path.absolute().as_uri()}?mode=rw"
            self._database = sqlite3.connect(address, BUSY_SECONDS, 0, None, check_same_thread=False, uri=True)
            try:
                self._database.execute("PRAGMA synchronous = FULL")
                self._file = os.stat(path)
                self.check()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Gives the file back; every record is on disk already."""
        self._database.close()

    def check(self) -> None:
        """Finds out whether SQLite takes its file for sound, and whether the table's guards are still there."""
        with disk_errors("read"):
            modes = self._database.execute("PRAGMA journal_mode").fetchall()
            schema = {sql for (sql,) in self._database.execute("SELECT sql FROM sqlite_master")}
            pages = self._database.execute("PRAGMA quick_check").fetchall()
        if (modes, schema, pages) != ([("wal",)], set(SCHEMA), [("ok",)]):
            raise LedgerError(
                "the budget ledger's file is damaged, or its guards against changes were removed: stop training on "
                "this site and restore the ledger from its latest export"
            )

    @contextlib.contextmanager
    def writing(self) -> Iterator[Callable[[Record], JournalRow]]:
        """A transaction that shuts other writers out from its first moment; yields the function that appends.

        What was appended is on disk when the block ends, and nothing of it is if the block raises.
        """
        with disk_errors("written"):
            self._check_place()
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._append
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def rows(self, after: Head) -> list[JournalRow]:
        """The records after that position, with their chain checked, and that the position itself is still there."""
        with disk_errors("read"):
            self._check_place()
            table = self._database.execute(
                "SELECT seq, prev, hash, record FROM journal WHERE seq >= ? ORDER BY seq", (after.seq,)
            ).fetchall()
        if after.seq and (not table or table.pop(0)[2] != after.hash):
            raise LedgerError(
                "the budget ledger was changed or rolled back while in use: stop training on this site and restore "
                "the ledger from its latest export"
            )
        return list(check_chain(table, after))

    def contains(self, head: Head) -> bool:
        """Whether the record at that position has that hash."""
        with disk_errors("read"):
            matches = self._database.execute("SELECT hash FROM journal WHERE seq = ?", (head.seq,)).fetchall()
        return matches == [(head.hash,)] or head == Head()

    def _append(self, record: Record) -> JournalRow:
        last = self._database.execute("SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
        head = Head(*last) if last else Head()
        row = JournalRow(head.seq + 1, head.hash, link(head.hash, record), record)
        self._database.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", (*row[:3], canonical(record).decode()))
        return row

    def _check_place(self) -> None:
        if not os.path.samestat(self._file, os.stat(self._path)):
            raise LedgerError("the budget ledger's file was replaced while in use: have it verified before going on")


def write_export(path: Path, rows: Iterable[JournalRow]) -> None:
    """Writes the rows as lines of canonical JSON to a new file of mode 0600.

    Raises `LedgerError` if it cannot be written, or if there is a file at `path`.
    """

    def fill(draft: Path) -> None:
        with draft.open("wb") as file:
            file.writelines(export_lines(rows))
            file.flush()
            os.fsync(file.fileno())

    with disk_errors("exported"):
        if not place_new(path, fill):
            raise LedgerError("the ledger is not exported over an existing file: choose a new name")


def export_lines(rows: Iterable[JournalRow]) -> Iterator[bytes]:
    """The lines of an export."""
    return (canonical(row._asdict()) + b"\n" for row in rows)


def read_export(path: Path) -> list[JournalRow]:
    """The rows that `write_export` wrote, byte for byte. Raises `LedgerError` if it cannot be read or its chain is
    broken."""
    with disk_errors("imported"):
        content = read_bounded(path, MAX_EXPORT)
    try:
        row_records = [json.loads(line) for line in content.splitlines()]
        if content != b"".join(canonical(row) + b"\n" for row in row_records):
            raise ValueError("the rows are written in another way")
        table = [(row["seq"], row["prev"], row["hash"], canonical(row["record"]).decode()) for row in row_records]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise LedgerError("this file is no export of a budget ledger: write one with `Ledger.export`") from None
    return list(check_chain(table, Head()))


@contextlib.contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turns what the disk or SQLite raises, whose texts hold paths, into a `LedgerError`."""
    try:
        yield
    except sqlite3.Error as error:
        cause = getattr(error, "sqlite_errorname", "it was closed")
    except OSError as error:
        cause = error.strerror
    else:
        return
    raise LedgerError(f"the budget ledger cannot be {what} ({cause}): nothing may be trained until it can") from None


def _make_empty(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        for statement in SCHEMA:
            database.execute(statement)
