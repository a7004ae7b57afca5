"""Whether the times in a log can be right: in order, without leaps, none in the future, none against others' times.

An entry under a checkpoint that others hold cannot be dated anew. What follows can, by whoever has the site's key: that
it does not lie before what others hold is all that can be shown of it. A clock that is set back looks the same.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from audits.checkpoint import Checkpoint
from audits.fast_lines import LogLine
from audits.signed_note import Note, VerifierKey

# When other parties signed checkpoints of a log: dates that the site's own clock cannot change.
#
# A cosignature (C2SP tlog-cosignature) holds the time at which its party saw the checkpoint. It shows that every entry
# below that checkpoint existed by then, and, as the newest one, that this much time has passed.

TOLERANCE = timedelta(minutes=5)
"""Clocks are corrected by less than this, and differ by less."""
_LAST = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())


@dataclass(frozen=True)
class CosignedTime:
    """One party's signed statement that a log had this size by this time."""

    size: int
    time: datetime
    party: str


def cosigned_times(notes: Iterable[Note], key: VerifierKey, others: Iterable[VerifierKey]) -> Iterator[CosignedTime]:
    """The valid cosignatures by `others` of checkpoints that the log's own `key` has signed.

    A time that no calendar has is left out.
    """
    parties = [other for other in others if other.name != key.name and other.raw != key.raw]
    for note in notes:
        if not key.signed(note):
            continue
        size = Checkpoint.parse(note.text).size
        for party in parties:
            seconds = party.cosigned(note)
            if seconds is not None and seconds <= _LAST:
                yield CosignedTime(size, datetime.fromtimestamp(seconds, UTC), party.name)


class CosignedTimes:
    """What the cosigned times of one log show together."""

    def __init__(self, times: Iterable[CosignedTime] = ()) -> None:
        ordered = sorted(set(times), key=lambda cosigned: (cosigned.size, cosigned.time, cosigned.party))
        self._by_size: defaultdict[int, list[datetime]] = defaultdict(list)
        for cosigned in ordered:
            self._by_size[cosigned.size].append(cosigned.time)
        self.newest = max((cosigned.time for cosigned in ordered), default=None)
        """The latest of all; None if there is none."""
        self.backwards = _first_backwards(ordered)
        """The last entry below the first checkpoint that a party cosigned before a smaller one; None if there is none.
        """

    @property
    def sizes(self) -> Collection[int]:
        """The sizes of the checkpoints that are cosigned."""
        return self._by_size.keys()

    def first(self, size: int) -> datetime:
        """When the checkpoint of this size was first cosigned."""
        return self._by_size[size][0]

    def last(self, size: int) -> datetime:
        """When the checkpoint of this size was last cosigned."""
        return self._by_size[size][-1]

    def existed(self, entry: int) -> datetime | None:
        """The earliest time by which others show the entry to have existed; None if they do not."""
        return min((times[0] for size, times in self._by_size.items() if size > entry), default=None)


def _first_backwards(ordered: Iterable[CosignedTime]) -> int | None:
    latest: dict[str, tuple[int, datetime]] = {}
    for cosigned in ordered:
        size, time = latest.get(cosigned.party, (cosigned.size, cosigned.time))
        if size < cosigned.size and time - cosigned.time > TOLERANCE:
            return cosigned.size - 1
        if cosigned.time >= time:
            latest[cosigned.party] = cosigned.size, cosigned.time
    return None


LEAP = timedelta(days=366)
"""A longer time between two entries is a leap, unless others' signed times reach it."""
TRAVEL = timedelta(days=31)
"""A checkpoint is cosigned within this time: the server may wait for the slowest site of a round."""
_TIME = re.compile(
    rb'"(?!0000)[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T'
    rb'(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z"'
).fullmatch
_DAY, _YEAR = slice(9, 11), slice(1, 5)


