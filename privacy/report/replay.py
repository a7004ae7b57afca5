"""The ledger in a report: quoted without patients, checked by its own chain, and replayed charge by charge."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from privacy.accounting import PRV_ERROR, PrivacyCost, spent
from privacy.ledger_journal import Head, JournalRow, LedgerError, link
from privacy.ledger_replay import FORMAT, Book, Debit, JobKey, LedgerCharge, events_of
from privacy.mechanisms import DPEvent
from privacy.report.report_evidence import LedgerRow

TOLERANCE = 1e-6
"""The largest relative difference between the figures of two machines.

It is the verifier's own, and no report carries it: else a report could choose how wrong its figures may be.
"""


def quote_ledger(rows: Iterable[JournalRow]) -> tuple[LedgerRow, ...]:
    """The journal's records. Those that list patients' digests are quoted by their hash alone."""
    return tuple(
        LedgerRow(seq=row.seq, prev=row.prev, hash=row.hash, record=None if _of_patients(row) else row.record)
        for row in rows
    )


def same(first: float | None, second: float | None) -> bool:
    """Whether two figures are equal up to the last digits, in which machines may differ."""
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=1e-12)


class ReplayedCharge(NamedTuple):
    """A charge in the chain. `charge` is None for one that was imported from another ledger, whose figures are not
    here.
    """

    seq: int
    hash: str
    time: str
    debit: Debit
    charge: LedgerCharge | None


class Replay:
    """The state of the ledger after its quoted records.

    A withheld record can only register a cohort: there is one for each cohort, before the first record that names it.
    So no withheld record can hide a charge.

    Raises `LedgerError` if the chain is broken or a record contradicts those before it.
    """

    def __init__(self, quoted: Sequence[LedgerRow], site: str) -> None:
        rows = list(_with_cohorts(quoted))
        self.book = Book()
        self.book.apply(rows)
        if self.book.origin and site not in self.book.sites:
            raise LedgerError("the quoted ledger is of another site")
        by_hash = {row.record.get("began", row.hash): row for row in rows}
        self.charges = [
            ReplayedCharge(
                by_hash[began].seq,
                by_hash[began].hash,
                by_hash[began].record["time"],
                debit,
                self.book.charges.get(began),
            )
            for began, debit in self.book.debits.items()
        ]

    def events(self, job: JobKey | None = None, reserved: bool = False) -> list[DPEvent]:
        """All charged events, of one job at one site or of all jobs; if `reserved`, also those that may still begin."""
        return events_of(debit for debit in self.book.all_debits(reserved) if job in (None, debit.key))

    def at(self, item: ReplayedCharge) -> PrivacyCost | None:
        """The cost of a charge's job up to this charge, by this ledger; None for a charge that was taken over."""
        if item.charge is None:
            return None
        before = (other.debit for other in self.charges if other.seq <= item.seq and other.debit.key == item.debit.key)
        return spent(events_of(before), item.charge.delta)

    def is_last(self, item: ReplayedCharge) -> bool:
        """Whether the job has no later charge."""
        return all(other.seq <= item.seq for other in self.charges if other.debit.key == item.debit.key)

    def settled(self, item: ReplayedCharge) -> bool:
        """Whether the result of the charged task was saved."""
        job = self.book.jobs.get(item.debit.key)
        slot = item.debit.task, item.debit.round
        return item.charge is None or bool(job and slot in job.settled and job.charges[slot] == item.charge)

    def recorded_wrongly(self, job: JobKey) -> Iterator[int]:
        """The positions of charges whose figures differ from the replay's: of this job any charge, of others only the
        last.
        """
        for item in self.charges:
            cost = self.at(item) if item.debit.key == job or self.is_last(item) else None
            if item.charge is None or cost is None:
                continue
            if not same(item.charge.job_epsilon_after, cost.epsilon) or not self._is_possible(item, item.charge):
                yield item.seq

    def _is_possible(self, item: ReplayedCharge, charge: LedgerCharge) -> bool:
        """Whether the worst-off patient's figure lies between that of this cohort alone and that of all charges.

        A report does not tell which patients are in several cohorts. With a single cohort, both figures are equal.
        """
        if not self.is_last(item):
            return True
        before = [other.debit for other in self.charges if other.seq <= item.seq]
        least = spent(events_of(debit for debit in before if debit.cohort == item.debit.cohort), charge.delta).epsilon
        most = spent(events_of(before), charge.delta).epsilon
        if len(self.book.cohorts) == 1:
            return same(charge.epsilon_after, most)
        return least - PRV_ERROR <= charge.epsilon_after <= most + PRV_ERROR


def _with_cohorts(quoted: Sequence[LedgerRow]) -> Iterator[JournalRow]:
    """The rows, with placeholder cohorts in the place of withheld registrations. Raises `LedgerError`."""
    head, cohorts = Head(), _cohort_names(quoted)
    for row in quoted:
        record = {} if row.record is None else dict(row.record)
        if (row.seq, row.prev) != (head.seq + 1, head.hash) or (record and link(row.prev, record) != row.hash):
            raise LedgerError(f"record {row.seq} of the quoted ledger does not follow from those before it")
        if not record:
            cohort = next(cohorts, None)
            if cohort is None:
                raise LedgerError(f"record {row.seq} of the quoted ledger is withheld, and registers no cohort")
            record = {"format": FORMAT, "event": "cohort", "time": "", "cohort": cohort, "patients": []}
        head = Head(row.seq, row.hash)
        yield JournalRow(row.seq, row.prev, row.hash, record)


def _cohort_names(quoted: Sequence[LedgerRow]) -> Iterator[str]:
    """Each cohort, in the order in which records name them first."""
    records: list[dict[str, Any]] = [row.record or {} for row in quoted]
    cohorts = [record.get("cohort") or (record.get("debit") or {}).get("cohort") for record in records]
    return iter(dict.fromkeys(str(cohort) for cohort in cohorts if cohort))


def _of_patients(row: JournalRow) -> bool:
    return bool(row.record["event"] == "cohort")
