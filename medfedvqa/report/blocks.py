"""The parts of a document, for PDF and HTML alike: inline parts, blocks, sections."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Literal, TypeVar

from audits.escaping import for_pdf

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONE = "—"
"""Stands for a missing figure, since a 0 would claim one."""
SHORT_LINE, LONG_WORD = 24, 22
"""The most letters of a short line, and of a word that is never broken."""
MAX_CHARACTERS = 4_000
"""The most characters of a part of a cell, enough to list a few hundred sites."""
THOUSANDTH = Decimal("0.001")

FIGURE = re.compile(r"(?<![^\s(])(\d+(?:\.\d+)?(?:e-\d+)?)(?=[\s,.;:)]|$)")
UTC = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)")

Tone = Literal["good", "bad", "open"]


@dataclass(frozen=True)
class Number:
    """A figure: its printed form, and all of its digits."""

    text: str
    exact: str


class Time(Number):
    """A time: its printed form, to the second, and its form in the evidence."""


@dataclass(frozen=True)
class Digest:
    """A digest or key. It is printed short here, and in full in the last table of the document."""

    full: str

    @property
    def text(self) -> str:
        return f"{self.full[:12]}…" if len(self.full) > 16 else self.full


@dataclass(frozen=True)
class Code:
    """A key or name that is printed in full, in a font of equal widths."""

    text: str


@dataclass(frozen=True)
class Link:
    """A link to an anchor of the same document, or mere text if there is no such anchor."""

    text: str
    target: str


@dataclass(frozen=True)
class Badge:
    """A state in words, and its colour."""

    text: str
    tone: Tone


@dataclass(frozen=True)
class Break:
    """The end of a line within a cell."""


Inline = str | Number | Time | Digest | Code | Link | Badge | Break
Cell = tuple[Inline, ...]
Content = Inline | Cell
Item = TypeVar("Item")


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    cell: Cell
    warning: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list under a short title."""

    title: str
    items: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """One figure: its name, its value, its source."""

    label: str
    value: Cell
    source: Cell


@dataclass(frozen=True)
class Facts:
    """Figures under a short title; `small` ones have no source and stand in columns."""

    title: str
    facts: tuple[Fact, ...]
    small: bool = False


@dataclass(frozen=True)
class TableRow:
    """The cells of a row; the first names the row. Links can lead to its anchor."""

    cells: tuple[Cell, ...]
    anchor: str | None = None


@dataclass(frozen=True)
class Table:
    """A table. Columns whose title begins with `#` are set flush right. `empty` is the sentence for no rows."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    empty: str
    on_paper: bool = True
    """Whether the PDF has the rows as well; if not, it names the files that have them."""

    def numeric(self, column: int) -> bool:
        return self.columns[column].startswith("#")

    def wordy(self, column: int) -> bool:
        """Whether a cell of the column has more than a few words."""
        return any(len(line) > SHORT_LINE for row in self.rows for line in words(row.cells[column]).split("\n"))

    def unbroken(self, column: int) -> bool:
        """Whether the column has a word that is long enough to be broken anywhere."""
        return any(len(word) > LONG_WORD for row in self.rows for word in words(row.cells[column]).split())

    def signed(self, column: int) -> bool:
        """Whether people write into the column by hand."""
        return any(row.cells[column] == ("",) for row in self.rows)

    def title(self, column: int) -> str:
        return self.columns[column].removeprefix("#")


@dataclass(frozen=True)
class Drawing:
    """A plot, its title, and a description for readers who cannot see it."""

    title: str
    description: str
    figure: "Figure"

    @property
    def label(self) -> str:
        """The text that a screen reader reads instead of the plot."""
        return f"{self.title}: {self.description}"


@dataclass(frozen=True)
class DrawingGroup:
    """Drawings that stand side by side if there is room."""

    drawings: tuple[Drawing, ...]


Block = Text | Bullets | Facts | Table | DrawingGroup


@dataclass(frozen=True)
class Section:
    """A section. Its anchor is its letter, or a word for sections after the lettered ones."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]

    @property
    def heading(self) -> str:
        return f"{self.anchor} · {self.title}" if len(self.anchor) == 1 else self.title


@dataclass(frozen=True)
class Card:
    """A figure of the first screen: its name, its value, and a line about it."""

    title: str
    value: Cell
    remark: Cell
    share: float | None = None
    """The full part of a bar, in 0..1; None for no bar."""


@dataclass(frozen=True)
class Document:
    """A whole report, before it becomes HTML or PDF."""

    kind: str
    title: str
    heading: str
    lead: Badge
    """The sentence under the title."""
    created: str
    cards: tuple[Card, ...]
    front: tuple[Section, ...]
    """The first page, which stands before the list of sections."""
    sections: tuple[Section, ...]
    foot: str
    language: str = "en"

    @property
    def anchors(self) -> frozenset[str]:
        """All anchors that a link can lead to."""
        rows = (row.anchor for table in self.tables() for row in table.rows if row.anchor)
        return frozenset([*rows, *(section.anchor for section in (*self.front, *self.sections))])

    def tables(self) -> Iterator[Table]:
        for section in (*self.front, *self.sections):
            yield from (block for block in section.blocks if isinstance(block, Table))


