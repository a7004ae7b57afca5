"""The journal: append-only, hash-chained, whole after any failure."""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from audits import database
from privacy.ledger_journal import GENESIS, GUARDS, Head, LedgerError, LedgerJournal, read_export, write_export

TRIGGERS = ("no_update", "no_delete", "in_order")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "SECRET-folder" / "ledger.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[LedgerJournal]:
    path.parent.mkdir()
    with contextlib.closing(LedgerJournal(path)) as journal:
        yield journal


def fill(journal: LedgerJournal, *numbers: int) -> None:
    for number in numbers:
        with journal.appending() as append:
            append({"event": "test", "number": number})


def tamper(path: Path, *statements: str, keep_guards: bool = True) -> None:
    """Somebody with write access to the file removes the guards, changes what he likes, and puts them back."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        for name in TRIGGERS:
            database.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            database.execute(statement)
        for statement in GUARDS if keep_guards else ():
            database.execute(statement)


def test_hashes_chain_as_documented(journal: LedgerJournal) -> None:
    """hash = SHA-256(0x02, hash before, canonical record); 64 zeros come before the first; seq counts from 1."""
    fill(journal, 1, 2, 3)
    before = GENESIS
    for number, row in enumerate(journal.rows(Head()), start=1):
        body = json.dumps(row.record, sort_keys=True, separators=(",", ":")).encode()
        assert row.hash == hashlib.sha256(b"\2" + before.encode() + body).hexdigest()
        assert (row.seq, row.prev, row.record["number"]) == (number, before, number)
        before = row.hash


def test_a_journal_that_is_opened_again_goes_on(path: Path) -> None:
    """Records are on disk when their block ends, and the chain continues."""
    path.parent.mkdir()
    for number in range(3):
        with contextlib.closing(LedgerJournal(path)) as journal:
            fill(journal, number)
    with contextlib.closing(LedgerJournal(path)) as journal:
        assert [row.record["number"] for row in journal.rows(Head())] == [0, 1, 2]


def test_commits_are_synced_to_disk(journal: LedgerJournal) -> None:
    """Write-ahead log with synchronous = FULL: a commit survives a power cut."""
    with journal.reading() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_only_new_rows_are_read(journal: LedgerJournal, path: Path) -> None:
    """A reader goes on from the position that it knows, also over another writer's records."""
    fill(journal, 1, 2)
    *_, last = journal.rows(Head())
    with contextlib.closing(LedgerJournal(path)) as other:
        fill(other, 3)
    assert [row.seq for row in journal.rows(Head(last.seq, last.hash))] == [3]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal SET record = '{}' WHERE seq = 1",
        "DELETE FROM journal WHERE seq = 2",
        "INSERT OR REPLACE INTO journal VALUES (1, '', '', '{}')",
        "INSERT INTO journal VALUES (9, '', '', '{}')",
    ],
)
def test_the_table_refuses_all_but_appending(journal: LedgerJournal, path: Path, statement: str) -> None:
    """Whoever opens the file by mistake cannot change what stands in it."""
    fill(journal, 1, 2)
    with (
        contextlib.closing(sqlite3.connect(path)) as database,
        pytest.raises(sqlite3.IntegrityError, match="append only"),
    ):
        database.execute(statement)
    journal.check()


@pytest.mark.parametrize("number", [float("nan"), {1}])
def test_a_block_that_raises_leaves_nothing(journal: LedgerJournal, number: object) -> None:
    """A transaction is written whole or not at all, and the next one works."""
    with pytest.raises((ValueError, TypeError)), journal.appending() as append:
        append({"event": "test", "number": 1})
        append({"event": "test", "number": number})
    fill(journal, 2)
    assert [(row.seq, row.record["number"]) for row in journal.rows(Head())] == [(1, 2)]


