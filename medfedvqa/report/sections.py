"""The lettered sections and the appendix, made from the list of figures: each figure's unit decides its form."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from medfedvqa.report import figure_blocks, governance
from medfedvqa.report.blocks import (
    NONE,
    Badge,
    Block,
    Bullets,
    Cell,
    Code,
    Content,
    Digest,
    Fact,
    Facts,
    Inline,
    Link,
    Section,
    Table,
    TableRow,
    Text,
    Tone,
    at_least,
    at_most,
    cell,
    count,
    digest,
    fact,
    figure,
    links_to,
    moment,
    percent,
    plain,
    row,
    section_links,
    with_commas,
    yes,
)
from medfedvqa.report.figure_blocks import source_cell
from privacy.report.figures import REPORT, Figure, Listing, Report
from privacy.report.join import JoinedReport

TONES: Mapping[str, Tone] = {"shown": "good", "supports": "good", "broken": "bad"}
"""The tones of verdicts and of support; others are open."""
NAMED_PLACE = re.compile(r"(record|entry) (\d+)")
JOINED: Mapping[str, Content] = {
    ",": ", ",
    "code": ", code ",
    "of": " of ",
    ":": ": ",
    "to": " to ",
    "+": figure_blocks.BREAK,
}
"""Labels of figures that share the cell of the figure before them, and the text between both."""


@dataclass
class Lines:
    """One block as lines: its mark, its title, the options after the title, and its figures."""

    sign: str
    title: str
    options: list[str]
    figures: list[Figure] = field(default_factory=list)


@dataclass
class SectionLines:
    """The lines of one section."""

    anchor: str
    title: str
    blocks: list[Lines] = field(default_factory=list)


@cache
def parts(listing: Listing) -> tuple[SectionLines, ...]:
    """The sections of a list, without the first page."""
    found: list[SectionLines] = []
    for line in filter(None, listing.lines):
        if line.startswith("# "):
            anchor, _, title = line[2:].partition(" ")
            found.append(SectionLines(anchor, title))
        elif line.startswith(("- ", "* ", "% ", "+ ", "=", "@ ")):
            title, *options = line[2:].split(" | ")
            found[-1].blocks.append(Lines(line[0], title, options))
        else:
            found[-1].blocks[-1].figures.append(Figure.parse(line, found[-1].anchor))
    return tuple(part for part in found if part.anchor != "front")


def sections(report: Report | JoinedReport, values: Mapping[str, Any], listing: Listing = REPORT) -> list[Section]:
    """All sections of a list. `values`: the report's values, nested like the ids of the list."""
    content = _Content(report, values)
    return [Section(part.anchor, part.title, tuple(content.blocks(part))) for part in parts(listing)]


class _Content:
    """The values of a report, by the ids of figures."""

    def __init__(self, report: Any, values: Mapping[str, Any]) -> None:
        self._report, self._values = report, values

    def blocks(self, part: SectionLines) -> Iterator[Block]:
        for lines in part.blocks:
            needed = next((option[2:] for option in lines.options if option.startswith("? ")), None)
            if needed is None or _at(self._values, needed):
                yield from self._block(lines)

    def _block(self, lines: Lines) -> Iterator[Block]:
        match lines.sign:
            case "@":
                yield from getattr(figure_blocks, lines.title)(self._report)
            case "=":
                name, _, value = lines.title.removeprefix("! ").partition(" is ")
                warning = bool(name) and str(_at(self._values, name)) == value
                texts = (_at(self._values, one.id) for one in lines.figures)
                yield from (Text((text,), warning) for text in texts if text)
            case "+":
                items = tuple(item for one in lines.figures for item in _at(self._values, one.id) or ())
                yield from (Bullets(lines.title, items),) if items else ()
            case "-":
                if facts := tuple(self._facts(lines.figures)):
                    yield Facts(lines.title, facts)
            case _:
                yield self._table(lines)

    def _facts(self, figures: Sequence[Figure]) -> Iterator[Fact]:
        for group in _groups(figures):
            cells = [_formed(one, _at(self._values, one.id), True) for one in group]
            if any(value != (NONE,) for value in cells) or group[0].id not in self._report.lacks:
                value = _stacked(group, cells)
                yield fact(group[0].label, value, source_cell(self._report, group[0].source))

    def _table(self, lines: Lines) -> Table:
        place, _, _ = lines.figures[0].id.partition(".*")
        groups = list(_groups(lines.figures))
        kind = lines.options[1] if len(lines.options) > 1 and not lines.options[1].startswith("?") else None
        rows = [_row(groups, place, item, kind) for item in _at(self._values, place) or ()]
        titles = tuple(group[0].label for group in groups)
        return Table(lines.title, titles, tuple(rows), lines.options[0], lines.sign == "*")


