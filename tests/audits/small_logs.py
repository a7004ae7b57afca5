"""Small audit logs of one site, which a witness may have cosigned, and lines written from the format alone."""

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from audits import (
    AuditKey,
    AuditLog,
    Event,
    Examination,
    Outcome,
    VerdictState,
    Witness,
    examine,
    origin_of,
)
from audits.retention import RETENTION_DAYS, ExpiryResult, expire

BLANK: dict[str, Any] = {
    **dict.fromkeys(["actor", "job", "method", "task", "direction", "peer", "policy", "exchange", "outcome", "reason"]),
    **dict.fromkeys(["code_version", "code_digest", "model_digest", "dp_event", "epsilon_before", "epsilon_after"]),
    **{
        "site": "chest",
        "event": "release",
        "time": "2025-01-31T12:00:00.000000Z",
        "tensors": [],
        "nbytes": 0,
        "format": 1,
    },
}


def encoded(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sealed(record: dict[str, Any]) -> bytes:
    """The line of a record, written from the description of the format alone."""
    body = {name: value for name, value in record.items() if name != "leaf_hash"}
    return encoded(body | {"leaf_hash": hashlib.sha256(b"\x00" + encoded(body)).hexdigest()}) + b"\n"


def rehashed(line: bytes) -> bytes:
    """With the hash that its other bytes have, if it has a place for one."""
    result = re.search(rb'"leaf_hash":"[0-9a-f]{64}",', line)
    if not result or not line.endswith(b"\n"):
        return line
    body = line[: result.start()] + line[result.end() : -1]
    member = json.dumps({"leaf_hash": hashlib.sha256(b"\0" + body).hexdigest()}, separators=(",", ":"))[1:-1].encode()
    return line[: result.start()] + member + b"," + line[result.end() :]


SMALL = 1500  # bytes of a segment: three entries


def key_of(place: Path, name: str = "chest") -> AuditKey:
    return AuditKey.at(place / f"{name}.key", origin_of(name))


def opened(place: Path, limit: int = SMALL) -> AuditLog:
    return AuditLog(place / "audit", "chest", key_of(place), limit)


def filled(log: AuditLog, entries: int) -> None:
    for number in range(entries):
        log.append(Event.RELEASE, round=number)


FUTURE = datetime.now(UTC) + timedelta(days=2193)


def expired(log: AuditLog, now: datetime = FUTURE, days: int = RETENTION_DAYS) -> ExpiryResult:
    """Some years later, by the date that a person gives."""
    return expire(log, days, date=now.date(), now=now)


Lines = list[bytes]


def grown(log: AuditLog, rounds: int, job: str = "j") -> None:
    log.append(Event.OPEN, job=job)
    for number in range(rounds):
        log.append(Event.RELEASE, job=job, round=number, outcome=Outcome.SENT)
        log.checkpoint()
    log.append(Event.CLOSE, job=job)


def made(place: Path, limit: int = 1 << 20) -> Path:
    """A site's log of seven entries that a witness in `head` has cosigned."""
    log, key = opened(place, limit), key_of(place)
    Witness(place / "audit", key)
    grown(log, 5)
    witness = Witness(place / "head", key_of(place, "head"))
    witness.introduce(key.public)
    witness.cosign(log.checkpoint())
    log.close()
    return place


def judged(place: Path, against: bool = True) -> Examination:
    return examine(place / "audit", "chest", [place / "head"] if against else [], network=False)


def states(found: Examination) -> dict[str, VerdictState]:
    return {part.name: part.state for _, verdict in found.verdicts() for part in verdict.parts}


def chained_anew(lines: Lines) -> Lines:
    """With the numbers and hashes that they should have."""
    result: Lines = []
    before = "0" * 64
    for number, line in enumerate(lines):
        result.append(sealed(json.loads(line) | {"seq": number, "prev_hash": before}))
        before = json.loads(result[-1])["leaf_hash"]
    return result


def defined_root(leaves: list[bytes]) -> bytes:
    """Section 2.1.1, as written there."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + defined_root(leaves[:k]) + defined_root(leaves[k:])).digest()