class Times:
    """Follows the times of a log's entries; `checkpoints` are those of the log whose own times count."""

    def __init__(self, checkpoints: Iterable[Checkpoint], cosigned: CosignedTimes | None = None) -> None:
        self.malformed: int | None = None
        """The first entry that has no time."""
        self.earlier: int | None = None
        """The first entry that is dated before what comes before it, or whose checkpoint is."""
        self.back = timedelta()
        """How far."""
        self.cosigned_earlier: int | None = None
        """The first entry that others cosigned before its date."""
        self.cosigned_later: int | None = None
        """The first entry that is dated before others cosigned what precedes it."""
        self.cosigned = cosigned or CosignedTimes()
        self._latest = b""
        self._latest_entry: int | None = None
        self._floor = b""
        self._leaps: list[tuple[int, datetime]] = []
        self._signed = {checkpoint.size: time for checkpoint in checkpoints if (time := _signed_time(checkpoint))}
        self._due = self._signed.keys() | set(self.cosigned.sizes)

    def take(self, line: LogLine) -> None:
        """The next entry."""
        if line.seq in self._due:
            self._compare(line.seq)
        time = line.time
        if time >= self._latest and _TIME(time) and (time[_DAY] <= b"28" or moment(time)):
            if time[_YEAR] != self._latest[_YEAR]:
                self._look_ahead(line)
            self._latest, self._latest_entry = time, line.seq  # of this form, later times are larger texts
        else:
            self._look_back(line.seq, line.time)
        if time < self._floor and self.cosigned_later is None and moment(time):
            self.cosigned_later = line.seq

    def end(self, entries: int) -> None:
        """The log has no further entry."""
        if entries in self._due:
            self._compare(entries)

    def leap(self) -> int | None:
        """The first entry after a leap in time that no cosigned time covers."""
        newest = self.cosigned.newest
        return next((entry for entry, time in self._leaps if newest is None or time - newest > TOLERANCE), None)

    def future(self, now: datetime) -> int | None:
        """The entry that is dated last, if that is after `now`."""
        latest = moment(self._latest) if self._latest_entry is not None else None
        return self._latest_entry if latest and latest - now > TOLERANCE else None

    def _compare(self, size: int) -> None:
        """The entries so far with the times of the checkpoint of this size, the site's own and others'."""
        if own_time := self._signed.get(size):
            self._look_back(max(size - 1, 0), own_time)
            if own_time > self._latest and size:
                self._latest, self._latest_entry = own_time, size - 1
        if size not in self.cosigned.sizes:
            return
        latest = moment(self._latest)
        if latest and latest - self.cosigned.last(size) > TOLERANCE and self.cosigned_earlier is None:
            self.cosigned_earlier = self._latest_entry if self._latest_entry is not None else max(size - 1, 0)
        floor = max(self.cosigned.first(size), datetime.min.replace(tzinfo=UTC) + TRAVEL) - TRAVEL
        self._floor = max(self._floor, _as_json(floor))

    def _look_ahead(self, line: LogLine) -> None:
        before, now = moment(self._latest), moment(line.time)
        if before and now and now - before > LEAP:
            self._leaps.append((line.seq, now))

    def _look_back(self, entry: int, time: bytes) -> None:
        now = moment(time)
        if now is None:
            self.malformed = entry if self.malformed is None else self.malformed
        elif self._latest and (before := moment(self._latest)) and before - now > TOLERANCE and self.earlier is None:
            self.earlier, self.back = entry, before - now


def moment(time: bytes) -> datetime | None:
    """What a time in a log, as JSON, says; None if it is none."""
    if not _TIME(time):
        return None
    try:
        return datetime.fromisoformat(time[1:-1].decode()).astimezone(UTC)
    except ValueError:
        return None


def _as_json(time: datetime) -> bytes:
    """The time as an entry has it, as JSON."""
    return json.dumps(time.isoformat(timespec="microseconds").replace("+00:00", "Z")).encode()


def _signed_time(checkpoint: Checkpoint) -> bytes:
    """When a checkpoint was signed, by the site's clock, as an entry would say it; empty if it does not say so."""
    time = json.dumps(checkpoint.extensions.get("time")).encode()
    return time if moment(time) else b""
