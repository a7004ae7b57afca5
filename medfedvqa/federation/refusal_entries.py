"""Entries of jobs that a courier refuses before they have a process; bounded in a day: hostile ones fill no disk."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

from audits import AuditLog, Event, Outcome, Refusal
from medfedvqa.atomic_files import write_whole

MOST_ENTRIES = 1_000
"""Entries of one day (UTC); the jobs that follow are counted, and the count is an entry of the next day."""


def _today() -> date:
    return datetime.now(UTC).date()


class RefusalEntries:
    """Counts in a file, as a server may restart a site's process as often as it likes."""

    def __init__(self, log: AuditLog, counts: Path, today: Callable[[], date] = _today) -> None:
        """`counts`: a file of its own."""
        self._log, self._counts, self._today = log, counts, today

    def enter(self, code: Refusal, job: str | None, configuration: str | None) -> None:
        """Log one refused job, or count it. Raises `LogError`, `OSError`.

        `configuration`: SHA-256 of the site's configuration file. It is not the definition that `JobSpec` digests: a
        file that is refused may hold no job.
        """
        today = self._today().isoformat()
        day, count = self._read()
        if day != today:
            if count > MOST_ENTRIES:
                self._summarise(f"{count - MOST_ENTRIES} further jobs were refused on {day}", count - MOST_ENTRIES)
            count = 0
        count += 1
        write_whole(self._counts, json.dumps([today, count]).encode())
        if count <= MOST_ENTRIES:
            admission = {"code": code.value, "configuration": configuration}
            self._log.append(Event.REFUSAL, job=job, outcome=Outcome.REFUSED, reason=code.sentence, admission=admission)
        elif count == MOST_ENTRIES + 1:
            self._summarise("further jobs that are refused today are only counted", 0)

    def _summarise(self, reason: str, count: int) -> None:
        admission = {"code": Refusal.THROTTLED.value, "configuration": None, "count": count}
        self._log.append(Event.REFUSAL, outcome=Outcome.REFUSED, reason=reason, admission=admission)

    def _read(self) -> tuple[str, int]:
        try:
            day, count = json.loads(self._counts.read_text(encoding="ascii"))
        except (OSError, ValueError, TypeError):
            return "", 0
        return str(day), int(count)
