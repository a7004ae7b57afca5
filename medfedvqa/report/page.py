"""Sets a document as an HTML page: one file that loads nothing else."""

from collections.abc import Iterator, Sequence
from importlib.resources import files

from audits.escaping import Child, Html, for_html, tag
from medfedvqa.figures import inline_svg
from medfedvqa.report import blocks
from medfedvqa.report.blocks import (
    MAX_CHARACTERS,
    Block,
    Cell,
    Document,
    Drawing,
    Fact,
    Inline,
    Section,
    Table,
    TableRow,
)
from medfedvqa.report.document import anchor

LONG_TABLE = 60
"""The number of rows above which a table scrolls by itself."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
LINE_FEED = Html("\n")


def page(document: Document) -> str:
    """The document as HTML."""
    return f"<!doctype html>\n{_Page(document.anchors).document(document)}\n"


def _text(text: str) -> Html:
    """Untrusted text, escaped."""
    return Html(for_html(text, MAX_CHARACTERS))


def _line(name: str, *children: Child, **attributes: str | None) -> Html:
    """An element with a line feed after it."""
    return Html(f"{tag(name, *children, **attributes)}\n")


class _Page:
    """Makes the elements of a page. A link to an anchor that is not in `anchors` becomes text."""

    def __init__(self, anchors: frozenset[str]) -> None:
        self._anchors = anchors

    def document(self, document: Document) -> Html:
        css = files("medfedvqa.report").joinpath("page.css").read_text(encoding="utf-8")
        head = _line(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=Html(POLICY)),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", _text(document.title), " · ", _text(document.kind)),
            _line("style", Html(f"\n{css}")),
        )
        top = _line(
            "header",
            _line("p", _text(document.kind), " · ", _text(document.title), class_="name"),
            _line("h1", _text(document.heading)),
            _line("p", *self._cell(blocks.sentence(document.lead.text)), class_=f"lead {document.lead.tone}"),
            _line("dl", *map(self._card, document.cards), class_="cards") if document.cards else None,
        )
        every = (*document.front, *document.sections)
        places = (_line("li", tag("a", *_heading(section), href=f"#{section.anchor}")) for section in every)
        sections = (self._section(place, section) for place, section in enumerate(every))
        body = tag(
            "body",
            tag("a", "Skip to the sections", class_="skip", href="#main") if document.sections else None,
            top,
            _line("nav", tag("ol", *places), aria_label="Sections") if document.sections else None,
            tag("main", *sections, id="main", tabindex="-1"),
            tag("footer", _line("p", _text(document.foot))),
        )
        return tag("html", head, body, lang=document.language)

    def _card(self, card: blocks.Card) -> Html:
        filled = None if card.share is None else tag("span", style=f"width: {100 * card.share:.1f}%")
        bar = filled and tag("dd", filled, class_="bar", aria_hidden="true")
        value = tag("dd", *self._cell(card.value), class_="value")
        remark = tag("dd", *self._cell(card.remark), class_="said")
        return _line("div", tag("dt", _text(card.title)), value, bar, remark)

    def _section(self, place: int, section: Section) -> Html:
        name = f"{section.anchor}-title"
        parts = (
            part for number, block in enumerate(section.blocks) for part in self._block(block, (place, number), name)
        )
        heading = _line("h2", _text(section.heading), id=name)
        return _line("section", heading, *parts, id=section.anchor, aria_labelledby=name)

    def _block(self, block: Block, place: tuple[int, int], section: str) -> Iterator[Html]:
        """The block's elements. A table without a caption is named by its section's heading."""
        match block:
            case blocks.Text():
                yield _line("p", *self._cell(block.cell), class_="warning" if block.warning else None)
            case blocks.Bullets():
                yield from _caption(block.title)
                yield _line("ul", *(_line("li", _text(item)) for item in block.items))
            case blocks.Facts():
                yield _line("h3", _text(block.title))
                yield _line("dl", *map(self._fact, block.facts), class_="small facts" if block.small else "facts")
            case blocks.DrawingGroup():
                yield _line("div", *map(_picture, block.drawings), class_="pictures")
            case blocks.Table(rows=()):
                yield from _caption(block.caption)
                yield _line("p", _text(block.empty), class_="empty")
            case blocks.Table():
                yield self._table(block, f"table-{place[0]}-{place[1]}" if block.caption else section)

    def _fact(self, fact: Fact) -> Html:
        source = tag("dd", *self._cell(fact.source), class_="source") if fact.source else None
        return _line("div", tag("dt", _text(fact.label)), tag("dd", *self._cell(fact.value)), source)

    def _table(self, table: Table, name: str) -> Html:
        columns = range(len(table.columns))
        looks = [_look(table, column) for column in columns]
        heads = (tag("th", _text(table.title(column)), scope="col", class_=looks[column]) for column in columns)
        titles = [table.title(column) for column in columns]
        rows = (self._row(row, titles, looks) for row in table.rows)
        whole = tag(
            "table",
            _line("caption", _text(table.caption), id=name) if table.caption else None,
            _line("thead", _line("tr", *heads)),
            tag("tbody", *rows),
            aria_labelledby=None if table.caption else name,
        )
        scrolls = "long scroll" if len(table.rows) > LONG_TABLE else "scroll"
        return _line("div", whole, class_=scrolls, role="region", aria_labelledby=name, tabindex="0")

    def _row(self, row: TableRow, titles: Sequence[str], looks: Sequence[str | None]) -> Html:
        """A row; on a phone it becomes a card, in which each cell has its column's title before it."""
        first, *others = (self._cell(cell) for cell in row.cells)
        cells = [
            tag("td", *cell, class_=look, data_title=_text(title))
            for cell, title, look in zip(others, titles[1:], looks[1:], strict=True)
        ]
        head = tag("th", *first, scope="row", class_=looks[0])
        return _line("tr", head, *cells, id=row.anchor and _text(row.anchor))

    def _cell(self, cell: Cell) -> list[Child]:
        return [self._inline(part) for part in cell]

    def _inline(self, part: Inline) -> Html:
        match part:
            case blocks.Break():
                return LINE_FEED
            case blocks.Time():
                return tag("time", _text(part.text), datetime=_text(part.exact))
            case blocks.Number():
                title = None if part.exact == part.text else _text(part.exact)
                return tag("data", _text(part.text), value=_text(part.exact), title=title)
            case blocks.Digest() if part.text != part.full:
                full = _text(part.full)
                return tag("a", _text(part.text), class_="digest", href=f"#{anchor(part.full)}", title=full)
            case blocks.Digest() | blocks.Code():
                return tag("code", _text(part.text))
            case blocks.Link() if part.target in self._anchors:
                return tag("a", _text(part.text), href=Html(f"#{_text(part.target)}"))
            case blocks.Badge():
                return tag("span", _text(part.text), class_=f"badge {part.tone}")
            case str():
                return _text(part)
            case _:
                return _text(part.text)


def _caption(title: str) -> Iterator[Html]:
    if title:
        yield _line("h3", _text(title))


def _heading(section: Section) -> tuple[Child, ...]:
    lettered = len(section.anchor) == 1
    return (tag("b", section.anchor), " ", _text(section.title)) if lettered else (_text(section.title),)


def _picture(drawing: Drawing) -> Html:
    svg = Html(inline_svg(drawing.figure, drawing.label))
    return tag("figure", tag("figcaption", _text(drawing.title)), svg)


def _look(table: Table, column: int) -> str | None:
    looks = {"number": table.numeric, "wordy": table.wordy, "unbroken": table.unbroken}
    return " ".join(name for name, holds in looks.items() if holds(column)) or None
