"""The three verdicts on each log, kept until they are asked for again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from audits.errors import LogError
from audits.examine import Examination, check_site, examine


@dataclass(frozen=True)
class Checked:
    """What was found about a log at `time` (UTC), or why nothing can be."""

    time: str
    found: Examination | None
    reason: str = ""


class Checks:
    """Verdicts on these logs (site: folder); `against`: files and folders that others hold, by site."""

    def __init__(self, logs: Mapping[str, Path], against: Mapping[str, Sequence[Path]]) -> None:
        self._logs, self._against = dict(logs), dict(against)
        self._latest: dict[str, Checked] = {}

    def latest(self, site: str) -> Checked:
        """The verdicts on a log as they were when it was last checked."""
        return self._latest.get(site) or self.check(site)

    def check(self, site: str) -> Checked:
        """The verdicts on a log as it is now."""
        folder, time = self._logs[site], datetime.now(UTC).isoformat(timespec="seconds")
        try:
            self._latest[site] = Checked(time, examine(folder, check_site(folder, site), self._against.get(site, ())))
        except LogError as error:
            self._latest[site] = Checked(time, None, str(error))
        return self._latest[site]
