"""The description of a computation on shares in log entries, as an object and as a sentence."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from audits.entry import Entry
from audits.errors import LogError, NewerFormat


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
    """One attempt at a computation on shares, with its participants. Its log entries hold it, and its sentence as
    their reason.

    `dealer` hands out correlated randomness and must not collude with a site; empty if there is none. `computed`: a
    phrase about the computing sites, their choice, and who together could open what; empty if an earlier entry has
    it. `private`: whether the inputs are under differential privacy.
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
            raise LogError("the entry does not say among whom values are shared") from None
        return cls(attempt, protocol, sites, dealer, computed, stage, private)

    def __str__(self) -> str:
        dealer = f"dealt by the {self.dealer}" if self.dealer else "without a dealer"
        sentence = f"shares only, attempt {self.attempt} at a {self.protocol} among {', '.join(self.sites)}, {dealer}"
        return f"{sentence}; {self.computed}" if self.computed else sentence


def sharing_of(entry: Entry) -> Sharing | None:
    """The computation on shares that an entry belongs to; None if it names none. Raises `LogError`."""
    return Sharing.from_record(entry.sharing) if entry.sharing else None
