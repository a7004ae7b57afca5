"""Durable state in SQLite: which files are refused, and how a ledger of version 0.2.0 is taken over."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from audits.database import Database, Tables
from medfedvqa.errors import ConfigError
from medfedvqa.ingest.cohort_register import REGISTER, _extend, read_register
from privacy import Ledger, LedgerError
from privacy.ledger_accounts import LEDGER_NAME
from privacy.ledger_journal import LAYOUT, LedgerJournal

OLD = Path(__file__).parents[1] / "golden" / "site-0.2.0" / "chest" / "ledger"
"""A ledger with a charge and a register of two files and a patient, as version 0.2.0 wrote it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(OLD, tmp_path / "ledger"))
    (copy / "cohort.key").chmod(0o600)
    return copy


def marks(folder: Path) -> tuple[list[str], list[str]]:
    register = read_register(folder)
    assert register is not None and register.key == "ab" * 16
    return register.files, register.patients


def other(**changes: object) -> Tables:
    """The ledger's layout, changed."""
    return Tables(**{**vars(LAYOUT), **changes})


@pytest.mark.parametrize(
    ("pragma", "sentence"),
    [
        ("user_version = 2", "written by a newer version of this software: use that version"),
        ("application_id = 7", "damaged"),
        ("journal_mode = DELETE", "damaged"),
    ],
)
def test_a_file_of_another_kind_or_a_newer_version_is_refused(tmp_path: Path, pragma: str, sentence: str) -> None:
    """Before anything of it is used, and it stays as it is."""
    path = tmp_path / LEDGER_NAME
    LedgerJournal(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA {pragma}")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=sentence):
        LedgerJournal(path)
    assert path.read_bytes() == before


def test_a_full_disk_is_named_and_leaves_nothing_of_a_block(tmp_path: Path) -> None:
    """As SQLite reports it; the error's cause is the system's, by which a site tells the server of a full disk."""
    path = tmp_path / LEDGER_NAME
    with closing(Database(path, LAYOUT)) as database:
        with database.reading() as connection:
            [pages] = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
        rows = [("file", f"{number:032x}") for number in range(10_000)]
        with pytest.raises(LedgerError, match="SQLITE_FULL") as caught, database.writing() as connection:
            connection.executemany("INSERT INTO register VALUES (?, ?)", rows)
        assert isinstance(caught.value.__cause__, OSError)
        with database.reading() as connection:
            assert connection.execute("SELECT count(*) FROM register").fetchone() == (0,)


def test_a_ledger_of_0_2_0_keeps_its_charge_and_its_register(folder: Path) -> None:
    """Every record has its hash, the tables are strict, and the old register counts before and after it is removed."""
    with closing(sqlite3.connect(folder / LEDGER_NAME)) as connection:
        rows = connection.execute("SELECT * FROM journal").fetchall()
    assert marks(folder) == (["e" * 32, "f" * 32], ["d" * 32])
    with closing(Ledger(folder, "chest")) as ledger:
        ledger.verify()
        assert ledger.charge_of("job-1", "train", 1) is not None
    register = read_register(folder)
    assert register is not None and (folder / REGISTER).exists()
    _extend(folder, register.model_copy(update={"files": ["c" * 32], "patients": []}))
    assert marks(folder) == (["c" * 32, "e" * 32, "f" * 32], ["d" * 32]) and not (folder / REGISTER).exists()
    with closing(sqlite3.connect(folder / LEDGER_NAME)) as connection:
        assert connection.execute("SELECT * FROM journal").fetchall() == rows
        assert connection.execute("SELECT count(*) FROM pragma_table_list WHERE strict").fetchone() == (2,)
    with pytest.raises(ConfigError, match="another key"):
        _extend(folder, register.model_copy(update={"key": "00" * 16}))
    assert marks(folder)[0] == ["c" * 32, "e" * 32, "f" * 32]


@pytest.mark.parametrize("change", ["CREATE TABLE more (x)", "DROP TRIGGER no_delete"])
def test_a_damaged_ledger_of_0_2_0_is_refused_and_stays_as_it_is(folder: Path, change: str) -> None:
    """It is evidence."""
    with closing(sqlite3.connect(folder / LEDGER_NAME)) as connection:
        connection.execute(change)
    before = (folder / LEDGER_NAME).read_bytes()
    with pytest.raises(LedgerError, match="damaged"):
        LedgerJournal(folder / LEDGER_NAME)
    assert (folder / LEDGER_NAME).read_bytes() == before
    (folder / REGISTER).write_text("{}")
    with pytest.raises(ConfigError, match="damaged"):
        read_register(folder)
