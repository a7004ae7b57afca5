"""Sets a document as a tagged PDF (PDF/UA-1) on A4, with bookmarks, links and page numbers.

`document.typ` has the layout; Typst reads it together with the document as JSON. Only matplotlib's and the compiler's
fonts are used, so that every machine writes the same bytes. A letter that they lack is written as its number.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from audits.escaping import number, quantity
from medfedvqa.figures import encoded
from medfedvqa.report import blocks
from medfedvqa.report.blocks import Block, Cell, Document, Inline, Link
from medfedvqa.report.document import anchor
from privacy.report.report_files import HTML, JSON

STANDARD: Final = "ua-1"
PIECE = 8
"""The characters between two places at which a long word may be broken."""
LONG_IN_TEXT, LONG_IN_TABLE = 40, 13
"""The most characters of a word that is not broken, in a paragraph and in a table of many columns."""
MANY_COLUMNS = 4
BREAK = "\u200b"
"""The mark of a place to break. Printable text never holds it, because `printable` writes it as its number."""


def pdf_bytes(document: Document) -> bytes:
    """The document as PDF; the same document is always the same bytes.

    Raises `ValueError` if the report's date is malformed.
    """
    import typst

    document = _for_paper(document)
    created = datetime.fromisoformat(document.created)
    layout = files("medfedvqa.report").joinpath("document.typ").read_bytes()
    fonts = typst.Fonts(include_system_fonts=False, font_paths=[_font_folder()])
    compiler = typst.Compiler(layout, font_paths=fonts, sys_inputs={"document": _Setting(document).text()})
    pdf = compiler.compile(format="pdf", pdf_standards=[STANDARD], timestamp=created)
    if not isinstance(pdf, bytes):
        raise TypeError("Typst returns a PDF as bytes")
    return pdf


def _for_paper(document: Document) -> Document:
    """The document with a sentence in the place of each table that is not for paper."""
    sections = (replace(one, blocks=tuple(map(_paper_block, one.blocks))) for one in document.sections)
    return replace(document, sections=tuple(sections))


def _paper_block(block: Block) -> Block:
    if not isinstance(block, blocks.Table) or block.on_paper or not block.rows:
        return block
    rows = quantity(len(block.rows), "row")
    return blocks.Text((f"{block.caption}. This file leaves out {rows}, which {HTML} and {JSON} have.",))


class _Setting:
    """A document as JSON for the layout. Links lead to the document's own anchors, or are mere text."""

    def __init__(self, document: Document) -> None:
        self._document, self._anchors = document, document.anchors

    def text(self) -> str:
        """The JSON."""
        return json.dumps(self._content(), ensure_ascii=False)

    def _content(self) -> dict[str, Any]:
        document = self._document
        title = _safe(document.title)
        return {
            "title": f"{title} · {_safe(document.kind)}",
            "running": title,
            "subject": _safe(document.lead.text),
            "lang": document.language,
            "kind": _safe(document.kind),
            "heading": _breakable(document.heading),
            "lead": _breakable(document.lead.text),
            "tone": document.lead.tone,
            "cards": [
                {"title": _safe(card.title), "value": self._cell(card.value), "remark": self._cell(card.remark)}
                for card in document.cards
            ],
            "foot": _safe(document.foot),
            "front": [self._section(section) for section in document.front],
            "sections": [self._section(section) for section in document.sections],
        }

    def _section(self, section: blocks.Section) -> dict[str, Any]:
        content = [self._block(block) for block in section.blocks]
        return {"anchor": section.anchor, "title": _safe(section.heading), "blocks": content}

    def _block(self, block: Block) -> dict[str, Any]:
        match block:
            case blocks.Text():
                return {"kind": "text", "warning": block.warning, "cell": self._cell(block.cell)}
            case blocks.Bullets():
                items = [_breakable(item) for item in block.items]
                return {"kind": "bullets", "title": _safe(block.title), "items": items}
            case blocks.Facts():
                facts = [self._fact(fact) for fact in block.facts]
                return {"kind": "facts", "title": _safe(block.title), "small": block.small, "facts": facts}
            case blocks.Table():
                return self._table(block)
            case blocks.DrawingGroup():
                return {"kind": "drawings", "drawings": [_drawing(drawing) for drawing in block.drawings]}

    def _fact(self, fact: blocks.Fact) -> dict[str, Any]:
        label = _breakable(fact.label, LONG_IN_TABLE)
        return {"label": label, "value": self._cell(fact.value), "source": self._cell(fact.source)}

    def _table(self, table: blocks.Table) -> dict[str, Any]:
        long = LONG_IN_TABLE if len(table.columns) > MANY_COLUMNS else LONG_IN_TEXT // 2
        columns = [
            {"title": _breakable(table.title(at), long), "numeric": table.numeric(at), "signs": table.signed(at)}
            for at in range(len(table.columns))
        ]
        rows = [{"anchor": row.anchor, "cells": [self._cell(one, long) for one in row.cells]} for row in table.rows]
        texts = {"title": _safe(table.caption), "empty": _safe(table.empty)}
        return {"kind": "table", **texts, "columns": columns, "rows": rows}

    def _cell(self, cell: Cell, long: int = LONG_IN_TEXT) -> list[str | dict[str, str]]:
        return [self._inline(part, long) for part in cell]

    def _inline(self, part: Inline, long: int) -> str | dict[str, str]:
        match part:
            case blocks.Break():
                return {"kind": "break"}
            case blocks.Badge():
                return {"kind": "badge", "text": _breakable(part.text, long), "tone": part.tone}
            case _ if (target := _target(part)) in self._anchors:
                return {"kind": "link", "text": _breakable(blocks.words([part]), long), "target": str(target)}
            case _:
                return _breakable(blocks.words([part]), long)


def _target(part: Inline) -> str | None:
    """The anchor that a part leads to, or None."""
    if isinstance(part, blocks.Digest):
        return anchor(part.full) if part.text != part.full else None
    return part.target if isinstance(part, Link) else None


def _drawing(drawing: blocks.Drawing) -> Mapping[str, str | float]:
    svg, inches = encoded(drawing.figure, "svg").decode(), float(drawing.figure.get_figwidth())
    return {"title": _safe(drawing.title), "label": _safe(drawing.label), "svg": svg, "inches": inches}


def _safe(text: str) -> str:
    """The text in letters that the fonts have."""
    shown = blocks.printable(text)
    if shown.isascii():
        return shown
    return "".join(letter if ord(letter) in _letters() else number(letter) for letter in shown)


def _breakable(text: str, long: int = LONG_IN_TEXT) -> str:
    """The text with places at which its long words may be broken."""
    shown = _safe(text)
    if len(shown) <= long:
        return shown
    return " ".join(BREAK.join(_pieces(word)) if len(word) > long else word for word in shown.split(" "))


def _pieces(word: str) -> Sequence[str]:
    return [word[start : start + PIECE] for start in range(0, len(word), PIECE)]


def _font_folder() -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


@cache
def _letters() -> frozenset[int]:
    """The code points of the text's font, which every text of the document is limited to."""
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(str(_font_folder() / "DejaVuSans.ttf")).get_charmap())
