"""The PDF: what the page says, set on A4 with bookmarks, links and page numbers.

Fonts are those that matplotlib brings; only the letters used are in the file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import cast

from fpdf import FPDF
from fpdf.fonts import TTFFont
from fpdf.prefs import ViewerPreferences
from fpdf.util import Padding

from audits.escaping import number
from medfedvqa.figures import encoded
from medfedvqa.report import appendix, blocks
from medfedvqa.report.blocks import Badge, Block, Cell, Code, Digest, Document, Inline, Link, Section

SANS, MONO = "sans", "mono"
MARGIN, BOTTOM = 15.0, 17.0
WIDTH = 210.0 - 2 * MARGIN
PAD = 1.2
"""Millimetres of all these, and of all lengths below."""
TEXT, SMALL, TINY = 8.5, 7.5, 6.3
"""Points of text, facts and tables."""
LEADING = 1.4 * 25.4 / 72
"""Height of a line of text for each point of its size."""
HARD, SOFT, RULE = (26, 31, 36), (86, 94, 104), (216, 218, 212)
ACCENT, WARNING, WASH = (10, 86, 132), (161, 28, 22), (251, 230, 228)
"""The page's colours by day."""
SIGNATURE = 12.0
INSET = Padding(1.5, 1.5, 1.5, 1.5)
PAGES = "{nb}\x00"
"""Stands for the number of pages while a page is set. No text of others holds it once it is escaped."""


@dataclass(frozen=True)
class Column:
    """Where a column begins, how wide it is, and how it is set."""

    x: float
    width: float
    numeric: bool = False
    colour: tuple[int, int, int] = HARD


def paper(document: Document) -> bytes:
    """The document as PDF: set twice, for its list of sections says on which page each is.

    Raises `ValueError` if the report's date is none.
    """
    draft = _Paper(document, {})
    final = _Paper(document, draft.begun)
    content = bytes(final.output())
    for font in (*draft.fonts.values(), *final.fonts.values()):
        if isinstance(font, TTFFont):
            font.ttfont.close()
    return content


