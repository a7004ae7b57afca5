"""The ledger's accounts of cohorts and jobs: what each has spent, and how far each job is; and facts about the ledger
in a folder, without opening it for a site.
"""

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from privacy.accounting import PrivacyCost, spent
from privacy.ledger_journal import Head, LedgerJournal, disk_errors
from privacy.ledger_replay import Book, LedgerJob, events_of
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


class ChargeState(StrEnum):
    """The state of a job: all last attempts are settled (`charged`), one is not (`begun`), some have yet to begin."""

    RESERVED = "reserved"
    BEGUN = "begun"
    CHARGED = "charged"
    FREED = "freed"
    IMPORTED = "imported"


@dataclass(frozen=True)
class JobAccount:
    """A job's part at one site: the epsilon that its charges alone spent, and how many tasks have yet to begin.

    `epsilon` holds against the server and the colluders that the charge counts, `epsilon_outside` against a server
    without colluders: it is less where sites share noise.
    """

    job: str
    method: str
    cohort: str
    epsilon: float
    reserved: int
    state: ChargeState
    void: bool
    site: str
    epsilon_outside: float


@dataclass(frozen=True)
class Account:
    """The account of a cohort's worst-off patient. `jobs` are all jobs on any of the cohort's patients."""

    cohort: str
    patients: int
    spent: PrivacyCost
    authorised: PrivacyCost
    jobs: tuple[JobAccount, ...]


def accounts_of(book: Book, delta: float) -> tuple[Account, ...]:
    """Every cohort's account at `delta`, in the order in which the cohorts were registered."""
    return tuple(
        Account(
            cohort,
            len(patients),
            spent=book.worst(patients, False, (), delta),
            authorised=book.worst(patients, True, (), delta),
            jobs=tuple(_job_accounts(book, patients, delta)),
        )
        for cohort, patients in book.cohorts.items()
    )


def history(book: Book, patients: frozenset[str], delta: float) -> str:
    """One sentence about the spending and reservations of the jobs on these patients."""
    accounts = [account for account in _job_accounts(book, patients, delta) if account.epsilon or account.reserved]
    return "; ".join(_sentence(account) for account in accounts) or "nothing spent, nothing reserved"


def _job_accounts(book: Book, patients: frozenset[str], delta: float) -> Iterator[JobAccount]:
    near = book.near(patients)
    debits = [debit for debit in book.debits.values() if debit.cohort in near]
    jobs = {(*key, job.cohort): job for key, job in book.jobs.items() if job.cohort in near}
    for site, name, cohort in dict.fromkeys([*jobs, *((*debit.key, debit.cohort) for debit in debits)]):
        job_debits = [debit for debit in debits if (*debit.key, debit.cohort) == (site, name, cohort)]
        job = jobs.get((site, name, cohort))
        yield JobAccount(
            name,
            job.method if job else job_debits[0].method,
            cohort,
            spent(events_of(job_debits), delta).epsilon,
            len(job.reserved) if job else 0,
            _state(job) if job else ChargeState.IMPORTED,
            any(debit.void for debit in job_debits) or bool(job and job.void),
            site,
            spent([event.against(0) for event in events_of(job_debits)], delta).epsilon,
        )


def _state(job: LedgerJob) -> ChargeState:
    if job.charges.keys() - job.settled:
        return ChargeState.BEGUN
    if job.reserved:
        return ChargeState.RESERVED
    return ChargeState.CHARGED if job.charges else ChargeState.FREED


def _sentence(account: JobAccount) -> str:
    waiting = f" (tasks reserved: {account.reserved})" if account.reserved else ""
    return f"job '{account.job}' ({account.method}) has spent {account.epsilon:.3f}{waiting}"