def cell(content: Content) -> Cell:
    return content if isinstance(content, tuple) else (content,)


def stack(*contents: Content) -> Cell:
    """Several contents in one cell, each on a line of its own."""
    return tuple(part for content in contents for part in (Break(), *cell(content)))[1:]


def row(*contents: Content, anchor: str | None = None) -> TableRow:
    return TableRow(tuple(cell(content) for content in contents), anchor)


def table(
    caption: str,
    items: Iterable[Item],
    columns: Mapping[str, Callable[[Item], Content]],
    empty: str,
    on_paper: bool = True,
) -> Table:
    """A table with a row for each item. `columns` maps the title of a column to the function of its cells."""
    rows = (row(*(content(item) for content in columns.values())) for item in items)
    return Table(caption, tuple(columns), tuple(rows), empty, on_paper)


def fact(label: str, value: Content, source: Content = ()) -> Fact:
    return Fact(label, cell(value), cell(source))


def printable(text: str) -> str:
    """Untrusted text with hidden characters made visible; without its middle beyond `MAX_CHARACTERS`."""
    return for_pdf(text, MAX_CHARACTERS)


def words(content: Sequence[Inline]) -> str:
    """The text of a cell."""
    return "".join("\n" if isinstance(part, Break) else printable(_text(part)) for part in content)


def _text(part: str | Number | Time | Digest | Code | Link | Badge) -> str:
    return part if isinstance(part, str) else part.text


def plain(text: str | None) -> str:
    return NONE if text is None or text == "" else text


def count(number: int | None) -> Inline:
    """A count, with commas at the thousands."""
    return NONE if number is None else Number(f"{number:,}", str(number))


def figure(number: float | None, missing: str = NONE) -> Inline:
    """A figure with six digits, or the text for a missing one."""
    return missing if number is None else Number(f"{number:g}", repr(number))


def at_most(bound: float | None) -> Inline:
    """An upper bound, rounded up at the third decimal."""
    return NONE if bound is None else _rounded(bound, ROUND_CEILING)


def at_least(bound: float | None) -> Inline:
    """A lower bound, rounded down at the third decimal."""
    return NONE if bound is None else _rounded(bound, ROUND_FLOOR)


def percent(share: float | None) -> Inline:
    """A share in 0..1, in percent to one decimal."""
    return NONE if share is None else Number(f"{100 * share:.1f} %", repr(share))


def digest(full: str | None) -> Inline:
    return NONE if full is None else Digest(full)


def yes(answer: bool | None) -> str:
    return NONE if answer is None else "yes" if answer else "no"


def moment(time: str | None) -> Inline:
    """An ISO 8601 time in UTC, to the second. A text of another form stays as it is."""
    if time is None:
        return NONE
    match = UTC.fullmatch(time)
    return Time(f"{match[1]} {match[2]}", time) if match else time


def section_links(sections: Sequence[str]) -> Cell:
    """Links to sections by their letters."""
    return with_commas([Link(letter, letter) for letter in sections])


def sentence(text: str) -> Cell:
    """A sentence in which figures stand out and are never broken."""
    pieces = FIGURE.split(text)
    return tuple(Number(piece, piece) if place % 2 else piece for place, piece in enumerate(pieces) if piece)


def with_commas(parts: Sequence[Inline]) -> Cell:
    """The parts, separated by commas."""
    return tuple(piece for part in parts for piece in (", ", part))[1:] or (NONE,)


def links_to(kind: Literal["entry", "record"], numbers: Sequence[int]) -> Cell:
    """Links to entries of the log or records of the ledger. Consecutive numbers become a range."""
    ranges = list[list[int]]()
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    if not ranges:
        return (NONE,)
    several = {"entry": "entries", "record": "records"}[kind] if len(set(numbers)) > 1 else kind
    links = [_range(kind, ends) for ends in ranges]
    if len(links) > 6:
        links = [*links[:3], ("…",), links[-1]]
    return (f"{several} ", *[piece for link in links for piece in (", ", *link)][1:])


def _range(kind: str, ends: Sequence[int]) -> Cell:
    links = [Link(str(end), f"{kind}-{end}") for end in ends]
    return (links[0], "–", links[1]) if len(links) == 2 else (links[0],)


def _rounded(bound: float, rounding: str) -> Number:
    exact = Decimal(repr(bound))
    text = f"{exact.quantize(THOUSANDTH, rounding=rounding).normalize():f}" if exact.is_finite() else "unbounded"
    return Number(text, repr(bound))
