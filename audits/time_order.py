"""Checks the times in a log: in order, without leaps, none in the future, none that contradict others' signed times.

Entries under a checkpoint that others hold cannot be redated. Whoever has the site's key can redate later entries; this
is noticed only if their new dates lie before that checkpoint. A clock that was set back looks the same.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from audits.checkpoint import Checkpoint, time_text
from audits.entry import LogLine
from audits.signed_note import Note, VerifierKey

# The times at which other parties signed checkpoints of a log, which the site's own clock cannot change.
#
# A cosignature (C2SP tlog-cosignature) holds the time at which its party saw the checkpoint. It shows that every entry
# under that checkpoint existed by then. The newest one also shows how much time has passed at least.

TOLERANCE = timedelta(minutes=5)
"""Smaller differences and corrections of clocks are normal."""
_LAST = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())


@dataclass(frozen=True)
class CosignedTime:
    """One party's signed statement that a log had this size by this time."""

    size: int
    time: datetime
    party: str


def cosigned_times(notes: Iterable[Note], key: VerifierKey, others: Iterable[VerifierKey]) -> Iterator[CosignedTime]:
    """The valid cosignatures by `others` of checkpoints that the log's own `key` has signed.

    Times after the year 9999 are left out.
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
    """The cosigned times of one log."""

    def __init__(self, times: Iterable[CosignedTime] = ()) -> None:
        ordered = sorted(set(times), key=lambda cosigned: (cosigned.size, cosigned.time, cosigned.party))
        self._by_size: defaultdict[int, list[datetime]] = defaultdict(list)
        for cosigned in ordered:
            self._by_size[cosigned.size].append(cosigned.time)
        self.newest = max((cosigned.time for cosigned in ordered), default=None)
        """The latest cosigned time; None if there is none."""
        self.backwards = _first_backwards(ordered)
        """The last entry of the first checkpoint that a party cosigned before a smaller one; None if there is none."""

    @property
    def sizes(self) -> Collection[int]:
        """The sizes of the checkpoints that are cosigned."""
        return self._by_size.keys()

    def first(self, size: int) -> datetime:
        """The time when the checkpoint of this size was first cosigned."""
        return self._by_size[size][0]

    def last(self, size: int) -> datetime:
        """The time when the checkpoint of this size was last cosigned."""
        return self._by_size[size][-1]

    def existed(self, entry: int) -> datetime | None:
        """The earliest cosigned time of a checkpoint that covers the entry; None if none covers it."""
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
"""The longest plausible time between two entries, unless others' signed times cover a longer one."""
TRAVEL = timedelta(days=31)
"""The longest plausible time until a checkpoint is cosigned: the server may wait for the slowest site of a round."""
_TIME = re.compile(
    r"(?!0000)[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T"
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z",
).fullmatch
_DAY, _YEAR = slice(8, 10), slice(0, 4)


class Times:
    """Checks the times of a log's entries, one by one, and the times in the log's `checkpoints`."""

    def __init__(self, checkpoints: Iterable[Checkpoint], cosigned: CosignedTimes | None = None) -> None:
        self.malformed: int | None = None
        """The first entry without a valid time."""
        self.earlier: int | None = None
        """The first entry that is dated before an earlier entry or checkpoint, or has a checkpoint that is."""
        self.back = timedelta()
        """By how much `earlier` is dated back."""
        self.cosigned_earlier: int | None = None
        """The first entry that is dated after others cosigned it."""
        self.cosigned_later: int | None = None
        """The first entry dated more than `TRAVEL` before others first cosigned a checkpoint of earlier entries."""
        self.cosigned = cosigned or CosignedTimes()
        self._latest = ""
        self._latest_entry: int | None = None
        self._floor = ""
        self._leaps: list[tuple[int, datetime]] = []
        self._signed = {checkpoint.size: time for checkpoint in checkpoints if (time := _signed_time(checkpoint))}
        self._due = self._signed.keys() | set(self.cosigned.sizes)

    def take(self, line: LogLine) -> None:
        """Checks the next entry."""
        if line.seq in self._due:
            self._compare(line.seq)
        time = line.time
        if time >= self._latest and _TIME(time) and (time[_DAY] <= "28" or moment(time)):
            if time[_YEAR] != self._latest[_YEAR]:
                self._look_ahead(line)
            self._latest, self._latest_entry = time, line.seq  # of this form, later times are larger texts
        else:
            self._look_back(line.seq, line.time)
        if time < self._floor and self.cosigned_later is None and moment(time):
            self.cosigned_later = line.seq

    def end(self, entries: int) -> None:
        """Checks a checkpoint of the whole log, after its last entry."""
        if entries in self._due:
            self._compare(entries)

    def leap(self) -> int | None:
        """The first entry dated more than `LEAP` after the entry before it, unless a cosignature is dated as late."""
        newest = self.cosigned.newest
        return next((entry for entry, time in self._leaps if newest is None or time - newest > TOLERANCE), None)

    def future(self, now: datetime) -> int | None:
        """The entry with the latest date, if that is more than `TOLERANCE` after `now`; else None."""
        latest = moment(self._latest) if self._latest_entry is not None else None
        return self._latest_entry if latest and latest - now > TOLERANCE else None

    def _compare(self, size: int) -> None:
        """Compares the entries so far with the site's and others' times of the checkpoint of this size."""
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
        self._floor = max(self._floor, time_text(floor))

    def _look_ahead(self, line: LogLine) -> None:
        before, now = moment(self._latest), moment(line.time)
        if before and now and now - before > LEAP:
            self._leaps.append((line.seq, now))

    def _look_back(self, entry: int, time: str) -> None:
        now = moment(time)
        if now is None:
            self.malformed = entry if self.malformed is None else self.malformed
        elif self._latest and (before := moment(self._latest)) and before - now > TOLERANCE and self.earlier is None:
            self.earlier, self.back = entry, before - now


def moment(time: str) -> datetime | None:
    """Parses a time of the log's format, to UTC; None if the text is not one."""
    if not _TIME(time):
        return None
    try:
        return datetime.fromisoformat(time).astimezone(UTC)
    except ValueError:
        return None


def _signed_time(checkpoint: Checkpoint) -> str:
    """The time at which the site signed a checkpoint, as text; empty if the checkpoint states no valid time."""
    time = checkpoint.extensions.get("time", "")
    return time if moment(time) else ""
