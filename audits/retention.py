"""How long lines of a log are kept: closed segments go after some years, the hashes of their entries stay."""

import os
import re
from datetime import UTC, datetime, timedelta

from audits.entry import Event, parse_line
from audits.errors import LogError
from audits.files import open_plain
from audits.log import AuditLog
from audits.segments import closed_segments, first_entry, last_line, segments, sync_folder

RETENTION_DAYS = 2192
"""Six years."""
_SAID = re.compile(r"the lines of entries 0 to ([0-9]+) are past the retention of [0-9]+ days and are deleted")


def expire(log: AuditLog, days: int = RETENTION_DAYS, now: datetime | None = None) -> int:
    """Deletes the lines of closed segments whose last entry is older; how many segments went.

    Their leaf hashes are on disk, and an entry says so, before a line goes: proofs and the chain outlast the lines.
    Raises `LogError`.
    """
    oldest = (now or datetime.now(UTC)) - timedelta(days=days)
    closed = closed_segments(log.folder)
    if not closed:
        return 0
    ends = [begin - 1 for begin in (*closed, _first_of_growing(log))][1:]
    gone = []
    for path, end in zip(closed.values(), ends, strict=True):
        with open_plain(path) as file:
            line, _ = last_line(file.fileno(), os.fstat(file.fileno()).st_size)
        if datetime.fromisoformat(parse_line(line)["time"]) >= oldest:
            break
        gone.append((path, end))
    if not gone:
        return 0
    log.checkpoint()
    log.keep_hashes()
    reason = f"the lines of entries 0 to {gone[-1][1]} are past the retention of {days} days and are deleted"
    log.append(Event.EXPIRED, reason=reason)
    log.checkpoint()
    for path, _ in gone:
        path.unlink(missing_ok=True)
    sync_folder(log.folder)
    return len(gone)


def expired_to(reason: str) -> int:
    """How many entries from the first on an entry of the event `expired` gives up; 0 for any other reason."""
    said = _SAID.fullmatch(reason)
    return int(said[1]) + 1 if said else 0


def _first_of_growing(log: AuditLog) -> int:
    """The number of the first entry that is in no closed segment."""
    found = first_entry(segments(log.folder)[-1])
    if found is None:
        raise LogError("the audit log has nothing in its newest segment yet: expire it after the next entry")
    return found
