"""Replays the ledger's records in order into cohorts, jobs and charges."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from audits.entry import Fit, members_of
from privacy.accounting import PrivacyCost, spent
from privacy.errors import NewerMechanism, PrivacyError
from privacy.ledger_journal import Head, JournalRow, LedgerError, NewerRecord, OlderRecord, Record
from privacy.mechanisms import DPEvent

FORMAT = 1
"""The format number of the records that this version writes."""
_OPTIONAL = {"optional": True}


@dataclass(frozen=True, kw_only=True)
class _Record:
    format: int = FORMAT
    event: str
    time: str


@dataclass(frozen=True, kw_only=True)
class _LedgerOpening(_Record):
    site: str
    key: str


@dataclass(frozen=True, kw_only=True)
class _Bound(_Record):
    store: str
    site: str


@dataclass(frozen=True, kw_only=True)
class _Cohort(_Record):
    cohort: str
    patients: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _OfJob(_Record):
    job: str
    site: str | None = field(default=None, metadata=_OPTIONAL)
    """Left out by the site that opened the ledger."""


@dataclass(frozen=True, kw_only=True)
class _GivenBack(_OfJob):
    tasks: int


@dataclass(frozen=True)
class _Limits:
    max_epsilon: float | None
    delta: float
    max_epsilon_per_job: float | None


@dataclass(frozen=True)
class _PlanRecord:
    task: str
    round: int
    events: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class _Reservation(_OfJob):
    plan: tuple[_PlanRecord, ...]
    method: str
    cohort: str
    void: bool
    limits: _Limits


@dataclass(frozen=True, kw_only=True)
class _OfCharge(_OfJob):
    task: str
    round: int


@dataclass(frozen=True, kw_only=True)
class _Begun(_OfCharge):
    attempt: int
    delta: float
    epsilon_before: float
    epsilon_after: float
    job_epsilon_before: float
    job_epsilon_after: float


@dataclass(frozen=True, kw_only=True)
class _Debit:
    job: str
    method: str
    cohort: str
    void: bool
    task: str
    round: int
    attempt: int
    events: tuple[Mapping[str, Any], ...]
    site: str | None = field(default=None, metadata=_OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class _Import(_Record):
    source: tuple[Any, ...]
    """Position and hash of the other ledger's last record."""
    began: str
    debit: _Debit


_EVENTS: Mapping[str, type] = {
    **{"opened": _LedgerOpening, "bound": _Bound, "cohort": _Cohort, "reserved": _Reservation, "begun": _Begun},
    **{"charged": _OfCharge, "freed": _GivenBack, "returned": _GivenBack, "imported": _Import},
}
_GRAMMARS = {
    (number, event): members_of(kind, number) for number in range(1, FORMAT + 1) for event, kind in _EVENTS.items()
}


def fit_of(record: Mapping[str, Any]) -> Fit:
    """Whether a record has this version's form, or a newer format or event."""
    number, event = record.get("format"), record.get("event")
    if type(number) is not int or number < 1 or not isinstance(event, str):
        return Fit.NO
    return _GRAMMARS[number, event].fit(record) if (number, event) in _GRAMMARS else Fit.NEWER


Slot: TypeAlias = tuple[str, int]
"""A task's name and its round."""
JobKey: TypeAlias = tuple[str, str]
"""A site and a job's id: the sites of one store share a ledger, and each has its own part of a job."""


@dataclass(frozen=True)
class PlannedTask:
    """One task of a job that will use data, and the mechanisms that it will apply."""

    task: str
    round: int
    events: tuple[DPEvent, ...]


@dataclass(frozen=True)
class LedgerCharge:
    """One attempt at a task, charged for good. Epsilons (at `delta`) are those before and after this charge.

    `epsilon_*`: spent by the cohort's worst-off patient over all jobs; `job_epsilon_*`: by this job alone. `seq` and
    `head`: position and hash of the record that began the charge. `void`: the noise can be repeated, so that the charge
    protects nobody.
    """

    job: str
    task: str
    round: int
    attempt: int
    events: tuple[DPEvent, ...]
    delta: float
    epsilon_before: float
    epsilon_after: float
    job_epsilon_before: float
    job_epsilon_after: float
    seq: int
    head: str
    void: bool


class Debit(NamedTuple):
    """The events of one attempt on a cohort, for the accountants to compose. Attempt 0: they are only reserved."""

    job: str
    method: str
    cohort: str
    void: bool
    task: str
    round: int
    attempt: int
    events: tuple[DPEvent, ...]
    site: str

    @property
    def key(self) -> JobKey:
        """The job's key in the book."""
        return self.site, self.job


