"""Clocks of a site and of its witnesses in tests, each of which may be wrong."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from small_logs import key_of, opened

import audits.checkpoint
import audits.log
from audits import AuditLog, Checkpoint, Event, Note, VerifierKey, Witness


@dataclass
class SiteClock:
    """Stands for the clock of `audits.log` and `audits.checkpoint`: it shows one moment until it is set."""

    moment: datetime

    def now(self, zone: Any) -> datetime:
        return self.moment.astimezone(zone)


class Hospital:
    """A site's log in files of a few entries, and witnesses that cosign it at whatever time they like."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch, moment: datetime, limit: int = 900) -> None:
        self.place, self.clock, self.limit = place, SiteClock(moment), limit
        patch.setattr(audits.log, "datetime", self.clock)
        patch.setattr(audits.checkpoint, "datetime", self.clock)
        self.log: AuditLog = opened(place, limit)
        Witness(place / "audit", key_of(place))

    def write(self, moment: datetime, entries: int = 1) -> None:
        """Entries under a clock that shows this moment."""
        self.clock.moment = moment
        for _ in range(entries):
            self.log.append(Event.FINDING, reason="something to write down")

    def cosign(self, moment: datetime, party: str = "head") -> Note:
        """The newest checkpoint, with a cosignature of this moment that comes back to the site."""
        key = key_of(self.place, party)
        Witness(self.place / "audit", key_of(self.place)).introduce(key.public)
        note = self.log.checkpoint()
        cosigned = note.joined(key.cosign(note, int(moment.timestamp())))
        assert self.log.cosigned([cosigned], [key.public]) == 1
        return cosigned

    def forged(self, root: bytes, moment: datetime) -> Note:
        """A checkpoint of as many entries with another root, signed by the site's key and by a witness."""
        key, size = key_of(self.place, "head"), Checkpoint.parse(self.log.checkpoint().text).size
        Witness(self.place / "audit", key_of(self.place)).introduce(key.public)
        note = audits.checkpoint.signed_checkpoint(key_of(self.place), size, root)
        return note.joined(key.cosign(note, int(moment.timestamp())))

    def key(self, party: str) -> VerifierKey:
        return key_of(self.place, party).public

    def log_again(self) -> AuditLog:
        """The log, opened by another process."""
        self.log = opened(self.place, self.limit)
        return self.log

    def closed(self) -> list[int]:
        """The numbers of the first entries of the closed files."""
        return [int(path.stem[4:]) for path in sorted((self.place / "audit").glob("log-*.jsonl"))]


def days(number: float) -> timedelta:
    return timedelta(days=number)
