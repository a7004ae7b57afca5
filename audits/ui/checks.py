"""The verdicts on each log, kept until they are asked for again."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from audits.ui.html import Html
from audits.ui.parts import badge
from audits.verifier import verify


@dataclass(frozen=True)
class Check:
    """One question to a log: `mark` is `good`, `bad`, or `open` where nothing was there to answer it with."""

    name: str
    mark: str
    word: str
    said: str

    def badge(self, name: bool = False) -> Html:
        """The verdict in a word, behind its question if `name`."""
        return badge(self.mark, f"{self.name}: {self.word}" if name else self.word)


class Checks:
    """Verdicts on these logs (site: folder)."""

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = dict(logs)
        self._latest: dict[str, tuple[Check, ...]] = {}

    def latest(self, site: str) -> tuple[Check, ...]:
        """The verdicts on a log as they were when it was last checked."""
        return self._latest.get(site) or self.check(site)

    def check(self, site: str) -> tuple[Check, ...]:
        """The verdicts on a log as it is now. Raises `LogError` if it cannot be read."""
        self._latest[site] = _checks(self._logs[site])
        return self._latest[site]


def _checks(folder: Path) -> tuple[Check, ...]:
    verdict = verify(folder)
    torn = f" {verdict.torn_bytes} bytes follow that a crash cut off." if verdict.torn_bytes else ""
    if verdict.ok:
        return (Check("Integrity", "good", "intact", f"{verdict.entries:,} entries hold.{torn}"),)
    return (Check("Integrity", "bad", "broken", f"Entry {verdict.first_bad}: {verdict.reason}."),)
