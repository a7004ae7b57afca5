"""The site's budget ledger, the only source of epsilon: what patients may still spend, and what jobs have spent.

A charge is reserved, then begun, then charged; or reserved, then freed. It counts against the budget from its
reservation on. Once begun it counts for good, because a task that died may have used the data; all charges of a job are
returned only if its owner knows that nothing of it was released. A charge is on a cohort and applies to each of its
patients. A cohort has spent as much as its worst-off patient has, over all cohorts of that patient. Times in the
records are for people only.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from privacy.accounting import PrivacyCost, fitting, spent
from privacy.ledger_accounts import LEDGER_NAME, Account, ChargeState, JobAccount, accounts_of, history
from privacy.ledger_journal import (
    BudgetRefused,
    Head,
    JournalRow,
    LedgerError,
    LedgerJournal,
    Record,
    disk_errors,
    read_export,
    write_export,
)
from privacy.ledger_replay import FORMAT, Book, LedgerCharge, LedgerJob, PlannedTask, Slot, encode_events, events_of
from privacy.mechanisms import DPEvent
from privacy.patient_keys import load_key

# The limits on patients' epsilon, and whether rounds of a plan fit into them.


@dataclass(frozen=True)
class Limits:
    """The limits on a patient's epsilon, over all jobs and by one job, both at `delta`; None is no limit.

    Raises `ValueError` unless the epsilons are positive and finite and `delta` lies between 0 and 1.
    """

    max_epsilon: float | None
    delta: float
    max_epsilon_per_job: float | None = None

    def __post_init__(self) -> None:
        limits = [epsilon for epsilon in (self.max_epsilon, self.max_epsilon_per_job) if epsilon is not None]
        if not all(0 < epsilon < math.inf for epsilon in limits) or not 0 < self.delta < 1:
            raise ValueError("limits on epsilon must be positive and finite, and delta between 0 and 1")


def by_round(plan: Sequence[PlannedTask]) -> list[list[DPEvent]]:
    """The events of each round of a plan."""
    numbers = sorted({task.round for task in plan})
    return [[event for task in plan if task.round == number for event in task.events] for number in numbers]


def check_fits(
    bounds: Iterable[tuple[str, float | None, list[list[DPEvent]]]],
    rounds: Sequence[Sequence[DPEvent]],
    delta: float,
    history: Callable[[], str],
) -> None:
    """Raises `BudgetRefused` if these further rounds would exceed a bound. `history` describes earlier charges.

    A bound has the name of its owner, its epsilon or None, and the exposures to compose the rounds with.
    """
    new_events = [event for events in rounds for event in events]
    for who, most, exposures in bounds:
        if most is None:
            continue
        epsilon = max(spent([*events, *new_events], delta).epsilon for events in exposures)
        if epsilon > most:
            fit = min(fitting(most, delta, events, rounds) for events in exposures)
            raise BudgetRefused(
                f"{who} would spend epsilon {epsilon:.3f} of the {most:g} that the site allows at delta {delta:g}; "
                f"{fit} of {len(rounds)} rounds would fit. So far: {history()}"
            )


__all__ = ["Account", "BudgetRefused", "ChargeState", "JobAccount", "Ledger"]
__all__ += ["LedgerCharge", "LedgerError", "Limits", "PlannedTask"]


class Ledger:
    """The ledger of `site` in `folder`, created if missing. Safe for threads, and for processes that open one each.

    A ledger belongs to the site that opened it, or, once `bind` has bound it to a store's key, to all sites of that
    store. Raises `LedgerError`, as every method does, if the ledger cannot be trusted or used.
    """

    def __init__(self, folder: Path, site: str, store: str | None = None) -> None:
        """`store`: the fingerprint of the site's store key; a ledger that is bound to another store is refused."""
        with disk_errors("opened"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._book = Book()
        self._site, self._store = site, store
        self._journal = LedgerJournal(folder / LEDGER_NAME)
        try:
            self._key = load_key(folder, create=not self._journal.rows(Head()))
            self._origin = site, self._key.fingerprint()
            self._catch_up()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file; all records are on disk already."""
        self._journal.close()

    @property
    def store(self) -> str | None:
        """The fingerprint of the store key that the ledger is bound to; None while it is not bound."""
        with self._current() as book:
            return book.store

    @property
    def sites(self) -> frozenset[str]:
        """The sites that have used the ledger."""
        with self._current() as book:
            return frozenset(book.sites)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the ledger's key, which identifies the ledger."""
        return self._origin[1]

    def bind(self) -> None:
        """Records, once, that this site's ledger belongs to the store that it was opened for."""

        def draft() -> list[Record]:
            if self._store is None:
                raise LedgerError("the ledger was not opened for a store: there is nothing to bind it to")
            is_bound = self._book.store == self._store and self._site in self._book.sites
            record = _record("bound", store=self._store, site=self._site)
            return [] if is_bound else [*self._opening(), record]

        self._commit(draft)

    def reserve(
        self,
        job: str,
        method: str,
        patients: Iterable[str],
        plan: Sequence[PlannedTask],
        limits: Limits,
        void: bool = False,
    ) -> None:
        """Reserves the whole plan's cost for these patients, or nothing.

        For a job that returns with the same plan and cohort, only the freed tasks are reserved again. Raises
        `BudgetRefused` if any patient could exceed a limit, if delta exceeds one over the number of patients, or if
        the job is already known with other terms.
        """
        digests = self._key.patients(patients)
        cohort = self._key.cohort(digests)
        events = {(t.task, t.round): t.events for t in plan}
        if len(events) < len(plan):
            raise BudgetRefused(f"job '{job}' plans a task twice in one round: give each a name of its own")

        def draft() -> list[Record]:
            mine = self._job(job)
            if mine and (mine.plan, mine.cohort, mine.method, mine.void) != (events, cohort, method, void):
                raise BudgetRefused(
                    f"job '{job}' has reserved another plan, or for other patients: give the new job a new id"
                )
            unreserved = [t for t in plan if not mine or not _holds(mine, (t.task, t.round))]
            if not unreserved:
                return []
            self._check(job, digests, by_round(unreserved), limits, reserved=True)
            items = [{"task": t.task, "round": t.round, "events": encode_events(t.events)} for t in unreserved]
            terms = {"method": method, "cohort": cohort, "void": void, "limits": vars(limits)}
            reservation = self._about("reserved", job, plan=items, **terms)
            return [*self._opening(), *self._registered(cohort, digests), reservation]

        self._commit(draft)

    def check(self, job: str, plan: Sequence[PlannedTask], limits: Limits) -> None:
        """Raises `BudgetRefused` unless the plan fits for any patient, even one who was in all other jobs.

        It uses no data, so that a refusal reveals nothing about patients.
        """
        with self._current() as book:
            others = events_of(debit for debit in book.all_debits(reserved=True) if debit.job != job)
            mine, book_job = book.of_job(job, reserved=True), self._job(job)
            unreserved = [t for t in plan if not book_job or not _holds(book_job, (t.task, t.round))]
            bounds = (
                (f"job '{job}' with those before it", limits.max_epsilon, [[*others, *mine]]),
                (f"job '{job}' alone", limits.max_epsilon_per_job, [mine]),
            )
            everybody = frozenset[str]().union(*book.cohorts.values())
            check_fits(bounds, by_round(unreserved), limits.delta, lambda: history(book, everybody, limits.delta))

    def begin(self, job: str, task: str, round: int, limits: Limits) -> LedgerCharge:
        """Charges the task. When it returns, the charge is on disk, and the task may use data.

        A task that has begun before is charged once more. Raises `BudgetRefused` for a task that was not reserved, or
        that would exceed a limit.
        """
        [row] = self._commit(lambda: [self._bill(job, (task, round), limits)])
        return self._book.charges[row.hash]

    def settle(self, job: str, task: str, round: int) -> LedgerCharge:
        """Records that the task's result is saved; returns its charge. Raises `BudgetRefused` if it has not begun."""

        def draft() -> list[Record]:
            self._last(job, task, round)
            is_settled = (task, round) in self._book.jobs[self._site, job].settled
            return [] if is_settled else [self._about("charged", job, task=task, round=round)]

        self._commit(draft)
        return self._last(job, task, round)

    def charge_of(self, job: str, task: str, round: int) -> LedgerCharge | None:
        """The charge of the last attempt at that task, None if it has not begun."""
        with self._current(), contextlib.suppress(BudgetRefused):
            return self._last(job, task, round)
        return None

    def free(self, job: str) -> int:
        """Frees the job's reserved tasks that never began; returns their number."""

        def draft() -> list[Record]:
            book_job = self._job(job)
            return [self._about("freed", job, tasks=len(book_job.reserved))] if book_job and book_job.reserved else []

        return sum(row.record["tasks"] for row in self._commit(draft))

    def take_back(self, job: str) -> int:
        """Gives back all reservations and charges of a job that released nothing; returns the number of its tasks.

        The caller must also delete the results of these tasks, because no charge covers them any more.
        """

        def draft() -> list[Record]:
            book_job = self._job(job)
            tasks = len(book_job.reserved | book_job.charges.keys()) if book_job else 0
            return [self._about("returned", job, tasks=tasks)] if tasks else []

        return sum(row.record["tasks"] for row in self._commit(draft))

    def holds(self, job: str) -> bool:
        """Whether the job has a reservation or a charge."""
        with self._current():
            book_job = self._job(job)
            return book_job is not None and bool(book_job.reserved or book_job.charges)

    def accounts(self, delta: float) -> tuple[Account, ...]:
        """Every cohort's account at `delta`, in the order in which the cohorts were registered."""
        with self._current() as book:
            return accounts_of(book, delta)

    def together(self, delta: float, reserved: bool) -> PrivacyCost:
        """The cost at `delta` for a patient in all cohorts, an upper bound for each; `reserved`: with reservations.

        It follows from the jobs alone and does not depend on which patients took part in which job.
        """
        with self._current() as book:
            return spent(events_of(book.all_debits(reserved)), delta)

    def head(self) -> tuple[int, str]:
        """Position and hash of the last record, to keep where the ledger's owner cannot change it."""
        with self._current() as book:
            return book.head

    def contains(self, seq: int, head: str) -> bool:
        """Whether the ledger holds this earlier head, or took over the charge that the head's record began.

        If False, the ledger was rolled back or replaced.
        """
        with self._current() as book:
            return self._journal.contains(Head(seq, head)) or book.took_over(head)

    def verify(self) -> None:
        """Reads the ledger again from its first record. Raises `LedgerError` at the first wrong record."""
        with self._current():
            self._journal.check()
            Book().apply(self._journal.rows(Head()))

    def rows(self) -> list[JournalRow]:
        """The whole journal. It holds keyed digests of patients: it stays on site."""
        with self._current():
            return self._journal.rows(Head())

    def export(self, path: Path) -> None:
        """Writes the journal to a new file, as lines of JSON. It stays on site, as `rows` does."""
        with self._current():
            write_export(path, self._journal.rows(Head()))

    def import_(self, path: Path) -> int:
        """Imports what `export` wrote, under the same key; returns the number of new records.

        If the export continues this ledger, its further records are appended unchanged; if this ledger continues the
        export, none are. Else the charges that this ledger lacks are imported with their cohorts. A charge is
        identified by the record that began it, so none is imported twice.
        """
        rows = read_export(path)
        source = Book()
        source.apply(rows)
        mine = self._book.origin or self._origin
        if source.origin is None or source.origin[1] != mine[1] or mine[0] not in source.sites:
            raise LedgerError(
                "the export was written by another site or under another key: start an empty ledger beside the key "
                "file that belongs to it"
            )

        def draft() -> list[Record]:
            here = self._book.head
            if here == Head() or any((row.seq, row.hash) == here for row in rows):
                return [row.record for row in rows[here.seq :]]
            return [] if self._journal.contains(source.head) else self._lacking(source)

        return len(self._commit(draft))

    def take_over(self, other: "Ledger", patients: Iterable[str]) -> int:
        """Imports all charges of a ledger under another key, each once; returns the number of new records.

        `patients`: the keys of all patients who may be in both. Charges on any other patient are kept under the other
        ledger's digest, which matches no patient here.
        """
        with other._current() as source:
            if any(job.reserved for job in source.jobs.values()):
                raise LedgerError(
                    "jobs have reserved a part of the budget in the other ledger: end them, or free it by --free"
                )
            digests = {other._key.patient(key): self._key.patient(key) for key in patients}
            members_by_cohort = {
                cohort: frozenset(digests.get(digest, digest) for digest in members)
                for cohort, members in source.cohorts.items()
            }
            names = {cohort: self._key.cohort(members) for cohort, members in members_by_cohort.items()}
            same = Book()
            same.head = source.head
            same.cohorts = {names[cohort]: members for cohort, members in members_by_cohort.items()}
            same.debits = {began: debit._replace(cohort=names[debit.cohort]) for began, debit in source.debits.items()}
        return len(self._commit(lambda: [*self._opening(), *self._lacking(same)]))

    def _commit(self, draft: Callable[[], list[Record]]) -> list[JournalRow]:
        """Writes and returns the records that `draft` makes from the current book, with other writers locked out."""
        with self._current():
            draft()  # Computes and caches costs, which takes seconds, before other writers are locked out.
            with self._journal.appending() as append:
                self._catch_up()
                rows = [append(record) for record in draft()]
            self._catch_up()
            return rows

    @contextlib.contextmanager
    def _current(self) -> Iterator[Book]:
        with self._lock:
            self._catch_up()
            yield self._book

    def _catch_up(self) -> None:
        book = self._book
        book.apply(self._journal.rows(book.head))
        if book.origin is None:
            return
        if self._store is not None and book.store not in (None, self._store):
            raise LedgerError(
                "the budget ledger belongs to a store of another pseudonym key: ingest these patients with that key, "
                "or name the ledger of this store in site.yml"
            )
        joins = self._store is not None and book.store == self._store
        if book.origin[1] != self._origin[1] or not (joins or self._site in book.sites):
            raise LedgerError("the budget ledger belongs to another site or another key: use this site's own folder")

    def _job(self, job: str) -> LedgerJob | None:
        return self._book.jobs.get((self._site, job))

    def _about(self, event: str, job: str, **terms: object) -> Record:
        """A record about this site's part of a job. It names the site, unless this site opened the ledger."""
        opener = self._book.origin is None or self._book.origin[0] == self._site
        return _record(event, job=job, **({} if opener else {"site": self._site}), **terms)

    def _last(self, job: str, task: str, round: int) -> LedgerCharge:
        book_job = self._job(job)
        charge = book_job.charges.get((task, round)) if book_job else None
        if charge is None:
            raise BudgetRefused(f"task '{task}' of job '{job}' has not begun in round {round}: it has no charge")
        return charge

    def _bill(self, name: str, slot: Slot, limits: Limits) -> Record:
        book, job = self._book, self._job(name)
        if job is None or not _holds(job, slot):
            raise BudgetRefused(
                f"job '{name}' holds no reservation for task '{slot[0]}' in round {slot[1]}: reserve it first"
            )
        patients, events, delta = book.cohorts[job.cohort], job.plan[slot], limits.delta
        past = job.charges.get(slot)
        # A first attempt is reserved, so it must fit only beside spent costs. A repeat must leave room for the rest.
        self._check(name, patients, [events], limits, reserved=past is not None)
        alone = book.of_job(name, reserved=False, site=self._site)
        return self._about(
            "begun",
            name,
            task=slot[0],
            round=slot[1],
            attempt=past.attempt + 1 if past else 1,
            delta=delta,
            epsilon_before=book.worst(patients, False, (), delta).epsilon,
            epsilon_after=book.worst(patients, False, events, delta).epsilon,
            job_epsilon_before=spent(alone, delta).epsilon,
            job_epsilon_after=spent([*alone, *events], delta).epsilon,
        )

    def _check(
        self, job: str, patients: frozenset[str], rounds: Sequence[Sequence[DPEvent]], limits: Limits, reserved: bool
    ) -> None:
        """Raises `BudgetRefused` if these further rounds exceed a limit. `reserved`: reservations count as spent."""
        if limits.delta * len(patients) > 1:
            raise BudgetRefused("delta is more than one over the number of patients: the site must set a smaller one")
        book, delta = self._book, limits.delta
        bounds = (
            (f"job '{job}' with those before it", limits.max_epsilon, book.exposures(patients, reserved)),
            (f"job '{job}' alone", limits.max_epsilon_per_job, [book.of_job(job, reserved)]),
        )
        check_fits(bounds, rounds, delta, lambda: history(book, patients, delta))

    def _opening(self) -> list[Record]:
        site, key = self._origin
        return [] if self._book.origin else [_record("opened", site=site, key=key)]

    def _registered(self, cohort: str, patients: frozenset[str]) -> list[Record]:
        is_registered = cohort in self._book.cohorts
        return [] if is_registered else [_record("cohort", cohort=cohort, patients=sorted(patients))]

    def _lacking(self, source: Book) -> list[Record]:
        debits = {began: debit for began, debit in source.debits.items() if began not in self._book.debits}
        cohorts = dict.fromkeys(debit.cohort for debit in debits.values())
        records = [record for cohort in cohorts for record in self._registered(cohort, source.cohorts[cohort])]
        for began, debit in debits.items():
            debit_json = debit._asdict() | {"events": encode_events(debit.events)}
            records.append(_record("imported", source=list(source.head), began=began, debit=debit_json))
        return records


def _record(event: str, **terms: object) -> Record:
    return {"format": FORMAT, "event": event, "time": datetime.now(UTC).isoformat(timespec="seconds"), **terms}


def _holds(job: LedgerJob, slot: Slot) -> bool:
    return slot in job.reserved or slot in job.charges
