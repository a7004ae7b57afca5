"""SQLite files with durable state: a block's writes are on disk when it ends, all of them or none.

A file is refused if another program or a newer version made it, if it is damaged, if another file replaces it while it
is in use, or if it cannot be read and written. The error says what to do.
"""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from audits.secrets import place_new

BUSY_SECONDS = 60.0
"""How long a writer waits for the others before the file counts as locked."""


@dataclass(frozen=True)
class Tables:
    """The tables of one kind of file, and what its errors say."""

    name: str
    """The file's name in errors, such as 'the budget ledger'."""
    until: str
    """What must not happen while the file cannot be used."""
    remedy: str
    """What to do about a damaged file."""
    error: type[Exception]
    application: int
    """The SQLite application id, which tells the file from those of other programs."""
    schema: tuple[str, ...]
    """The statements that make its tables and their guards."""
    version: int = 1
    upgrades: Mapping[int, Callable[[sqlite3.Connection], None]] = field(default_factory=dict)
    """For each older version, the function that upgrades a file to the next version, within a transaction."""

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Replaces errors of SQLite and the disk, whose texts may hold paths; a disk error is kept as the cause."""
        try:
            yield
            return
        except sqlite3.Error as error:
            cause = getattr(error, "sqlite_errorname", "it was closed")
            if cause.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
                raise self.damaged() from None
            reason = OSError(errno.ENOSPC, cause) if cause == "SQLITE_FULL" else None
        except OSError as error:
            cause, reason = str(error.strerror), OSError(error.errno, error.strerror)
        raise self.error(f"{self.name} cannot be {what} ({cause}): {self.until}") from reason

    def damaged(self) -> Exception:
        """The error for a file that is not what this software writes."""
        return self.error(
            f"the file of {self.name} is damaged, or its guards against changes were removed: {self.remedy}"
        )


class Database:
    """The SQLite file at `path`, created with mode 0600 if it does not exist. Do not use it across a fork.

    Every method raises the layout's error if the file cannot be used.
    """

    def __init__(self, path: Path, layout: Tables) -> None:
        self._path, self._layout = path, layout
        with self._layout.errors("opened"):
            if not path.exists():
                place_new(path, self._make_empty)
            address = f"{path.absolute().as_uri()}?mode=rw"
            self._connection = sqlite3.connect(
                address, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
            )
            try:
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.execute("PRAGMA secure_delete = ON")  # no copy of the file has a secret that is gone
                self._file = os.stat(path)
                self._bring_up_to_date()
                self.check_tables()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Closes the connection; all writes are on disk already."""
        self._connection.close()

    def check_tables(self) -> None:
        """Raises the layout's error unless the file has the layout's tables and guards."""
        with self._layout.errors("read"):
            [mode], schema = self._connection.execute("PRAGMA journal_mode").fetchone(), self._schema()
        if (mode, schema) != ("wal", set(self._layout.schema)):
            raise self._layout.damaged()

    def check_pages(self) -> None:
        """Raises the layout's error unless SQLite's `quick_check` finds all pages sound. Reads the whole file."""
        with self._layout.errors("read"):
            if self._connection.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
                raise self._layout.damaged()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection for one SELECT statement: a second statement may see a later state of the file."""
        with self._layout.errors("read"):
            self._check_place()
            yield self._connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that locks other writers out from its start.

        All writes are on disk when the block ends; none are if the block raises.
        """
        with self._layout.errors("written"):
            self._check_place()
            with self._transaction():
                yield self._connection

    def copy(self, change: str) -> bytes:
        """The bytes of a consistent copy of the file, after the SQL statement `change` ran in the copy."""
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
            with self._layout.errors("copied"):
                self._connection.backup(copy)
            copy.execute("PRAGMA secure_delete = ON")
            copy.execute(change)
            return copy.serialize()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _schema(self) -> set[str]:
        return {sql for (sql,) in self._connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}

    def _version(self) -> int:
        """The file's version, if this software may use it."""
        layout = self._layout
        [application], [version] = (
            self._connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        unmarked = application == 0 == version and 0 in layout.upgrades
        if application != layout.application and not unmarked:
            raise self._layout.damaged()
        if version > layout.version:
            raise layout.error(f"{layout.name} was written by a newer version of this software: use that version")
        return int(version)

    def _bring_up_to_date(self) -> None:
        if self._version() == self._layout.version:
            return
        with self._transaction():
            while (version := self._version()) < self._layout.version:
                if version not in self._layout.upgrades:
                    raise self._layout.damaged()
                self._layout.upgrades[version](self._connection)
                self._mark(self._connection, version + 1)

    def _mark(self, connection: sqlite3.Connection, version: int) -> None:
        connection.execute(f"PRAGMA application_id = {self._layout.application}")
        connection.execute(f"PRAGMA user_version = {version}")

    def _make_empty(self, path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            self._mark(connection, self._layout.version)
            for statement in self._layout.schema:
                connection.execute(statement)

    def _check_place(self) -> None:
        if not os.path.samestat(self._file, os.stat(self._path)):
            name = self._layout.name
            raise self._layout.error(f"the file of {name} was replaced while in use: have it verified before going on")
