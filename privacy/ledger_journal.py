"""The ledger's file: an append-only, hash-chained journal, and the register of cohorts next to it.

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
from audits.database import Database, Tables
from audits.secrets import place_new
from privacy.errors import PrivacyError

Record: TypeAlias = dict[str, Any]

GENESIS = "0" * 64
MAX_EXPORT = 1 << 28  # bytes
GUARDS = (
    "CREATE TRIGGER no_update BEFORE UPDATE ON journal BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON journal BEGIN SELECT RAISE(ABORT, 'append only'); END",
    # INSERT OR REPLACE deletes without firing the trigger above.
    "CREATE TRIGGER in_order BEFORE INSERT ON journal "
    "WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM journal) "
    "BEGIN SELECT RAISE(ABORT, 'append only'); END",
)
_JOURNAL = """\
CREATE TABLE journal (seq INTEGER PRIMARY KEY, prev TEXT NOT NULL, hash TEXT NOT NULL, record TEXT NOT NULL)"""
_REGISTER = (
    "CREATE TABLE register (kind TEXT NOT NULL, mark TEXT NOT NULL, PRIMARY KEY (kind, mark)) STRICT, WITHOUT ROWID"
)
"""The table of `medfedvqa.ingest.ledger_binding`, in the same file so that both are lost and restored together."""


class LedgerError(PrivacyError):
    """The ledger is damaged, rolled back, locked, or belongs to another site or key: no training may use it."""


class NewerRecord(LedgerError):
    """The ledger is sound but has records that only a newer version of this software knows: this version must not train
    under it."""

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
    """The hash, in hex, of a record that follows the record with hash `prev`."""
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


def _from_0_2_0(connection: sqlite3.Connection) -> None:
    """Makes the journal's table strict, and adds the register."""
    schema = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master")}
    if schema != {_JOURNAL, *GUARDS}:
        raise LedgerError(f"the budget ledger's file is damaged, or not written by version 0.2.0: {_REMEDY}")
    for name in ("no_update", "no_delete", "in_order"):
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("ALTER TABLE journal RENAME TO before")
    connection.execute(LAYOUT.schema[0])
    connection.execute("INSERT INTO journal SELECT seq, prev, hash, record FROM before ORDER BY seq")
    connection.execute("DROP TABLE before")
    for statement in LAYOUT.schema[1:]:
        connection.execute(statement)


_REMEDY = "stop training on this site and restore the ledger from its latest export"
LAYOUT = Tables(
    name="the budget ledger",
    until="nothing may be trained until it can",
    remedy=_REMEDY,
    error=LedgerError,
    application=0x4D464C44,
    schema=(f"{_JOURNAL} STRICT", *GUARDS, _REGISTER),
    upgrades={0: _from_0_2_0},
)
disk_errors = LAYOUT.errors


class LedgerJournal(Database):
    """The ledger's file at `path`, created if it does not exist. Do not use it across a fork.

    Every method raises `LedgerError` if the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, LAYOUT)
        try:
            self.check_pages()
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Checks that SQLite finds the file intact and that the table's guards are still there."""
        self.check_tables()
        self.check_pages()

    @contextlib.contextmanager
    def appending(self) -> Iterator[Callable[[Record], JournalRow]]:
        """Like `writing`, but yields the function that appends a record."""
        with self.writing() as connection:
            yield lambda record: _append(connection, record)

    def rows(self, after: Head) -> list[JournalRow]:
        """The records after this position. Checks their chain, and that the position's own record is still there."""
        with self.reading() as connection:
            table = connection.execute(
                "SELECT seq, prev, hash, record FROM journal WHERE seq >= ? ORDER BY seq", (after.seq,)
            ).fetchall()
        if after.seq and (not table or table.pop(0)[2] != after.hash):
            raise LedgerError(f"the budget ledger was changed or rolled back while in use: {_REMEDY}")
        return list(check_chain(table, after))

    def contains(self, head: Head) -> bool:
        """Whether the record at that position has that hash."""
        with self.reading() as connection:
            matches = connection.execute("SELECT hash FROM journal WHERE seq = ?", (head.seq,)).fetchall()
        return matches == [(head.hash,)] or head == Head()


def _append(connection: sqlite3.Connection, record: Record) -> JournalRow:
    last = connection.execute("SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
    head = Head(*last) if last else Head()
    row = JournalRow(head.seq + 1, head.hash, link(head.hash, record), record)
    connection.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", (*row[:3], canonical(record).decode()))
    return row


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
            raise ValueError("the rows do not have the format of an export")
        table = [(row["seq"], row["prev"], row["hash"], canonical(row["record"]).decode()) for row in row_records]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise LedgerError("this file is not an export of a budget ledger: write one with `Ledger.export`") from None
    return list(check_chain(table, Head()))
