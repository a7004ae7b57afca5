"""Log entries of jobs that a courier refuses before they have a process. A daily limit protects the disk."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path

from audits import AuditLog, Event, Outcome, Refusal
from medfedvqa.federation.site_database import site_database

MOST_ENTRIES = 1_000
"""The most entries of one day (UTC). Further jobs are only counted, and the count is an entry of the next day."""
_FILE_OF_0_2_0 = "refusals"


def _today() -> date:
    return datetime.now(UTC).date()


class RefusalEntries:
    """Counts in the site's database, since a server may restart a site's process at will."""

    def __init__(self, log: AuditLog, state: Path, today: Callable[[], date] = _today) -> None:
        """`state`: the folder of the database."""
        self._log, self._state, self._today = log, state, today

    def enter(self, code: Refusal, job: str | None, configuration: str | None) -> None:
        """Log one refused job, or count it. Raises `LogError`, `SiteDatabaseError`.

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
