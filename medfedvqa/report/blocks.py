"""What a page is made of, for paper and screen alike: inline parts, blocks, sections."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Literal

from audits.escaping import for_pdf

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONE = "—"
"""Stands where there is no figure: a 0 would claim one."""
LINE, WORD = 24, 22
"""Letters of a short line, and of the longest word that is not broken."""
MOST = 4_000
"""Characters of a part of a cell; it takes as many to list some hundred sites."""
THOUSANDTH = Decimal("0.001")

FIGURE = re.compile(r"(?<![^\s(])(\d+(?:\.\d+)?(?:e-\d+)?)(?=[\s,.;:)]|$)")
UTC = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)")

Tone = Literal["good", "bad", "open"]


@dataclass(frozen=True)
class Number:
    """A figure as it is printed, and all of its digits."""

    text: str
    exact: str


@dataclass(frozen=True)
class Time:
    """A time as it is printed, to the second, and as it stands in the evidence."""

    text: str
    exact: str


@dataclass(frozen=True)
class Digest:
    """A digest or key: printed short, and in full in the last table of the page."""

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
    """Words that lead to an anchor of the same page, if it is there."""

    text: str
    target: str


@dataclass(frozen=True)
class Badge:
    """A state in words, and how it is coloured."""

    text: str
    tone: Tone


@dataclass(frozen=True)
class Break:
    """The end of a line within a cell."""


Inline = str | Number | Time | Digest | Code | Link | Badge | Break
Cell = tuple[Inline, ...]
Content = Inline | Cell


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
    """One figure: what it is, its value, where it comes from."""

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
class Row:
    """Cells of a table, the first of which names the row; other parts can lead to its anchor."""

    cells: tuple[Cell, ...]
    anchor: str | None = None


@dataclass(frozen=True)
class Table:
    """A table; in columns whose title begins with `#` figures are set flush right. Without rows, `empty` is said."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    empty: str

    def numeric(self, column: int) -> bool:
        return self.columns[column].startswith("#")

    def wordy(self, column: int) -> bool:
        """Whether a cell of it has more than a few words."""
        return any(len(line) > LINE for one in self.rows for line in words(one.cells[column]).split("\n"))

    def unbroken(self, column: int) -> bool:
        """Whether a word of it is so long that it has to be broken anywhere."""
        return any(len(word) > WORD for one in self.rows for word in words(one.cells[column]).split())

    def title(self, column: int) -> str:
        return self.columns[column].removeprefix("#")


@dataclass(frozen=True)
class Drawing:
    """A figure, its title, and a description for who does not see it."""

    title: str
    description: str
    figure: "Figure"


@dataclass(frozen=True)
class Pictures:
    """Drawings that stand side by side where there is room."""

    drawings: tuple[Drawing, ...]


Block = Text | Bullets | Facts | Table | Pictures


@dataclass(frozen=True)
class Section:
    """One section; `anchor` is its letter, or a word for what follows the lettered ones."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]

    @property
    def heading(self) -> str:
        return f"{self.anchor} · {self.title}" if len(self.anchor) == 1 else self.title


@dataclass(frozen=True)
class Card:
    """A figure of the first screen: its name, itself, one line about it."""

    title: str
    value: Cell
    said: Cell
    share: float | None = None
    """Of a bar that is full, in 0..1."""


@dataclass(frozen=True)
class Document:
    """A whole report, before it is set."""

    kind: str
    title: str
    claim: str
    claimed: bool
    created: str
    cards: tuple[Card, ...]
    sections: tuple[Section, ...]
    foot: str

    @property
    def anchors(self) -> frozenset[str]:
        """All that a link can lead to."""
        rows = (row.anchor for table in self.tables() for row in table.rows if row.anchor)
        return frozenset([*rows, *(section.anchor for section in self.sections)])

    def tables(self) -> Iterator[Table]:
        for section in self.sections:
            yield from (block for block in section.blocks if isinstance(block, Table))


def cell(content: Content) -> Cell:
    return content if isinstance(content, tuple) else (content,)


def row(*contents: Content, anchor: str | None = None) -> Row:
    return Row(tuple(cell(content) for content in contents), anchor)


def fact(label: str, value: Content, source: Content = ()) -> Fact:
    return Fact(label, cell(value), cell(source))


def shown(text: str) -> str:
    """Text from elsewhere, whose characters all show themselves, without its middle if it is longer than `MOST`."""
    return for_pdf(text, MOST)


def words(content: Sequence[Inline]) -> str:
    """What a cell says."""
    return "".join("\n" if isinstance(part, Break) else shown(_text(part)) for part in content)


def _text(part: str | Number | Time | Digest | Code | Link | Badge) -> str:
    return part if isinstance(part, str) else part.text


def plain(text: str | None) -> str:
    return NONE if text is None or text == "" else text


def count(number: int | None) -> Inline:
    """With commas at the thousands."""
    return NONE if number is None else Number(f"{number:,}", str(number))


def figure(number: float | None) -> Inline:
    """To six digits."""
    return NONE if number is None else Number(f"{number:g}", repr(number))


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
    """A time of ISO 8601 in UTC, to the second; what is none stays as it is."""
    if time is None:
        return NONE
    found = UTC.fullmatch(time)
    return Time(f"{found[1]} {found[2]}", time) if found else time


def letters(sections: Sequence[str]) -> Cell:
    """Links to sections by their letters."""
    return spread([Link(letter, letter) for letter in sections])


def sentence(text: str) -> Cell:
    """A sentence whose figures stand out and are not broken."""
    pieces = FIGURE.split(text)
    return tuple(Number(piece, piece) if place % 2 else piece for place, piece in enumerate(pieces) if piece)


def spread(parts: Sequence[Inline]) -> Cell:
    """Parts with commas between them."""
    return tuple(piece for part in parts for piece in (", ", part))[1:] or (NONE,)


def numbered(what: Literal["entry", "record"], numbers: Sequence[int]) -> Cell:
    """Links to entries of the log or records of the ledger, those that follow one another as a range."""
    ranges = list[list[int]]()
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    if not ranges:
        return (NONE,)
    several = {"entry": "entries", "record": "records"}[what] if len(set(numbers)) > 1 else what
    links = [_range(what, ends) for ends in ranges]
    if len(links) > 6:
        links = [*links[:3], ("…",), links[-1]]
    return (f"{several} ", *[piece for link in links for piece in (", ", *link)][1:])


def _range(what: str, ends: Sequence[int]) -> Cell:
    links = [Link(str(end), f"{what}-{end}") for end in ends]
    return (links[0], "–", links[1]) if len(links) == 2 else (links[0],)


def _rounded(bound: float, way: str) -> Number:
    exact = Decimal(repr(bound))
    text = f"{exact.quantize(THOUSANDTH, rounding=way).normalize():f}" if exact.is_finite() else "unbounded"
    return Number(text, repr(bound))
