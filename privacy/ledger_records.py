"""The grammar of the ledger's records, one class for each event, and the check of a record against it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from audits.field_types import Fit, members_of

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
    """Whether a record fits the grammar of this version, or is of a newer format or event."""
    number, event = record.get("format"), record.get("event")
    if type(number) is not int or number < 1 or not isinstance(event, str):
        return Fit.NO
    return _GRAMMARS[number, event].fit(record) if (number, event) in _GRAMMARS else Fit.NEWER
