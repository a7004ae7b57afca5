"""What is noticed when a table is read, and what a person decides about its reading beforehand."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from medfedvqa.errors import DataError

MOST_FINDS = 100
"""The most refusals that a reading collects, and the most different changes."""


@dataclass(frozen=True)
class TableOptions:
    """How to read a table where the file itself leaves it open."""

    encoding: str | None = None
    """The encoding of a table that is neither UTF-8 nor UTF-16."""
    hidden: Literal["refuse", "read", "leave-out"] = "refuse"
    """How to treat rows and columns that a workbook hides."""


@dataclass(frozen=True, slots=True)
class SheetCell:
    """A cell that Excel shows with another text than the file's, or that is refused. Its repr shows neither text."""

    text: str = field(default="", repr=False)
    """What Excel shows."""
    held: str = field(default="", repr=False)
    """What the file holds."""
    refusal: str = ""
    """Why the cell cannot be read as it is shown, as the end of a sentence."""
    day: str = field(default="", repr=False)
    """The date, as 1970-02-03, if it is one: a birth date may be read from it."""


Cell: TypeAlias = str | SheetCell


@dataclass
class TableFinds:
    """Collects what a reading notices. Notes quote nothing of the table; changes do, for the person at the site."""

    collects: bool = False
    """Whether the reading continues after a refusal."""
    refusals: list[DataError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changes: dict[tuple[str, str, str], int] = field(default_factory=dict, repr=False)
    """How often a text is stored otherwise than the file has it, by column, text in the file and stored text."""

    def refuse(self, error: DataError) -> None:
        """Raises the error, unless refusals are collected and few."""
        if not self.collects or len(self.refusals) >= MOST_FINDS:
            raise error
        self.refusals.append(error)

    def change(self, column: str, held: str, stored: str) -> None:
        """Notes that a text is not stored as the file has it."""
        change = column, held, stored
        if change in self.changes or len(self.changes) < MOST_FINDS:
            self.changes[change] = self.changes.get(change, 0) + 1