def test_a_writer_shuts_others_out_until_it_is_done(
    journal: LedgerJournal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check, then append: nobody writes in between; who cannot wait any longer is told that the ledger is locked."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with contextlib.closing(LedgerJournal(path)) as other, journal.writing():
        with pytest.raises(LedgerError, match=r"cannot be written \(SQLITE_BUSY\)"):
            fill(other, 1)
        assert other.rows(Head()) == []


def test_threads_keep_one_chain(path: Path) -> None:
    """Journals that are made and written at the same moment end up with one dense chain."""
    path.parent.mkdir()

    def write(number: int) -> None:
        with contextlib.closing(LedgerJournal(path)) as journal:
            fill(journal, *range(5 * number, 5 * number + 5))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    with contextlib.closing(LedgerJournal(path)) as journal:
        rows = journal.rows(Head())
    assert [row.seq for row in rows] == list(range(1, 41))
    assert sorted(row.record["number"] for row in rows) == list(range(40))
    assert sorted(file.name for file in path.parent.iterdir()) == ["ledger.sqlite"]


@pytest.mark.parametrize(
    ("statement", "first"),
    [
        ("""UPDATE journal SET record = '{"event":"test","number":0}' WHERE seq = 2""", 2),
        ("UPDATE journal SET record = record || ' ' WHERE seq = 2", 2),
        ("UPDATE journal SET record = 7 WHERE seq = 2", 2),
        ("UPDATE journal SET record = '[[[' WHERE seq = 3", 3),
        ("UPDATE journal SET hash = prev WHERE seq = 1", 1),
        ("UPDATE journal SET prev = hash WHERE seq = 4", 4),
        ("DELETE FROM journal WHERE seq = 3", 3),
        ("DELETE FROM journal WHERE seq = 1", 1),
        ("UPDATE journal SET seq = 9 WHERE seq = 4", 4),
        ("INSERT INTO journal SELECT 5, prev, hash, record FROM journal WHERE seq = 4", 5),
    ],
)
def test_changed_records_are_noticed_at_the_first(path: Path, statement: str, first: int) -> None:
    """Changes, gaps, renumbering and repetition break the chain; the sentence says where and what to do."""
    path.parent.mkdir()
    with contextlib.closing(LedgerJournal(path)) as journal:
        fill(journal, 1, 2, 3, 4)
    tamper(path, statement)
    with (
        contextlib.closing(LedgerJournal(path)) as journal,
        pytest.raises(LedgerError, match=f"record {first} .* damaged or missing: stop") as error,
    ):
        journal.rows(Head())
    assert "SECRET" not in str(error.value)


def test_removed_guards_are_noticed(path: Path) -> None:
    """A table without its triggers is not opened, even if its records are all there."""
    path.parent.mkdir()
    LedgerJournal(path).close()
    tamper(path, keep_guards=False)
    with pytest.raises(LedgerError, match="guards against changes were removed"):
        LedgerJournal(path)


def test_a_tail_that_goes_while_in_use_is_noticed(journal: LedgerJournal, path: Path) -> None:
    """A reader that knows a position notices when it is gone, though the rest of the chain is sound."""
    fill(journal, 1, 2, 3)
    *_, last = journal.rows(Head())
    tamper(path, "DELETE FROM journal WHERE seq = 3")
    with pytest.raises(LedgerError, match="changed or rolled back while in use"):
        journal.rows(Head(last.seq, last.hash))
    fill(journal, 4)
    with pytest.raises(LedgerError, match="changed or rolled back while in use"):
        journal.rows(Head(last.seq, last.hash))


@pytest.mark.parametrize("gone", [True, False])
def test_a_file_that_is_replaced_while_in_use_is_noticed(journal: LedgerJournal, path: Path, gone: bool) -> None:
    """Nothing is written into a file that no longer stands at its place."""
    fill(journal, 1)
    shutil.copy(path, path.with_suffix(".copy"))
    path.unlink() if gone else path.with_suffix(".copy").replace(path)
    with pytest.raises(LedgerError, match="No such file|replaced while in use"):
        fill(journal, 2)
    with pytest.raises(LedgerError, match="No such file|replaced while in use"):
        journal.rows(Head())


@pytest.mark.parametrize("damage", ["garbage", "empty", "cut", "page"])
def test_a_corrupt_file_is_refused(path: Path, damage: str) -> None:
    """What SQLite cannot read, or only in part, is a damaged ledger, and the sentence holds no path."""
    path.parent.mkdir()
    with contextlib.closing(LedgerJournal(path)) as journal:
        fill(journal, *range(200))
    sound = path.read_bytes()
    broken = {
        "garbage": b"no database" * 1000,
        "empty": b"",
        "cut": sound[: len(sound) // 2],
        "page": sound[:8192] + bytes(4096) + sound[12288:],
    }
    path.write_bytes(broken[damage])
    with pytest.raises(LedgerError, match="damaged|SQLITE_(NOTADB|CORRUPT)") as error:
        LedgerJournal(path)
    assert "SECRET" not in str(error.value)


def test_a_journal_on_a_read_only_disk_is_refused() -> None:
    """Without write access nothing can be charged, so nothing may be trained."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "ledger.sqlite"
        LedgerJournal(path).close()
        for entry in (path.parent, path):
            entry.chmod(0o555)
            if not os.geteuid():  # root may write anywhere: be nobody for a moment
                os.chown(entry, 65534, 65534)
        with contextlib.ExitStack() as stack:
            if not os.geteuid():
                stack.callback(os.seteuid, 0)
                os.seteuid(65534)
            stack.callback(path.parent.chmod, 0o755)
            with pytest.raises(LedgerError, match=r"cannot be \w+ \(SQLITE_\w+\)"):
                LedgerJournal(path)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """A missing folder is an error of the ledger, not a traceback with a path."""
    with pytest.raises(LedgerError, match="cannot be opened") as error:
        LedgerJournal(tmp_path / "SECRET" / "ledger.sqlite")
    assert "SECRET" not in str(error.value)


def test_a_closed_journal_says_so(journal: LedgerJournal) -> None:
    """Use after closing is reported as what it is."""
    journal.close()
    with pytest.raises(LedgerError, match="it was closed"):
        journal.rows(Head())


def test_all_files_are_the_owners_alone(journal: LedgerJournal, path: Path, tmp_path: Path) -> None:
    """Database, write-ahead log, shared memory and export have mode 0600, whatever the umask."""
    fill(journal, 1)
    write_export(path.parent / "export.jsonl", journal.rows(Head()))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    names = ["ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "export.jsonl"]
    assert modes == dict.fromkeys(names, 0o600)


def test_positions_are_found_by_hash(journal: LedgerJournal) -> None:
    """A head is contained as long as that very record stands there; the empty journal's head always is."""
    fill(journal, 1, 2)
    item, two = (Head(row.seq, row.hash) for row in journal.rows(Head()))
    assert all(journal.contains(head) for head in (Head(), item, two))
    assert not any(journal.contains(head) for head in (Head(1, two.hash), Head(3, two.hash), Head(0, item.hash)))


def test_an_export_holds_the_chain(journal: LedgerJournal, tmp_path: Path) -> None:
    """What is written is read back; an existing file is never overwritten."""
    fill(journal, 1, 2, 3)
    export = tmp_path / "export.jsonl"
    write_export(export, journal.rows(Head()))
    assert read_export(export) == journal.rows(Head())
    before = export.read_bytes()
    with pytest.raises(LedgerError, match="choose a new name"):
        write_export(export, [])
    assert export.read_bytes() == before


@pytest.mark.parametrize("damage", [b"no export", b"[]", b"{}", b"\xff"])
def test_a_file_that_is_no_export_is_refused(tmp_path: Path, damage: bytes) -> None:
    """Anything else than an export is refused in a sentence without a path."""
    (tmp_path / "SECRET").write_bytes(damage)
    with pytest.raises(LedgerError, match="not an export") as error:
        read_export(tmp_path / "SECRET")
    assert "SECRET" not in str(error.value)


def test_a_changed_export_is_refused(journal: LedgerJournal, tmp_path: Path) -> None:
    """The lines of an export are checked against its chain."""
    fill(journal, 1, 2, 3)
    export = tmp_path / "export.jsonl"
    write_export(export, journal.rows(Head()))
    lines = export.read_bytes().splitlines(keepends=True)
    for changed in ([lines[0], lines[2]], [lines[0], lines[1].replace(b'"number":2', b'"number":1')]):
        export.write_bytes(b"".join(changed))
        with pytest.raises(LedgerError, match="record 2 .* damaged or missing"):
            read_export(export)
