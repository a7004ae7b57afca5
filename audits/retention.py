"""Deletes lines of a log after the retention period: closed segments go, the hashes of their entries stay.

The machine's clock alone never makes a line expire: it may be wrong by years. Times that other parties signed must
show that the retention has passed, or a person must give today's date, which is then logged.
"""

import datetime as calendar
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from audits.bounded_files import open_plain
from audits.checkpoint import CHECKPOINTS, NoteFile
from audits.entry import Event, read_line
from audits.errors import LogError
from audits.log import AuditLog
from audits.log_files import closed_segments, first_entry, last_line, lines_of, segments, sync_folder
from audits.signed_note import Note, VerifierKey
from audits.time_order import CosignedTime, CosignedTimes, cosigned_times, moment
from audits.verifier import Basis, Expiry
from audits.witness import KEYS, read_keys

RETENTION_DAYS = 2192
"""Six years."""
_NEWEST = 64
"""Cosigned checkpoints at the end of the file that are searched for the latest cosigned time."""
_DAY = timedelta(days=1)
_NO_TIME = "an entry of the audit log has no time: have the log verified"


@dataclass(frozen=True)
class ExpiryResult:
    """The result of an expiry, as numbers of closed files."""

    deleted: int
    waiting: int
    """Closed files past their retention by the machine's clock alone, which are kept."""


@dataclass(frozen=True)
class _Segment:
    """A closed file, the number of its last entry, and the latest time of its entries."""

    path: Path
    end: int
    dated: datetime


def expire(
    log: AuditLog,
    days: int = RETENTION_DAYS,
    keys: Iterable[VerifierKey] = (),
    date: calendar.date | None = None,
    now: datetime | None = None,
) -> ExpiryResult:
    """Deletes the lines of the oldest closed segments, in order, whose last entry is older than `days`.

    An entry's age begins at its own date or at the first cosigned time of a checkpoint over it, whichever is later. It
    ends at the newest cosigned time or at the machine's time, whichever is earlier. `keys`: others' pinned keys; those
    next to the log count as well. `date`: today's date by a person, which is logged and replaces cosigned times.

    Before lines are deleted, their leaf hashes are on disk and an entry records the expiry: proofs and the chain
    outlast the lines. Raises `LogError`, also if the date is not the machine's or lies before a cosigned time.
    """
    now = now or datetime.now(UTC)
    log.checkpoint()
    log.drop_expired()  # leftovers of an interrupted expiry
    old = list(_older(log, now - timedelta(days=days)))
    if not old:
        return ExpiryResult(0, 0)
    others = read_keys(log.folder / KEYS) | {key.name: key for key in keys}
    times = CosignedTimes(_times(log, others.values(), [segment.end for segment in old]))
    proven = _count_proven(old, times, days, now)
    segments_to_delete = old if date else old[:proven]
    if date:
        _check_date(date, now, times)
    if segments_to_delete:
        basis = Basis.COSIGNED if len(segments_to_delete) == proven else Basis.DATE
        stated_date = date.isoformat() if date and basis is Basis.DATE else None
        _delete(log, segments_to_delete, Expiry(segments_to_delete[-1].end + 1, days, basis, stated_date))
    return ExpiryResult(len(segments_to_delete), len(old) - len(segments_to_delete))


def _older(log: AuditLog, oldest: datetime) -> Iterator[_Segment]:
    """The first closed segments with all entries dated before `oldest`."""
    closed = closed_segments(log.folder)
    if not closed:
        return
    ends = [begin - 1 for begin in (*closed, _first_of_growing(log))][1:]
    for path, end in zip(closed.values(), ends, strict=True):
        if _last_time(path) >= oldest or (latest := _latest_time(path)) >= oldest:
            return
        yield _Segment(path, end, latest)


def _times(log: AuditLog, others: Collection[VerifierKey], ends: list[int]) -> Iterator[CosignedTime]:
    """From the file of checkpoints, the first cosigned times that cover each of the entries `ends`, and the newest."""
    newest: deque[bytes] = deque(maxlen=_NEWEST)
    at = 0
    for size, note_text in NoteFile(log.folder / CHECKPOINTS).cosigned():
        newest.append(note_text)
        if at < len(ends) and size > ends[at] and (times := list(_valid(log, note_text, others))):
            yield from times
            at = bisect_left(ends, size)
    for note_text in newest:
        yield from _valid(log, note_text, others)


def _valid(log: AuditLog, note_text: bytes, others: Collection[VerifierKey]) -> Iterator[CosignedTime]:
    note = Note.parse(note_text.decode(errors="replace"))
    if not log.contradicts(note):
        yield from cosigned_times([note], log.key, others)


def _count_proven(old: list[_Segment], times: CosignedTimes, days: int, now: datetime) -> int:
    """The number of segments, from the first on, that cosigned times show to be past their retention."""
    for number, segment in enumerate(old):
        existed = times.existed(segment.end)
        if existed is None or times.newest is None:
            return number
        if min(now, times.newest) - max(existed, segment.dated) < timedelta(days=days):
            return number
    return len(old)


def _check_date(date: calendar.date, now: datetime, times: CosignedTimes) -> None:
    if abs(now.date() - date) > _DAY:
        raise LogError("the given date differs from this machine's date: correct the wrong one")
    if times.newest and times.newest.date() - date > _DAY:
        raise LogError("others signed this log's checkpoints after the given date: correct the date")


def _delete(log: AuditLog, expired_segments: list[_Segment], expiry: Expiry) -> None:
    log.keep_hashes()
    log.append(Event.EXPIRED, reason=str(expiry), expiry=expiry.record())
    log.checkpoint()
    for segment in expired_segments:
        segment.path.unlink(missing_ok=True)
    sync_folder(log.folder)
    log.drop_expired()


def _last_time(path: Path) -> datetime:
    with open_plain(path) as file:
        line, _ = last_line(file.fileno(), os.fstat(file.fileno()).st_size)
    return _parse_time(read_line(line).time)


def _latest_time(path: Path) -> datetime:
    return max(_parse_time(read_line(line).time) for line in lines_of(path))


def _parse_time(time: str) -> datetime:
    parsed_time = moment(time)
    if parsed_time is None:
        raise LogError(_NO_TIME)
    return parsed_time


def _first_of_growing(log: AuditLog) -> int:
    """The number of the first entry that is in no closed segment."""
    first = first_entry(segments(log.folder)[-1])
    if first is None:
        raise LogError("the audit log's newest segment is empty: expire it after the next entry")
    return first
