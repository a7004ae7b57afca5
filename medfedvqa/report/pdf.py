"""Sets a document as a PDF on A4, with bookmarks, links and page numbers.

The fonts are those of matplotlib; the file holds only the letters that it uses.
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
"""These lengths, and all lengths below, are in millimetres."""
TEXT, SMALL, TINY = 8.5, 7.5, 6.3
"""The sizes of text, facts and tables, in points."""
LEADING = 1.4 * 25.4 / 72
"""The height of a line of text for each point of its size."""
HARD, SOFT, RULE = (26, 31, 36), (86, 94, 104), (216, 218, 212)
ACCENT, WARNING, WASH = (10, 86, 132), (161, 28, 22), (251, 230, 228)
"""The colours of the HTML page in light mode."""
SIGNATURE = 12.0
INSET = Padding(1.5, 1.5, 1.5, 1.5)
PAGES = "{nb}\x00"
"""Stands for the number of pages while a page is set. No escaped text of others holds it."""


@dataclass(frozen=True)
class Column:
    """Where a column begins, how wide it is, and how it is set."""

    x: float
    width: float
    numeric: bool = False
    colour: tuple[int, int, int] = HARD


def pdf_bytes(document: Document) -> bytes:
    """The document as PDF. It is set twice, since the list of sections has their page numbers.

    Raises `ValueError` if the report's date is malformed.
    """
    draft = _PdfSetting(document, {})
    final = _PdfSetting(document, draft.section_pages)
    content = bytes(final.output())
    for font in (*draft.fonts.values(), *final.fonts.values()):
        if isinstance(font, TTFFont):
            font.ttfont.close()
    return content


class _PdfSetting(FPDF):
    """One setting of the document. `pages` has the page of each section, from an earlier setting."""

    def __init__(self, document: Document, pages: Mapping[str, int]) -> None:
        super().__init__(format="A4")
        self.document, self.section_pages = document, dict[str, int]()
        self._fonts()
        self.alias_nb_pages(PAGES)
        self.set_title(f"{blocks.printable(document.title)} · {document.kind}")
        self.set_subject(blocks.printable(document.claim))
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
        self._first_screen(pages)
        for section in document.sections:
            self._section(section)

    def footer(self) -> None:
        """Title and page number."""
        self.set_y(-11)
        self._font(TINY, colour=SOFT)
        self.cell(WIDTH / 2, 4, self._fitting(blocks.printable(self.document.title), WIDTH / 2))
        self.cell(WIDTH / 2, 4, f"{self.page_no()} / {PAGES}", align="R")

    def normalize_text(self, text: str) -> str:
        """The text as fpdf2 sets it. A letter that the font lacks becomes its number; fpdf2 would draw an empty box."""
        glyphs = self.current_font.cmap if isinstance(self.current_font, TTFFont) else {}
        return "".join(letter if ord(letter) in glyphs or letter in "\n\x00" else number(letter) for letter in text)

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
        """As much of the text as fits into the width. The letters after that are not measured."""
        room, end, used = width - self.get_string_width("…"), 0, 0.0
        for place, letter in enumerate(text, 1):
            used += self.get_string_width(letter)
            if used > width:
                return f"{text[:end]}…"
            end = place if used <= room else end
        return text

    def _first_screen(self, pages: Mapping[str, int]) -> None:
        document = self.document
        self._text(document.kind, 10, colour=SOFT)
        self._text(blocks.printable(document.title), 18, bold=True, after=2)
        self._text(blocks.printable(document.claim), 10, after=5, colour=HARD if document.claimed else WARNING)
        self._cards()
        half = (len(document.sections) + 1) // 2
        columns = [Column(MARGIN + at, wide, False, colour) for at, wide, colour in _CONTENTS]
        for pair in zip(document.sections[:half], [*document.sections[half:], None], strict=False):
            cells = list[Cell]()
            for section in pair:
                heading = (Link(section.heading, section.anchor),) if section else ()
                cells += [heading, (str(pages.get(section.anchor, "")),) if section else ()]
            self._row(cells, columns, TEXT, rule=False)
        self.ln(2)
        self._text(blocks.printable(document.foot), TINY, colour=SOFT, after=4)

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
            self.multi_cell(width - 5, 7 * LEADING, blocks.words(card.remark), align="L")
        self.set_xy(MARGIN, top + height + 5)

    def _section(self, section: Section) -> None:
        self._need(38)
        self.set_draw_color(*HARD)
        self.set_line_width(0.4)
        self.line(MARGIN, self.get_y(), MARGIN + WIDTH, self.get_y())
        self.set_line_width(0.15)
        self.ln(2)
        self.start_section(section.heading)
        self.section_pages[section.anchor] = self.page_no()
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
            case blocks.DrawingGroup():
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
                for fact in block.facts[depth::deep]:
                    cells += [(fact.label,), fact.value]
                self._row(cells, columns, TINY)
            return
        names, places = Column(MARGIN, 38, colour=SOFT), Column(MARGIN + 138, 42, colour=SOFT)
        for fact in block.facts:
            values = Column(MARGIN + 40, 96 if fact.source else 140)
            self._row([(fact.label,), fact.value, fact.source], [names, values, places], SMALL)

    def _table(self, block: blocks.Table) -> None:
        self._caption(block.caption)
        if not block.rows:
            return self._text(block.empty, TEXT, colour=SOFT)
        columns = self._columns(block)
        titles = [(block.title(place),) for place in range(len(columns))]

        def head() -> None:
            self._row(titles, columns, TINY, bold=True)

        head()
        for row in block.rows:
            self._row(row.cells, columns, TINY, anchor=row.anchor, head=head)

    def _columns(self, block: blocks.Table) -> list[Column]:
        """Columns as wide as their text if there is room. Otherwise the widest share the rest of the width."""
        widths = list[float]()
        for place, title in enumerate(block.columns):
            self._font(TINY, bold=True)
            widest = max(self.get_string_width(word) for word in title.removeprefix("#").split())
            for row in block.rows:
                self._face(row.cells[place], TINY)
                lines = blocks.words(row.cells[place]).split("\n")
                widest = max([widest, *(self.get_string_width(line) for line in lines)])
            empty = any(row.cells[place] == ("",) for row in block.rows)
            widths.append(max(widest + 2 * PAD + 0.2, 34.0 if empty else 0.0))
        cap = _level(widths, WIDTH)
        fitted = [min(width, cap) for width in widths]
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
        """Set cells side by side, on one page if they fit. `head` sets the titles again on a new page."""
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
            for content, column, text_lines in zip(cells, columns, lines, strict=False):
                if depth < len(text_lines):
                    self._set(content, column, text_lines[depth], size, bold)
            self.set_xy(MARGIN, self.get_y() + height)
        self.set_y(max(self.get_y(), top + least) + (PAD if rule else 0.0))
        if rule:
            self.set_draw_color(*(SOFT if bold else RULE))
            self.line(columns[0].x - PAD * bool(head or bold), self.get_y(), MARGIN + WIDTH, self.get_y())

    def _set(self, content: Cell, column: Column, line: str, size: float, bold: bool) -> None:
        """Set one line of a cell. The whole line leads to the target of the cell's first link."""
        target = next((f"#{name}" for part in content if (name := _target(part)) in self.anchors), "")
        self._face(content, size, bold, ACCENT if target else SOFT if bold else column.colour)
        y = self.get_y()
        self.set_x(column.x)
        self.cell(column.width, size * LEADING, line, align="R" if column.numeric else "L", link=target)
        self.set_y(y)

    def _lines(self, content: Cell, column: Column, size: float, bold: bool) -> list[str]:
        self._face(content, size, bold)
        text = blocks.words(content)
        if "\n" not in text and self.get_string_width(text) <= column.width:
            return [text]
        return self._wrapped(text, column.width, size)

    def _wrapped(self, text: str, width: float, size: float) -> list[str]:
        """The lines that the text takes in a column of this width, in the font that is set."""
        lines = self.multi_cell(width, size * LEADING, text, align="L", dry_run=True, output="LINES")
        # fpdf2 returns a list for this `output`; it annotates the results of all outputs together.
        return cast(list[str], lines)

    def _face(self, content: Cell, size: float, bold: bool = False, colour: tuple[int, int, int] = HARD) -> None:
        mono = bool(content) and all(isinstance(part, Code | Digest) for part in content)
        self._font(size, bold or any(isinstance(part, Badge) for part in content), mono, colour)

    def _pictures(self, block: blocks.DrawingGroup) -> None:
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
        text: str,
        size: float,
        bold: bool = False,
        after: float = 0.0,
        width: float = WIDTH,
        colour: tuple[int, int, int] = HARD,
    ) -> None:
        self._font(size, bold, colour=colour)
        self.set_x(MARGIN)
        for line in self._wrapped(text, width, size):
            self._need(size * LEADING)
            self._font(size, bold, colour=colour)
            self.cell(width, size * LEADING, line, new_x="LMARGIN", new_y="NEXT")
        self.ln(after)

    def _need(self, height: float) -> bool:
        """Begin a new page if this height does not fit; whether a page was begun."""
        if self.get_y() + height <= self.h - BOTTOM:
            return False
        self.add_page()
        return True

    def _arrive(self, anchor: str) -> None:
        self.set_link(name=anchor, y=self.get_y(), page=self.page_no())


_CONTENTS = ((0.0, 75.0, HARD), (77.0, 10.0, SOFT), (92.0, 75.0, HARD), (169.0, 10.0, SOFT))
"""The columns of the list of sections: begin, width, colour."""


def _target(part: Inline) -> str | None:
    """The anchor that a part leads to, or None."""
    if isinstance(part, Digest):
        return appendix.anchor(part.full)
    return part.target if isinstance(part, Link) else None


def _shape(drawing: blocks.Drawing) -> float:
    """The height of a plot divided by its width."""
    width, height = drawing.figure.get_size_inches()
    return float(height / width)


def _level(widths: Sequence[float], room: float) -> float:
    """The largest width of a column with which all columns together fit."""
    free, rest = room, sorted(widths)
    for place, width in enumerate(rest):
        share = free / (len(rest) - place)
        if width > share:
            return share
        free -= width
    return max(widths)
