"""The end of a job at a site, however it came: what it set aside is given back, and the log says that it is over.

A job's own process does it when the job ends; the site's process does it for jobs whose process did not come to that.
"""

import contextlib
from collections.abc import Collection
from pathlib import Path

from audits import AuditKey, AuditLog, Entry, Event, Kind, Outcome, Refusal, origin_of, read
from medfedvqa.federation.job_budget import look_into
from medfedvqa.federation.live_processes import live_processes
from medfedvqa.federation.site_config import SiteConfig

LATE = "the site closed the job: its process had ended without doing so"

_LAST = "evaluate"
"""The task with which each method ends."""

_BY_DATA = {Refusal.DATA, Refusal.FAILED, Refusal.MESSAGE}
"""Codes of refusals that may have depended on data that a task had read: who was told of one has learnt something."""


def settle(config: SiteConfig, job_id: str) -> None:
    """Gives back what a job that is over set aside, and, if nothing of it left the site, all that it was charged.

    What its tasks had computed is then removed: without a charge it may never leave. Raises `LedgerError`, `LogError`.
    """
    if not config.ledger.is_dir():
        return
    with contextlib.closing(look_into(config)) as ledger:
        if _left_something(config.audit, job_id):
            ledger.free(job_id)
        elif ledger.holds(job_id):
            # It imports torch, which takes seconds; most jobs are closed without.
            from medfedvqa.federation.site_state import StateFile

            StateFile(config.state, job_id).forget()
            ledger.take_back(job_id)


def _left_something(audit: Path, job_id: str) -> bool:
    """Whether anybody was sent, or told, anything that may depend on the site's data.

    True also for a job that came to its end: the site keeps its model.
    """
    for entry in read(audit):
        if entry.job != job_id:
            continue
        if entry.event is Event.RELEASE and (
            entry.task == _LAST or entry.outcome is Outcome.REFUSED or _has_data(entry)
        ):
            return True
        if entry.event is Event.REFUSAL and (entry.admission or {}).get("code") in _BY_DATA:
            return True
    return False


def _has_data(entry: Entry) -> bool:
    return any(tensor.kind is not Kind.PUBLIC for tensor in entry.tensors)


def close_ended(config: SiteConfig, running: Collection[str]) -> list[str]:
    """Settles and closes every job that is open at this site and not `running`; their ids.

    Raises `LedgerError`, `LogError`.
    """
    late = [entry for entry in _open(config) if entry.job not in {*running, *live_processes(config.audit).jobs}]
    with contextlib.closing(
        AuditLog(config.audit, config.name, AuditKey.at(config.audit_key, origin_of(config.name)))
    ) as log:
        for entry in late:
            settle(config, str(entry.job))
            log.append(Event.CLOSE, job=entry.job, method=entry.method, reason=LATE)
    return [str(entry.job) for entry in late]


def _open(config: SiteConfig) -> list[Entry]:
    """The first entry of each job that the log does not close."""
    jobs: dict[str | None, Entry] = {}
    if not config.audit.is_dir():
        return []
    for entry in read(config.audit):
        if entry.event in (Event.ADMITTED, Event.OPEN) and entry.outcome is not Outcome.REFUSED:
            jobs.setdefault(entry.job, entry)
        elif entry.event is Event.CLOSE:
            jobs.pop(entry.job, None)
    return list(jobs.values())
