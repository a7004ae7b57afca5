"""Whether the times in a log can be right: in order, none in the future.

An entry under a checkpoint that others hold cannot be dated anew. What follows can, by whoever has the site's key: that
it does not lie before what others hold is all that can be shown of it. A clock that is set back looks the same.
"""

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from audits.checkpoint import Checkpoint
from audits.lines import Line

TOLERANCE = timedelta(minutes=5)
"""Clocks are corrected by less than this, and differ by less."""
_TIME = re.compile(
    rb'"(?!0000)[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T'
    rb'(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z"'
).fullmatch
_DAY = slice(9, 11)
_SIGNED = re.compile(r"time (\S{1,40})")


class Times:
    """Follows the times of a log's entries; `checkpoints` are those of the log whose own times count."""

    def __init__(self, checkpoints: Iterable[Checkpoint]) -> None:
        self.malformed: int | None = None
        """The first entry that has no time."""
        self.earlier: int | None = None
        """The first entry that is dated before what comes before it."""
        self.back = timedelta()
        """How far."""
        self._latest = b""
        self._latest_entry: int | None = None
        self._signed = {one.size: time for one in checkpoints if (time := _signed_time(one))}

    def take(self, line: Line) -> None:
        """The next entry."""
        if signed := self._signed.get(line.seq):
            self._latest = max(self._latest, signed)
        time = line.time
        if time >= self._latest and _TIME(time) and (time[_DAY] <= b"28" or _moment(time)):
            self._latest, self._latest_entry = time, line.seq  # of this form, later times are larger texts
        else:
            self._look_back(line)

    def _look_back(self, line: Line) -> None:
        now = _moment(line.time)
        if now is None:
            self.malformed = line.seq if self.malformed is None else self.malformed
        elif self._latest and (before := _moment(self._latest)) and before - now > TOLERANCE and self.earlier is None:
            self.earlier, self.back = line.seq, before - now

    def future(self, now: datetime) -> int | None:
        """The entry that is dated last, if that is after `now`."""
        latest = _moment(self._latest) if self._latest_entry is not None else None
        return self._latest_entry if latest and latest - now > TOLERANCE else None


def _moment(time: bytes) -> datetime | None:
    """What a time in a log says; None if it is none."""
    if not _TIME(time):
        return None
    try:
        return datetime.fromisoformat(time[1:-1].decode()).astimezone(UTC)
    except ValueError:
        return None


def _signed_time(checkpoint: Checkpoint) -> bytes:
    """When a checkpoint was signed, by the site's clock, as an entry would say it; empty if it does not say so."""
    found = next(filter(None, map(_SIGNED.fullmatch, checkpoint.said)), None)
    time = json.dumps(found[1]).encode() if found else b""
    return time if _moment(time) else b""
