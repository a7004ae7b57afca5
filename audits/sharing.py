"""The description of a computation on shares in log entries, as an object and as a sentence.

The cohorts of sites over which a site's inputs were summed are read from the site's own log: it is their only record,
so nobody can roll them back without the log.
"""

import fcntl
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from audits.entry import Entry, Outcome, parse_line
from audits.errors import LogError, NewerFormat
from audits.exchange import SITES
from audits.log_files import lines_of, segments


class Stage(StrEnum):
    """The stage of a computation on shares that uses a site's input."""

    BEGUN = "begun"
    """The first attempt with this input."""
    REPEATED = "repeated"
    """Replaces the last attempt with the same input, which can no longer give a result."""
    OPENED = "opened"
    """The result covers exactly these sites."""


@dataclass(frozen=True)
class Sharing:
    """One attempt at a computation on shares, with its participants. Its log entries hold it as `sharing`, and its
    sentence as `reason`.

    `dealer` hands out correlated randomness and must not collude with a site; empty if there is none. `computed`: a
    phrase about the computing sites, their choice, and who together could open what; empty if an earlier entry has it.
    `private`: whether the inputs are under differential privacy.
    """

    attempt: str
    protocol: str
    sites: tuple[str, ...]
    dealer: str
    computed: str = ""
    stage: Stage = Stage.BEGUN
    private: bool = False

    def record(self) -> dict[str, Any]:
        """The computation as plain JSON; `from_record` reads it back."""
        parts: dict[str, Any] = {"attempt": self.attempt, "protocol": self.protocol, "sites": list(self.sites)}
        parts |= {"dealer": self.dealer or None, "computed": self.computed}
        return parts | {"stage": self.stage.value, "private": self.private}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Sharing":
        """Reads an entry's `sharing`. Raises `LogError`, and `NewerFormat` for an unknown stage."""
        try:
            attempt, protocol, sites = record["attempt"], record["protocol"], tuple(record["sites"])
            dealer, computed = record["dealer"] or "", record.get("computed", "")
            if not all(isinstance(text, str) for text in (attempt, protocol, dealer, computed, *sites)):
                raise TypeError
            if (stage := record["stage"]) not in list(Stage):
                raise NewerFormat("the entry of a computation on shares")
            stage, private = Stage(stage), record["private"] is True
        except (KeyError, TypeError, ValueError):
            raise LogError("the entry does not name the sites that share values") from None
        return cls(attempt, protocol, sites, dealer, computed, stage, private)

    def __str__(self) -> str:
        dealer = f"dealt by the {self.dealer}" if self.dealer else "without a dealer"
        sentence = f"shares only, attempt {self.attempt} at a {self.protocol} among {', '.join(self.sites)}, {dealer}"
        return f"{sentence}; {self.computed}" if self.computed else sentence


def sharing_of(entry: Entry) -> Sharing | None:
    """The computation on shares that an entry belongs to; None if it names none. Raises `LogError`."""
    return Sharing.from_record(entry.sharing) if entry.sharing else None


LOCK_NAME = "sharing.lock"
_MEMBER, _RECEIPT = b'"sharing":{', b'"event":"receive"'

Cohorts = list[frozenset[str]]
Message = tuple[tuple[str, str], ...]
"""Names and digests of the tensors that a server sent for a round."""


class EarlierSums:
    """The cohorts that the log in `folder` records for jobs without differential privacy, of all methods."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[int, int] = {}
        self._sums: defaultdict[str, defaultdict[int, Cohorts]] = defaultdict(lambda: defaultdict(list))
        self._messages: dict[tuple[str, int], Message] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the log's folder: this site's processes check and log one cohort at a time.

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

    def cohorts(self, job: str, round: int, but_last: bool = False, every_round: bool = False) -> set[frozenset[str]]:
        """Earlier cohorts whose sums may contain the input that this site sends in this round.

        These are the cohorts of all other jobs, of this round, and of this job's rounds in which the server sent the
        same message. `but_last` leaves out the last cohort of this round. `every_round` includes all rounds of this
        job. Raises `LogError`.
        """
        self._catch_up()
        message, alike = self._messages.get((job, round)), list[frozenset[str]]()
        for other_job, rounds in self._sums.items():
            for number, cohorts in rounds.items():
                if (other_job, number) == (job, round):
                    alike += cohorts[:-1] if but_last else cohorts
                elif every_round or other_job != job or (message and message == self._messages.get((job, number))):
                    alike += cohorts
        return set(alike)

    def _catch_up(self) -> None:
        """Reads the lines since the last call, by inode: closing a segment only renames the file."""
        try:
            for path in segments(self._folder):
                file = path.stat().st_ino
                for line in lines_of(path, offset=self._offsets.get(file, 0)):
                    if not line.endswith(b"\n"):
                        break  # A crash left the line torn, or a process is writing it.
                    self._offsets[file] = self._offsets.get(file, 0) + len(line)
                    if _MEMBER in line:
                        self._take(parse_line(line))
                    elif _RECEIPT in line:
                        self._take_message(parse_line(line))
        except OSError as error:
            raise LogError(f"the audit log cannot be read ({error.strerror})") from None

    def _take(self, record: Mapping[str, Any]) -> None:
        sharing = record["sharing"]
        if record["outcome"] == Outcome.REFUSED or sharing["private"]:
            return
        cohorts, sites = self._sums[record["job"]][record["round"]], frozenset(sharing["sites"])
        if sharing["stage"] == Stage.OPENED:
            cohorts[-1:] = [sites]
        elif (record["direction"], record["peer"]) == ("out", SITES):
            if sharing["stage"] == Stage.REPEATED:
                cohorts[-1:] = [sites]
            else:
                cohorts.append(sites)

    def _take_message(self, record: Mapping[str, Any]) -> None:
        """Keeps a round's first message with tensors: sites train with no other message of the round."""
        if record["outcome"] != Outcome.REFUSED and record["peer"] != SITES and record["tensors"]:
            message = tuple(sorted((tensor["name"], tensor["sha256"] or "") for tensor in record["tensors"]))
            self._messages.setdefault((record["job"], record["round"]), message)