@dataclass
class LedgerJob:
    """A job at one site: its plan, the reserved tasks that have not begun, and the last charge of those that have."""

    site: str
    name: str
    method: str
    cohort: str
    void: bool
    plan: dict[Slot, tuple[DPEvent, ...]] = field(default_factory=dict)
    reserved: set[Slot] = field(default_factory=set)
    charges: dict[Slot, LedgerCharge] = field(default_factory=dict)
    settled: set[Slot] = field(default_factory=set)

    def debit(self, slot: Slot, attempt: int) -> Debit:
        return Debit(self.name, self.method, self.cohort, self.void, *slot, attempt, self.plan[slot], self.site)


class Book:
    """The state after the records up to `head`.

    `origin`: the site and the key's fingerprint in the first record. `store`: the fingerprint of the store key that the
    ledger is bound to, None while it is not bound. `sites`: the sites that may use the ledger. `debits` holds all
    charges, imported ones included, `charges` only this ledger's own, both by the hash of the record that began the
    charge.
    """

    def __init__(self) -> None:
        self.head = Head()
        self.origin: tuple[str, str] | None = None
        self.store: str | None = None
        self.sites: set[str] = set()
        self.cohorts: dict[str, frozenset[str]] = {}
        self.jobs: dict[JobKey, LedgerJob] = {}
        self.debits: dict[str, Debit] = {}
        self.charges: dict[str, LedgerCharge] = {}
        self._cohorts_of: dict[str, set[str]] = {}

    def apply(self, rows: Iterable[JournalRow]) -> None:
        """Replays further rows. Raises `LedgerError` at the first that does not follow from those before it,
        `NewerRecord` at the first of a newer version, `OlderRecord` at one without a format number."""
        for row in rows:
            if "format" not in row.record:
                raise OlderRecord(row.seq)
            fit = fit_of(row.record)
            if fit is Fit.NEWER:
                raise NewerRecord(row.seq)
            try:
                if not fit:
                    raise ValueError("the record is not written as one of its event")
                _REPLAY[row.record["event"]](self, row)
            except NewerMechanism:
                raise NewerRecord(row.seq) from None
            except (KeyError, TypeError, ValueError, PrivacyError):
                raise LedgerError(
                    f"record {row.seq} of the budget ledger does not follow from those before it: use the version of "
                    "this software that wrote it, or restore the ledger from its latest export"
                ) from None
            self.head = Head(row.seq, row.hash)

    def near(self, patients: Iterable[str]) -> set[str]:
        """The ids of the cohorts to which any of these patients belongs."""
        return set().union(*(self._cohorts_of.get(patient, ()) for patient in patients))

    def exposures(self, patients: Iterable[str], reserved: bool) -> list[list[DPEvent]]:
        """The events on these patients, one list for patients in the same cohorts. `reserved`: with reservations.

        Patients whose cohorts are all among another patient's cannot be worse off than that one, and are left out.
        """
        groups = {frozenset(self._cohorts_of.get(patient, ())) for patient in patients} or {frozenset()}
        widest = [group for group in groups if not any(group < other for other in groups)]
        debits = list(self.all_debits(reserved))
        return [events_of(debit for debit in debits if debit.cohort in group) for group in widest]

    def worst(self, patients: Iterable[str], reserved: bool, more: Sequence[DPEvent], delta: float) -> PrivacyCost:
        """The largest cost among these patients, with the events `more` added."""
        totals = [spent([*events, *more], delta) for events in self.exposures(patients, reserved)]
        return max(totals, key=lambda total: total.epsilon)

    def of_job(self, job: str, reserved: bool, site: str | None = None) -> list[DPEvent]:
        """The events of one job at one site, or at all sites, on any cohort."""
        debits = self.all_debits(reserved)
        return events_of(debit for debit in debits if debit.job == job and site in (None, debit.site))

    def took_over(self, began: str) -> bool:
        """Whether this ledger imported another ledger's charge. `began`: the hash of the record there that began the
        charge.
        """
        return began in self.debits and began not in self.charges

    def all_debits(self, reserved: bool) -> Iterator[Debit]:
        """Every charge and, if `reserved`, every reservation that may still begin."""
        yield from self.debits.values()
        if reserved:
            yield from (job.debit(slot, attempt=0) for job in self.jobs.values() for slot in job.reserved)

    def _opened(self, row: JournalRow) -> None:
        if row.seq != 1:
            raise ValueError("only the first record opens a ledger")
        self.origin = row.record["site"], row.record["key"]
        self.sites.add(row.record["site"])

    def _bound(self, row: JournalRow) -> None:
        store, site = row.record["store"], row.record["site"]
        if not isinstance(store, str) or self.store not in (None, store):
            raise ValueError("the ledger names two store keys, but a ledger belongs to one")
        if self.store is None and site not in self.sites:
            raise ValueError("the site that opened the ledger binds it")
        self.store = store
        self.sites.add(site)

    def _cohort(self, row: JournalRow) -> None:
        cohort, patients = row.record["cohort"], frozenset(row.record["patients"])
        self.cohorts[cohort] = patients
        for patient in patients:
            self._cohorts_of.setdefault(patient, set()).add(cohort)

    def _reserved(self, row: JournalRow) -> None:
        record, key = row.record, self._key(row)
        plan = {(task["task"], task["round"]): decode_events(task["events"]) for task in record["plan"]}
        self._require_cohort(record["cohort"])
        job = self.jobs.setdefault(key, LedgerJob(*key, record["method"], record["cohort"], record["void"]))
        job.plan |= plan
        job.reserved |= plan.keys()

    def _begun(self, row: JournalRow) -> None:
        record = row.record
        job, slot = self.jobs[self._key(row)], (record["task"], record["round"])
        if slot not in job.charges:
            job.reserved.remove(slot)
        job.settled.discard(slot)
        figures = {name: record[name] for name in FIGURES}
        slot_terms = {"job": job.name, "task": record["task"], "round": record["round"], "attempt": record["attempt"]}
        charge = LedgerCharge(**slot_terms, events=job.plan[slot], **figures, seq=row.seq, head=row.hash, void=job.void)
        job.charges[slot] = self.charges[row.hash] = charge
        self.debits[row.hash] = job.debit(slot, record["attempt"])

    def _charged(self, row: JournalRow) -> None:
        job, slot = self.jobs[self._key(row)], (row.record["task"], row.record["round"])
        if slot not in job.charges:
            raise KeyError("a task is charged only after it has begun")
        job.settled.add(slot)

    def _freed(self, row: JournalRow) -> None:
        self.jobs[self._key(row)].reserved.clear()

    def _returned(self, row: JournalRow) -> None:
        key = self._key(row)
        job = self.jobs[key]
        for began in [head for head, debit in self.debits.items() if debit.key == key and head in self.charges]:
            del self.debits[began], self.charges[began]
        for slots in (job.reserved, job.charges, job.settled):
            slots.clear()

    def _imported(self, row: JournalRow) -> None:
        debit_json = {"site": self._opener, **row.record["debit"]}
        self._require_cohort(debit_json["cohort"])
        self.debits[row.record["began"]] = Debit(**{**debit_json, "events": decode_events(debit_json["events"])})

    def _key(self, row: JournalRow) -> JobKey:
        """The site and job of a record; records of the site that opened the ledger do not name the site."""
        site = row.record.get("site", self._opener)
        if site not in self.sites:
            raise KeyError("a site is bound to the store before it uses the ledger")
        return site, row.record["job"]

    @property
    def _opener(self) -> str:
        if self.origin is None:
            raise ValueError("the first record must open the ledger")
        return self.origin[0]

    def _require_cohort(self, cohort: str) -> None:
        if cohort not in self.cohorts:
            raise KeyError("a cohort is registered before it is charged")


FIGURES = ("delta", "epsilon_before", "epsilon_after", "job_epsilon_before", "job_epsilon_after")

_REPLAY: Mapping[str, Callable[[Book, JournalRow], None]] = {
    "opened": Book._opened,
    "bound": Book._bound,
    "cohort": Book._cohort,
    "reserved": Book._reserved,
    "begun": Book._begun,
    "charged": Book._charged,
    "freed": Book._freed,
    "returned": Book._returned,
    "imported": Book._imported,
}


def events_of(debits: Iterable[Debit]) -> list[DPEvent]:
    """The events of these debits, in one list."""
    return [event for debit in debits for event in debit.events]


def encode_events(events: Iterable[DPEvent]) -> list[Record]:
    """Events as a record holds them; `decode_events` reads them back."""
    return [event.to_dict() for event in events]


def decode_events(events: Collection[Record]) -> tuple[DPEvent, ...]:
    """Reads what `encode_events` wrote. Raises `ValueError`, `TypeError` or `KeyError` for anything else."""
    return tuple(DPEvent.from_dict(event) for event in events)
