"""When other parties signed checkpoints of a log: dates that the site's own clock cannot change.

A cosignature (C2SP tlog-cosignature) holds the time at which its party saw the checkpoint. It shows that every entry
below that checkpoint existed by then, and, as the newest one, that this much time has passed.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from audits.checkpoint import Checkpoint
from audits.signed_note import Note, VerifierKey

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