def _groups(figures: Sequence[Figure]) -> Iterator[list[Figure]]:
    """Groups of figures that share a cell, without those that are shown elsewhere."""
    group: list[Figure] = []
    for one in figures:
        if one.label in JOINED:
            group.append(one)
        elif one.label != ".":
            if group:
                yield group
            group = [one]
    if group:
        yield group


def _row(groups: Sequence[list[Figure]], place: str, item: Any, kind: str | None) -> TableRow:
    cells = [_stacked(group, [_of_item(one, one.id[len(place) + 3 :], item) for one in group]) for group in groups]
    first = groups[0][0].id[len(place) + 3 :]
    return row(*cells, anchor=kind and f"{kind}-{_at(item, first)}")


def _of_item(one: Figure, path: str, item: Any) -> Cell:
    """A figure of a row; of a list within the row all figures together."""
    within, nested, _ = path.partition(".*.")
    if nested:
        draw: Callable[[Any], Cell] = getattr(figure_blocks, within.rpartition(".")[2])
        return draw(_at(item, within)) or (NONE,)
    return _formed(one, _at(item, path), False)


def _stacked(group: Sequence[Figure], cells: Sequence[Cell]) -> Cell:
    between: list[Cell] = [(), *(cell(JOINED[one.label]) for one in group[1:])]
    return tuple(part for before, value in zip(between, cells, strict=True) for part in (*before, *value))


def _at(values: Any, path: str) -> Any:
    """The value at a path; None where there is none."""
    for step in path.split("."):
        values = values.get(step) if isinstance(values, Mapping) else None
    return values


def _formed(one: Figure, value: Any, with_unit: bool) -> Cell:
    """A value in the form of its unit. The name of a counted unit follows in facts."""
    if one.many and one.unit in _LISTS:
        return cell(_LISTS[one.unit](value or ()))
    if one.many:
        return with_commas([str(item) for item in value or () if item is not None])
    if one.unit in _FORMS:
        return cell(_FORMS[one.unit](value))
    if "/" in one.unit:
        return (Badge(value, TONES.get(value, "open")) if one.unit.startswith(("s", "supports")) else plain(value),)
    counted = count(value)
    return (counted, f" {one.unit}") if with_unit and value is not None else (counted,)


def with_links(text: str | None) -> Cell:
    """A sentence in which records and entries are links."""
    parts, end = list[Inline](), 0
    for match in NAMED_PLACE.finditer(text or ""):
        parts += [(text or "")[end : match.start()], Link(match[0], f"{match[1]}-{match[2]}")]
        end = match.end()
    return tuple(part for part in [*parts, (text or "")[end:]] if part) or (NONE,)


def state(verdict: str) -> Badge:
    """A verdict as a badge."""
    return Badge(verdict, TONES.get(verdict, "open"))


def _place(kind: str, number: int | None) -> Inline:
    return NONE if number is None else Link(str(number) if kind == "entry" else f"record {number}", f"{kind}-{number}")


_ATTESTED = {
    True: "yes",
    False: "no: a delta that large may reveal whole patients",
    None: "the site does not attest it",
}
_FORMS: Mapping[str, Callable[[Any], Content]] = {
    "epsilon": at_most,
    "least epsilon": at_least,
    "delta": figure,
    "mu": figure,
    "number": figure,
    "norm": figure,
    "limit": lambda value: figure(value, "no limit"),
    "colluders": lambda value: figure(value, "all: no noise is shared"),
    "share": percent,
    "time": moment,
    "sha256": digest,
    "sent sha256": lambda value: "shared: no message held it" if value is None else Digest(value),
    "code": lambda value: Code(str(value)),
    "name": plain,
    "words": with_links,
    "yes or no": yes,
    "exact, yes or no": {True: "exact", False: "an approximation, no bound", None: NONE}.__getitem__,
    "event": lambda value: value or "withheld",
    "attested, yes or no": _ATTESTED.__getitem__,
    "entry": partial(_place, "entry"),
    "record": partial(_place, "record"),
    "number of a round": count,
    "seed": count,
    "given": lambda value: value or governance.MISSING,
    "shares": lambda value: "yes, means with CrypTen" if value == "crypten" else yes(bool(value)),
    "versions": lambda value: ", ".join(f"{name} {version or NONE}" for name, version in value.items()),
    "number of an attempt": count,
}
_LISTS: Mapping[str, Callable[[Sequence[Any]], Content]] = {
    "anyone": lambda values: ", ".join(values) or "any",
    "entry": partial(links_to, "entry"),
    "record": partial(links_to, "record"),
    "letters": section_links,
    "length": lambda values: count(len(values)),
    "sha256": lambda values: with_commas([Digest(value) for value in values]),
    "shape": lambda values: "\u00a0×\u00a0".join(map(str, values)) or "scalar",
}
