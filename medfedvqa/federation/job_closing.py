"""The log entries of a job's end at a site, whether it ran or was refused before it had a process. Its unused
reservation is freed, and a daily limit of refusals protects the disk.

The job's own process does this when the job ends. The site's process does it for jobs whose process died before.
"""

import contextlib
import json
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path

from audits import AuditKey, AuditLog, Entry, Event, Kind, Outcome, Refusal, origin_of, read
from audits.log_files import segments
from medfedvqa.federation.job_budget import look_into
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_database import site_database
from medfedvqa.federation.task_order import LAST

LATE = "the site closed the job: its process had ended without doing so"

_DATA_DEPENDENT = {Refusal.DATA, Refusal.FAILED, Refusal.MESSAGE, Refusal.MEMORY, Refusal.DISK}
"""Refusals that may depend on data that a task read: the server learns something from their code."""


def settle_job(config: SiteConfig, job_id: str) -> None:
    """Free what a finished job reserved. If nothing of it left the site, take back all of its charges as well.

    In that case the results of its tasks are removed: without a charge they may never leave. Raises `LedgerError`,
    `LogError`.
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
    """Whether anything left the site, a refusal included, that may depend on the site's data.

    This is also true of a job that reached its last task: the site keeps its model.
    """
    for entry in read(audit):
        if entry.job != job_id:
            continue
        if entry.event is Event.RELEASE and (
            entry.task == LAST
            or entry.outcome is Outcome.REFUSED
            or any(tensor.kind is not Kind.PUBLIC for tensor in entry.tensors)
        ):
            return True
        if entry.event is Event.REFUSAL and (entry.admission or {}).get("code") in _DATA_DEPENDENT:
            return True
    return False


def close_ended(
    config: SiteConfig, running: Collection[str], is_over: Callable[[str], bool] = lambda job_id: True
) -> list[str]:
    """Settle and close every job that is open at this site and not `running`; returns their ids.

    `is_over` confirms each job first, and may end a process that still works on it. Raises `LedgerError`, `LogError`.
    """
    late = [entry for entry in _open(config) if entry.job not in running and is_over(str(entry.job))]
    with contextlib.closing(
        AuditLog(config.audit, config.name, AuditKey.at(config.audit_key, origin_of(config.name)))
    ) as log:
        for entry in late:
            settle_job(config, str(entry.job))
            log.append(Event.CLOSE, job=entry.job, method=entry.method, reason=LATE)
    return [str(entry.job) for entry in late]


def _open(config: SiteConfig) -> list[Entry]:
    """The first entry of each job that the log opens and does not close."""
    jobs: dict[str | None, Entry] = {}
    if not segments(config.audit):
        return []
    for entry in read(config.audit):
        if entry.event in (Event.ADMITTED, Event.OPEN) and entry.outcome is not Outcome.REFUSED:
            jobs.setdefault(entry.job, entry)
        elif entry.event is Event.CLOSE:
            jobs.pop(entry.job, None)
    return list(jobs.values())


MOST_ENTRIES = 1_000
"""The most entries of one day (UTC). Further jobs are only counted, and the count is an entry of the next day."""
_FILE_OF_0_2_0 = "refusals"


def _today() -> date:
    return datetime.now(UTC).date()


class RefusalEntries:
    """Logs refused jobs, up to a number each day, and counts the others.

    The count is in the site's database, since a server may restart a site's process at will.
    """

    def __init__(self, log: AuditLog, state: Path, today: Callable[[], date] = _today) -> None:
        """`state`: the folder of the database."""
        self._log, self._state, self._today = log, state, today

    def enter(self, code: Refusal, job: str | None, configuration: str | None) -> None:
        """Log a refused job, or only count it if there are many. Raises `LogError`, `SiteDatabaseError`.

        `configuration`: SHA-256 of the site's configuration file. It is not the definition that `JobSpec` digests: a
        file that is refused may hold no job.
        """
        today, before = self._today().isoformat(), self._counted()
        for day, count in before.items():
            if day != today and count > MOST_ENTRIES:
                self._summarise(f"{count - MOST_ENTRIES} further jobs were refused on {day}", count - MOST_ENTRIES)
        count = before.get(today, 0) + 1
        with site_database(self._state) as database, database.writing() as connection:
            connection.execute("DELETE FROM refusals")
            connection.execute("INSERT INTO refusals VALUES (?, ?)", (today, count))
        (self._state / _FILE_OF_0_2_0).unlink(missing_ok=True)
        if count <= MOST_ENTRIES:
            admission = {"code": code.value, "configuration": configuration}
            self._log.append(Event.REFUSAL, job=job, outcome=Outcome.REFUSED, reason=code.sentence, admission=admission)
        elif count == MOST_ENTRIES + 1:
            self._summarise("further jobs that are refused today are only counted", 0)

    def _summarise(self, reason: str, count: int) -> None:
        admission = {"code": Refusal.THROTTLED.value, "configuration": None, "count": count}
        self._log.append(Event.REFUSAL, outcome=Outcome.REFUSED, reason=reason, admission=admission)

    def _counted(self) -> dict[str, int]:
        """The last day's count, which version 0.2.0 kept in a file."""
        with site_database(self._state) as database, database.reading() as connection:
            counts = dict(connection.execute("SELECT day, count FROM refusals").fetchall())
        with suppress(OSError, ValueError, TypeError):
            day, count = json.loads((self._state / _FILE_OF_0_2_0).read_text(encoding="ascii"))
            counts.setdefault(str(day), int(count))
        return counts
