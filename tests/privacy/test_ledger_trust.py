"""Whether a ledger's file can be trusted: edits, older copies, lost keys, exports and imports."""

import contextlib
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from privacy import SampledGaussian
from privacy.ledger import BudgetRefused, ChargeState, Ledger, LedgerError, Limits, PlannedTask
from privacy.ledger_journal import Head

DELTA = 1e-3
LIMITS = Limits(max_epsilon=10, delta=DELTA)
Opener = Callable[..., Ledger]


def reserve(ledger: Ledger, job: str, patients: Iterable[str], steps: int) -> None:
    """One round of so many steps; the accountant of these tests takes a step for epsilon 1."""
    plan = [PlannedTask("train", 1, (SampledGaussian(rate=0.1, noise=1.0, steps=steps),))]
    ledger.reserve(job, "prompt_pfl", patients, plan, LIMITS)


def spend(ledger: Ledger, job: str, patients: Iterable[str], steps: int) -> None:
    reserve(ledger, job, patients, steps)
    ledger.begin(job, "train", 1, LIMITS)
    ledger.settle(job, "train", 1)


def spent(ledger: Ledger) -> list[float]:
    """Epsilon by cohort."""
    return [account.spent.epsilon for account in ledger.accounts(DELTA)]


def test_no_patient_is_named_on_disk(ledger: Ledger, tmp_path: Path) -> None:
    """Neither database, write-ahead log, key nor export holds the text of a patient's key."""
    spend(ledger, "a", ["SECRET-ann", "SECRET-bob"], 4)
    ledger.export(tmp_path / "site" / "export.jsonl")
    files = list((tmp_path / "site").iterdir())
    assert len(files) == 5
    assert not any(b"SECRET" in file.read_bytes() for file in files)


def test_a_refusal_names_no_patient(ledger: Ledger) -> None:
    """Refusals go to the server."""
    spend(ledger, "a", ["SECRET"], 10)
    with pytest.raises(BudgetRefused) as error:
        reserve(ledger, "b", ["SECRET"], 1)
    assert "SECRET" not in str(error.value)


def edit(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path / "ledger.sqlite", isolation_level=None)) as database:
        guards = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            database.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            database.execute(statement)
        for _, guard in guards:
            database.execute(guard)


@pytest.mark.parametrize(
    "statement",
    [
        """UPDATE journal SET record = replace(record, '"steps":4', '"steps":1') WHERE seq = 3""",
        "DELETE FROM journal WHERE seq = 4",
        "DELETE FROM journal WHERE seq < 4",
    ],
)
def test_edits_behind_the_ledgers_back_are_noticed(
    ledger: Ledger, opened: Opener, tmp_path: Path, statement: str
) -> None:
    """`verify` notices a changed or missing record in an open ledger, and a damaged ledger is not opened."""
    spend(ledger, "a", ["p"], 4)
    ledger.verify()
    edit(tmp_path / "site", statement)
    with pytest.raises(LedgerError, match="damaged or missing"):
        ledger.verify()
    with pytest.raises(LedgerError, match="damaged or missing"):
        opened()


def test_a_cut_tail_is_noticed_by_a_noted_head(ledger: Ledger, opened: Opener, tmp_path: Path) -> None:
    """An open ledger refuses to go on; one opened later is sound in itself, and lacks the head that was noted."""
    spend(ledger, "a", ["p"], 4)
    noted = ledger.head()
    edit(tmp_path / "site", f"DELETE FROM journal WHERE seq = {noted[0]}")
    with pytest.raises(LedgerError, match="changed or rolled back while in use"):
        ledger.free("a")
    later = opened()
    later.verify()
    assert not later.contains(*noted) and later.contains(*later.head())


def test_a_restored_older_copy_is_noticed_by_a_noted_head(ledger: Ledger, opened: Opener, tmp_path: Path) -> None:
    """Also after it has grown past the noted position again."""
    spend(ledger, "a", ["p"], 4)
    ledger.close()
    shutil.copytree(tmp_path / "site", tmp_path / "older")
    ledger = opened()
    spend(ledger, "b", ["p"], 2)
    noted = ledger.head()
    older = opened("older")
    assert older.contains(0, "0" * 64) and not older.contains(*noted)
    spend(older, "c", ["p"], 2)
    assert older.head()[0] == noted[0] and not older.contains(*noted)


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        ("begun", {"format": 0}),
        ("begun", {"event": 1}),
        ("begun", {"event": None}),
        ("begun", {"attempt": None}),
        ("begun", {"event": "later", "format": 0}),
        ("begun", {"epsilon_after": "4"}),
        ("opened", {}),
        ("bound", {"store": "1" * 64}),
        ("reserved", {"job": "b", "cohort": "0" * 32}),
        ("reserved", {"job": "b", "site": "abdomen"}),
        ("begun", {"job": "b"}),
        ("begun", {"round": 2}),
        ("charged", {"round": 2}),
        ("freed", {"job": "b"}),
    ],
)
def test_records_that_make_no_sense_are_refused(
    simple_accountant: None, opened: Opener, event: str, changes: dict[str, str | int | None]
) -> None:
    """A chain that is sound but tells no story is not half understood, also where each record has its event's form.
    None: the member is left out.
    """
    ledger = opened(store="0" * 64)
    ledger.bind()
    spend(ledger, "a", ["p"], 4)
    rows = {row.record["event"]: row.record for row in ledger._journal.rows(Head())}
    rows["freed"] = rows["charged"] | {"event": "freed", "task": None, "round": None}
    with ledger._journal.appending() as append:
        append({name: value for name, value in (rows[event] | changes).items() if value is not None})
    with pytest.raises(LedgerError, match="record 7 .* does not follow from those before it"):
        opened()


