"""Reads facts about the ledger in a folder, without opening the ledger for a site."""

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from privacy.ledger_journal import Head, LedgerJournal, disk_errors
from privacy.ledger_replay import Book
from privacy.patient_keys import KEY_NAME, SiteKey, load_key

LEDGER_NAME = "ledger.sqlite"


class PatientJob(NamedTuple):
    """A job that trains, trained or may train on a patient."""

    job: str
    site: str
    method: str


@dataclass(frozen=True)
class LedgerFolder:
    """A folder with a ledger's key, and the ledger's journal if it has one yet."""

    key: SiteKey
    store: str | None
    """The fingerprint of the key of the store to which the ledger is bound."""
    head: Head

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the ledger's key, like `Ledger.fingerprint`."""
        return self.key.fingerprint()


def read_folder(folder: Path) -> LedgerFolder | None:
    """The key, store and head of a folder's ledger; None if it has neither ledger nor key. Raises `LedgerError`."""
    journal = folder / LEDGER_NAME
    if not journal.exists():
        key = load_key(folder, create=False) if (folder / KEY_NAME).exists() else None
        return LedgerFolder(key, None, Head()) if key else None
    book = Book()
    with closing(LedgerJournal(journal)) as open_journal:
        book.apply(open_journal.rows(Head()))
    return LedgerFolder(load_key(folder, create=False), book.store, book.head)


def jobs_on(folder: Path, patients: Collection[str]) -> list[PatientJob]:
    """The jobs that were charged for any of these patients, or may yet be, by the patients' keys.

    A job whose charges were returned, because it released nothing, is not included. Raises `LedgerError`.
    """
    journal = folder / LEDGER_NAME
    if not journal.exists():
        return []
    book, key = Book(), load_key(folder, create=False)
    with closing(LedgerJournal(journal)) as open_journal:
        book.apply(open_journal.rows(Head()))
    cohorts = book.near(key.patient(patient) for patient in patients)
    debits = (debit for debit in book.all_debits(reserved=True) if debit.cohort in cohorts)
    return list(dict.fromkeys(PatientJob(debit.job, debit.site, debit.method) for debit in debits))


def make_folder(folder: Path) -> LedgerFolder:
    """Like `read_folder`, but creates a key if there is none. Raises `LedgerError`."""
    with disk_errors("opened"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return read_folder(folder) or LedgerFolder(load_key(folder, create=True), None, Head())
