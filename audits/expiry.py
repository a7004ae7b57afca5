"""The content of an `expired` entry: which lines were deleted, and what showed that they were old enough."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from audits.fast_lines import LogLine


class Basis(StrEnum):
    """What shows that the retention has passed."""

    COSIGNED = "cosigned"
    """Times that other parties have signed."""
    DATE = "date"
    """Today's date, as a person at the site gave it."""
    UNKNOWN = "unknown"
    """A basis that only a newer version knows; to this version it shows nothing."""


@dataclass(frozen=True)
class Expiry:
    """The first `entries` of the log lose their lines, after at least `days`."""

    entries: int
    days: int
    basis: Basis
    date: str | None = None
    """The date that a person gave, such as 2032-11-23."""

    def record(self) -> dict[str, Any]:
        """The expiry as plain JSON."""
        return {"entries": self.entries, "days": self.days, "basis": self.basis.value, "date": self.date}

    def __str__(self) -> str:
        basis = f"by the date {self.date} that a person gave" if self.date else "as times show that others signed"
        last = self.entries - 1
        return f"the lines of entries 0 to {last} are past the retention of {self.days} days and are deleted, {basis}"

    @classmethod
    def of(cls, line: LogLine) -> "Expiry | None":
        """Reads an `expired` entry; None if it states no expiry."""
        record: Any = line.expiry
        if record is None:
            return None
        numbers = record.get("entries"), record.get("days")
        if not all(type(number) is int and number > 0 for number in numbers):
            return None
        basis, date = record.get("basis"), record.get("date")
        if not isinstance(basis, str) or not isinstance(date, str | None):
            return None
        return cls(*numbers, Basis(basis) if basis in list(Basis) else Basis.UNKNOWN, date)
