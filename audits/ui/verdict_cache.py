"""The three verdicts on each log, kept until they are asked for again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from audits.errors import LogError
from audits.examination import Examination

Judge = Callable[[], Examination]


@dataclass(frozen=True)
class Checked:
    """What was found about a log at `time` (UTC), or why nothing can be."""

    time: str
    found: Examination | None
    reason: str = ""


class Checks:
    """Verdicts by site, as `judges` give them."""

    def __init__(self, judges: Mapping[str, Judge]) -> None:
        self._judges = dict(judges)
        self._latest: dict[str, Checked] = {}

    def latest(self, site: str) -> Checked:
        """The verdicts on a log as they were when it was last checked."""
        return self._latest.get(site) or self.check(site)

    def check(self, site: str) -> Checked:
        """The verdicts on a log as it is now."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            self._latest[site] = Checked(time, self._judges[site]())
        except LogError as error:
            self._latest[site] = Checked(time, None, str(error))
        return self._latest[site]