class _Paper(FPDF):
    """One setting of the document; `known` are its sections' pages, as an earlier one found them."""

    def __init__(self, document: Document, known: Mapping[str, int]) -> None:
        super().__init__(format="A4")
        self.document, self.begun = document, dict[str, int]()
        self._fonts()
        self.alias_nb_pages(PAGES)
        self.set_title(f"{blocks.shown(document.title)} · {document.kind}")
        self.set_subject(blocks.shown(document.claim))
        self.set_lang("en")
        self.set_creator("medfedvqa")
        self.set_creation_date(datetime.fromisoformat(document.created))
        self.viewer_preferences = ViewerPreferences(display_doc_title=True)
        self.set_margins(MARGIN, MARGIN)
        self.set_auto_page_break(False)
        self.c_margin = 0.0
        self.set_line_width(0.15)
        self.anchors = document.anchors
        self.add_page()
        self._first_screen(known)
        for section in document.sections:
            self._section(section)

    def footer(self) -> None:
        """Title and page number."""
        self.set_y(-11)
        self._font(TINY, colour=SOFT)
        self.cell(WIDTH / 2, 4, self._fitting(blocks.shown(self.document.title), WIDTH / 2))
        self.cell(WIDTH / 2, 4, f"{self.page_no()} / {PAGES}", align="R")

    def normalize_text(self, text: str) -> str:
        """The text as fpdf2 sets it: a letter that the font lacks, an empty box otherwise, is written as its number."""
        known = self.current_font.cmap if isinstance(self.current_font, TTFFont) else {}
        return "".join(one if ord(one) in known or one in "\n\x00" else number(one) for one in text)

    def _fonts(self) -> None:
        import matplotlib

        folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        self.add_font(SANS, "", folder / "DejaVuSans.ttf")
        self.add_font(SANS, "B", folder / "DejaVuSans-Bold.ttf")
        self.add_font(MONO, "", folder / "DejaVuSansMono.ttf")

    def _font(self, size: float, bold: bool = False, mono: bool = False, colour: tuple[int, int, int] = HARD) -> None:
        self.set_font(MONO if mono else SANS, "B" if bold and not mono else "", size)
        self.set_text_color(*colour)

    def _fitting(self, text: str, width: float) -> str:
        """As much of the text as there is room for. No more letters are measured than fit, however many it has."""
        room, end, used = width - self.get_string_width("…"), 0, 0.0
        for place, letter in enumerate(text, 1):
            used += self.get_string_width(letter)
            if used > width:
                return f"{text[:end]}…"
            end = place if used <= room else end
        return text

    def _first_screen(self, known: Mapping[str, int]) -> None:
        it = self.document
        self._text(it.kind, 10, colour=SOFT)
        self._text(blocks.shown(it.title), 18, bold=True, after=2)
        self._text(blocks.shown(it.claim), 10, after=5, colour=HARD if it.claimed else WARNING)
        self._cards()
        half = (len(it.sections) + 1) // 2
        columns = [Column(MARGIN + at, wide, False, colour) for at, wide, colour in _CONTENTS]
        for pair in zip(it.sections[:half], [*it.sections[half:], None], strict=False):
            cells = list[Cell]()
            for section in pair:
                heading = (Link(section.heading, section.anchor),) if section else ()
                cells += [heading, (str(known.get(section.anchor, "")),) if section else ()]
            self._row(cells, columns, TEXT, rule=False)
        self.ln(2)
        self._text(blocks.shown(it.foot), TINY, colour=SOFT, after=4)

    def _cards(self) -> None:
        width, height, top = WIDTH / 4, 22.0, self.get_y()
        self.set_draw_color(*RULE)
        self.rect(MARGIN, top, WIDTH, height)
        for place, card in enumerate(self.document.cards):
            x = MARGIN + place * width
            if place:
                self.line(x, top, x, top + height)
            for y, size, bold, content in ((2, 7, False, (card.title,)), (6, 14, True, card.value)):
                self._font(size, bold, colour=HARD if bold else SOFT)
                self.set_xy(x + 3, top + y)
                self.cell(width - 5, size * LEADING, self._fitting(blocks.words(content), width - 5))
            self._font(7, colour=SOFT)
            self.set_xy(x + 3, top + 14)
            self.multi_cell(width - 5, 7 * LEADING, blocks.words(card.said), align="L")
        self.set_xy(MARGIN, top + height + 5)

    def _section(self, section: Section) -> None:
        self._need(38)
        self.set_draw_color(*HARD)
        self.set_line_width(0.4)
        self.line(MARGIN, self.get_y(), MARGIN + WIDTH, self.get_y())
        self.set_line_width(0.15)
        self.ln(2)
        self.start_section(section.heading)
        self.begun[section.anchor] = self.page_no()
        self._arrive(section.anchor)
        self._text(section.heading, 13, bold=True, after=2.5)
        for block in section.blocks:
            self._block(block)
        self.ln(4)

    def _block(self, block: Block) -> None:
        match block:
            case blocks.Text():
                self._paragraph(block)
            case blocks.Bullets():
                self._caption(block.title)
                for item in block.items:
                    self._row([("•",), (item,)], [Column(MARGIN, 4), Column(MARGIN + 4, 150)], TEXT, rule=False)
            case blocks.Facts():
                self._facts(block)
            case blocks.Pictures():
                self._pictures(block)
            case blocks.Table():
                self._table(block)
        self.ln(3)

    def _paragraph(self, block: blocks.Text) -> None:
        self._need(14)
        if not block.warning:
            return self._text(blocks.words(block.cell), TEXT, width=165)
        self.set_fill_color(*WASH)
        self._font(TEXT, colour=WARNING)
        self.set_x(MARGIN)
        self.multi_cell(WIDTH, TEXT * LEADING, blocks.words(block.cell), align="L", fill=True, padding=INSET)
        self.set_x(MARGIN)

    def _facts(self, block: blocks.Facts) -> None:
        self._caption(block.title)
        if block.small:
            deep = -(-len(block.facts) // 3)
            thirds = [MARGIN + third * 62 for third in range(3)]
            columns = [column for x in thirds for column in (Column(x, 33, False, SOFT), Column(x + 34, 22, True))]
            for depth in range(deep):
                cells = list[Cell]()
                for one in block.facts[depth::deep]:
                    cells += [(one.label,), one.value]
                self._row(cells, columns, TINY)
            return
        names, places = Column(MARGIN, 38, colour=SOFT), Column(MARGIN + 138, 42, colour=SOFT)
        for one in block.facts:
            values = Column(MARGIN + 40, 96 if one.source else 140)
            self._row([(one.label,), one.value, one.source], [names, values, places], SMALL)

    def _table(self, block: blocks.Table) -> None:
        self._caption(block.caption)
        if not block.rows:
            return self._text(block.empty, TEXT, colour=SOFT)
        columns = self._columns(block)
        titles = [(block.title(place),) for place in range(len(columns))]

        def head() -> None:
            self._row(titles, columns, TINY, bold=True)

        head()
        for one in block.rows:
            self._row(one.cells, columns, TINY, anchor=one.anchor, head=head)

    def _columns(self, block: blocks.Table) -> list[Column]:
        """As wide as their text where there is room; else the widest share what the others leave."""
        wanted = list[float]()
        for place, title in enumerate(block.columns):
            self._font(TINY, bold=True)
            widest = max(self.get_string_width(word) for word in title.removeprefix("#").split())
            for one in block.rows:
                self._face(one.cells[place], TINY)
                lines = blocks.words(one.cells[place]).split("\n")
                widest = max([widest, *(self.get_string_width(line) for line in lines)])
            empty = any(one.cells[place] == ("",) for one in block.rows)
            wanted.append(max(widest + 2 * PAD + 0.2, 34.0 if empty else 0.0))
        cap = _level(wanted, WIDTH)
        fitted = [min(width, cap) for width in wanted]
        stretch = WIDTH / sum(fitted)
        columns, x = list[Column](), MARGIN
        for place, width in enumerate(fitted):
            columns.append(Column(x + PAD, width * stretch - 2 * PAD, block.numeric(place)))
            x += width * stretch
        return columns

    def _row(
        self,
        cells: Sequence[Cell],
        columns: Sequence[Column],
        size: float,
        bold: bool = False,
        rule: bool = True,
        anchor: str | None = None,
        head: Callable[[], None] | None = None,
    ) -> None:
        """Cells side by side, kept together unless they are longer than a page; `head` is set again on a new one."""
        height = size * LEADING
        lines = [self._lines(content, column, size, bold) for content, column in zip(cells, columns, strict=False)]
        deep = max(map(len, lines))
        least = SIGNATURE if head and any(content == ("",) for content in cells) else 0.0
        if self._need(max(min(deep * height, 200.0), least) + 2 * PAD) and head:
            head()
        if anchor:
            self._arrive(anchor)
        self.ln(PAD)
        top = self.get_y()
        for depth in range(deep):
            if self._need(height) and head:
                head()
            for content, column, said in zip(cells, columns, lines, strict=False):
                if depth < len(said):
                    self._set(content, column, said[depth], size, bold)
            self.set_xy(MARGIN, self.get_y() + height)
        self.set_y(max(self.get_y(), top + least) + (PAD if rule else 0.0))
        if rule:
            self.set_draw_color(*(SOFT if bold else RULE))
            self.line(columns[0].x - PAD * bool(head or bold), self.get_y(), MARGIN + WIDTH, self.get_y())

    def _set(self, content: Cell, column: Column, line: str, size: float, bold: bool) -> None:
        """One line of one cell; all of it leads to where its first link does."""
        target = next((f"#{name}" for part in content if (name := _target(part)) in self.anchors), "")
        self._face(content, size, bold, ACCENT if target else SOFT if bold else column.colour)
        y = self.get_y()
        self.set_x(column.x)
        self.cell(column.width, size * LEADING, line, align="R" if column.numeric else "L", link=target)
        self.set_y(y)

    def _lines(self, content: Cell, column: Column, size: float, bold: bool) -> list[str]:
        self._face(content, size, bold)
        said = blocks.words(content)
        if "\n" not in said and self.get_string_width(said) <= column.width:
            return [said]
        return self._wrapped(said, column.width, size)

    def _wrapped(self, said: str, width: float, size: float) -> list[str]:
        """The lines that the text takes in a column of this width, in the font that is set."""
        lines = self.multi_cell(width, size * LEADING, said, align="L", dry_run=True, output="LINES")
        # fpdf2 returns a list for this `output`; it annotates the results of all outputs together.
        return cast(list[str], lines)

    def _face(self, content: Cell, size: float, bold: bool = False, colour: tuple[int, int, int] = HARD) -> None:
        mono = bool(content) and all(isinstance(part, Code | Digest) for part in content)
        self._font(size, bold or any(isinstance(part, Badge) for part in content), mono, colour)

    def _pictures(self, block: blocks.Pictures) -> None:
        width, gap = (WIDTH - 6) / 2, 6.0
        for first in range(0, len(block.drawings), 2):
            pair = block.drawings[first : first + 2]
            height = max(width * _shape(drawing) for drawing in pair) + 7
            self._need(height)
            top = self.get_y()
            for place, drawing in enumerate(pair):
                x = MARGIN + place * (width + gap)
                self._font(SMALL, bold=True)
                self.set_xy(x, top)
                self.cell(width, 5, drawing.title)
                self.image(BytesIO(encoded(drawing.figure, "svg")), x, top + 7, width)
            self.set_xy(MARGIN, top + height)

    def _caption(self, title: str) -> None:
        self._need(22)
        self._text(title, TEXT, bold=True, after=0.8)

    def _text(
        self,
        said: str,
        size: float,
        bold: bool = False,
        after: float = 0.0,
        width: float = WIDTH,
        colour: tuple[int, int, int] = HARD,
    ) -> None:
        self._font(size, bold, colour=colour)
        self.set_x(MARGIN)
        for line in self._wrapped(said, width, size):
            self._need(size * LEADING)
            self._font(size, bold, colour=colour)
            self.cell(width, size * LEADING, line, new_x="LMARGIN", new_y="NEXT")
        self.ln(after)

    def _need(self, height: float) -> bool:
        """A new page if there is no room for so much; whether there was none."""
        if self.get_y() + height <= self.h - BOTTOM:
            return False
        self.add_page()
        return True

    def _arrive(self, anchor: str) -> None:
        self.set_link(name=anchor, y=self.get_y(), page=self.page_no())


_CONTENTS = ((0.0, 75.0, HARD), (77.0, 10.0, SOFT), (92.0, 75.0, HARD), (169.0, 10.0, SOFT))
"""Columns of the list of sections: begin, width, colour."""


def _target(part: Inline) -> str | None:
    """The anchor that a part leads to."""
    if isinstance(part, Digest):
        return appendix.anchor(part.full)
    return part.target if isinstance(part, Link) else None


def _shape(drawing: blocks.Drawing) -> float:
    """Height of a picture for each unit of its width."""
    width, height = drawing.figure.get_size_inches()
    return float(height / width)


def _level(wanted: Sequence[float], room: float) -> float:
    """The width that cuts the widest, so that all of them together have room."""
    left, rest = room, sorted(wanted)
    for place, width in enumerate(rest):
        share = left / (len(rest) - place)
        if width > share:
            return share
        left -= width
    return max(wanted)
