"""Over which sites the sums were that a site's input went into: read from the site's own audit log, which is the only
record of it, so that it cannot be set back apart from the log."""

import fcntl
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from audits.entry import Outcome, parse_line
from audits.errors import LogError
from audits.exchange import SITES
from audits.log_files import lines_of, segments
from audits.sharing import Stage

LOCK_NAME = "sharing.lock"
_MEMBER = b'"sharing":{'

_Sums = defaultdict[tuple[str, int], defaultdict[str, list[frozenset[str]]]]


class EarlierSums:
    """The cohorts of all jobs without differential privacy in the log in `folder`, by method and round.

    Entries of versions that named the sites in the reason only are not read: those cohorts are unknown.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[int, int] = {}
        self._sums: _Sums = defaultdict(lambda: defaultdict(list))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps the site's other processes out, so that a cohort is checked and logged before another one is checked.

        Raises `LogError`.
        """
        try:
            file = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LogError(f"the audit log's folder cannot be written to ({error.strerror})") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def cohorts(self, method: str, round: int, but_last_of: str | None = None) -> set[frozenset[str]]:
        """Those of a method and round. `but_last_of`: a job whose last one does not count. Raises `LogError`."""
        self._catch_up()
        cohorts_of_round = set()
        for job, cohorts in self._sums[method, round].items():
            cohorts_of_round |= set(cohorts[:-1] if job == but_last_of else cohorts)
        return cohorts_of_round

    def _catch_up(self) -> None:
        """Reads what the log holds beyond the last time; a closed segment is the same file under another name."""
        try:
            for path in segments(self._folder):
                file = path.stat().st_ino
                for line in lines_of(path, offset=self._offsets.get(file, 0)):
                    if not line.endswith(b"\n"):
                        break  # What a crash left, or what is being written.
                    self._offsets[file] = self._offsets.get(file, 0) + len(line)
                    if _MEMBER in line:
                        self._take(parse_line(line))
        except OSError as error:
            raise LogError(f"the audit log cannot be read ({error.strerror})") from None

    def _take(self, record: Mapping[str, Any]) -> None:
        sharing = record["sharing"]
        if record["outcome"] == Outcome.REFUSED or sharing["private"]:
            return
        cohorts, sites = self._sums[record["method"], record["round"]][record["job"]], frozenset(sharing["sites"])
        if sharing["stage"] == Stage.OPENED:
            cohorts[-1:] = [sites]
        elif (record["direction"], record["peer"]) == ("out", SITES):
            if sharing["stage"] == Stage.REPEATED:
                cohorts[-1:] = [sites]
            else:
                cohorts.append(sites)
