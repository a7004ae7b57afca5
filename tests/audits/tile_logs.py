"""Audit logs that are published as tiles, and what a site has published."""

from pathlib import Path

from small_logs import key_of

from audits import AuditLog, Event, VerdictPart, VerdictState, Witness, examine
from audits.log_files import segments

ENTRIES = 600


def open_log(place: Path, limit: int = 1 << 26) -> AuditLog:
    return AuditLog(place / "audit", "chest", key_of(place), limit)


def grow(log: AuditLog, entries: int) -> None:
    log.append_all([(Event.RELEASE, {"round": number, "reason": "ü"}) for number in range(entries)])


def made(place: Path, entries: int = ENTRIES, limit: int = 1 << 26) -> Path:
    """A closed log."""
    log = open_log(place, limit)
    Witness(place / "audit", key_of(place))
    grow(log, entries)
    log.close()
    return place


def lines(place: Path) -> list[bytes]:
    return b"".join(path.read_bytes() for path in segments(place / "audit")).splitlines(keepends=True)


def tiles_part(place: Path) -> VerdictPart | None:
    result = examine(place / "audit", "chest", network=False)
    return next((part for part in result.integrity.parts if part.name == "tiles"), None)


def assert_published(place: Path, size: int) -> None:
    part = tiles_part(place)
    assert part and part.state is VerdictState.SHOWN and f" {size} entries" in part.said