def test_a_ledger_of_another_site_is_refused(ledger: Ledger, opened: Opener) -> None:
    """Two sites never share a ledger, nor start one at the same moment."""
    early = opened(site="abdomen")
    spend(ledger, "a", ["p"], 4)
    for use in (early.head, lambda: opened(site="abdomen")):
        with pytest.raises(LedgerError, match="belongs to another site"):
            use()


def test_a_ledger_without_its_key_is_refused(ledger: Ledger, opened: Opener, tmp_path: Path) -> None:
    """Without the key, or under another, known patients would look like new ones with a fresh budget."""
    spend(ledger, "a", ["p"], 4)
    ledger.close()
    key = tmp_path / "site" / "cohort.key"
    key.unlink()
    with pytest.raises(LedgerError, match="key file is missing"):
        opened()
    assert not key.exists()
    opened("other").close()
    shutil.copy(tmp_path / "other" / "cohort.key", key)
    with pytest.raises(LedgerError, match="another key"):
        opened()


def test_a_folder_that_is_no_folder_is_refused(simple_accountant: None, tmp_path: Path) -> None:
    """An unusable place is an error of the ledger that does not name the place."""
    (tmp_path / "SECRET").write_text("a file")
    with pytest.raises(LedgerError, match="cannot be opened") as error:
        Ledger(tmp_path / "SECRET", "chest")
    assert "SECRET" not in str(error.value)


# Export and import


def with_key_of(tmp_path: Path, name: str) -> str:
    """A new folder that holds the first ledger's key and nothing else."""
    (tmp_path / name).mkdir()
    shutil.copy(tmp_path / "site" / "cohort.key", tmp_path / name)
    return name


def test_an_export_restores_the_ledger(ledger: Ledger, opened: Opener, tmp_path: Path) -> None:
    """On a new disk with the old key: the same chain, the same accounts, and it goes on."""
    spend(ledger, "a", ["p"], 4)
    reserve(ledger, "b", ["p"], 1)
    ledger.export(tmp_path / "export.jsonl")
    restored = opened(with_key_of(tmp_path, "new"))
    assert restored.import_(tmp_path / "export.jsonl") == 6
    assert restored.head() == ledger.head() and restored.accounts(DELTA) == ledger.accounts(DELTA)
    assert restored.begin("b", "train", 1, LIMITS).epsilon_after == 5
    restored.verify()


def test_charges_of_a_forgotten_copy_are_taken_over_once(ledger: Ledger, opened: Opener, tmp_path: Path) -> None:
    """Two copies that went on apart: what only the other knows is added, with new cohorts, and never twice."""
    spend(ledger, "a", ["p"], 2)
    ledger.close()
    shutil.copytree(tmp_path / "site", tmp_path / "copy")
    ledger, copy = opened(), opened("copy")
    spend(ledger, "b", ["p"], 3)
    spend(copy, "c", ["p"], 1)
    spend(copy, "d", ["p", "q"], 1)
    reserve(copy, "never begun", ["p"], 1)
    copy.export(tmp_path / "copy.jsonl")

    assert ledger.import_(tmp_path / "copy.jsonl") == 3
    assert spent(ledger) == [7, 7]
    states = {job.job: (job.epsilon, job.state) for job in ledger.accounts(DELTA)[0].jobs}
    assert states["c"] == states["d"] == (1, ChargeState.IMPORTED)
    head = ledger.head()
    assert ledger.import_(tmp_path / "copy.jsonl") == 0 and ledger.head() == head

    ledger.export(tmp_path / "ledger.jsonl")
    assert copy.import_(tmp_path / "ledger.jsonl") == 1
    assert spent(copy) == [7, 7]
    copy.export(tmp_path / "copy again.jsonl")
    assert ledger.import_(tmp_path / "copy again.jsonl") == 0
    ledger.verify()
    copy.verify()


def test_an_export_of_another_key_or_site_is_refused(ledger: Ledger, opened: Opener, tmp_path: Path) -> None:
    """Its digests mean other patients, or nothing here; the ledger stays empty."""
    spend(ledger, "a", ["p"], 4)
    ledger.export(tmp_path / "export.jsonl")
    other_key, other_site = opened("other key"), opened(with_key_of(tmp_path, "other site"), site="abdomen")
    for other in (other_key, other_site):
        with pytest.raises(LedgerError, match="another site or under another key: start an empty ledger beside"):
            other.import_(tmp_path / "export.jsonl")
        assert other.head() == (0, "0" * 64)


def test_a_broken_export_changes_nothing(ledger: Ledger, opened: Opener, tmp_path: Path) -> None:
    """An export with a changed line, or a missing file, is refused before anything is written."""
    spend(ledger, "a", ["p"], 4)
    ledger.export(tmp_path / "export.jsonl")
    text = (tmp_path / "export.jsonl").read_text()
    (tmp_path / "changed.jsonl").write_text(text.replace('"steps":4', '"steps":1'))
    restored = opened(with_key_of(tmp_path, "new"))
    for name in ("changed.jsonl", "missing.jsonl"):
        with pytest.raises(LedgerError, match="record 3 .* damaged|cannot be imported"):
            restored.import_(tmp_path / name)
    assert restored.head() == (0, "0" * 64)
