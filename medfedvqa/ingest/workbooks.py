"""Reads a sheet of a workbook as Excel shows it. A cell that cannot be read as it is shown is refused with a reason.

openpyxl reads the workbook's parts except the cells: its fast reader does not report what is hidden, merged, struck out
or a formula.
"""

import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from itertools import islice
from typing import IO, Any, BinaryIO
from xml.etree.ElementTree import Element, iterparse
from xml.parsers.expat import ParserCreate

from medfedvqa.errors import DataError
from medfedvqa.ingest.table_finds import Cell, SheetCell, TableFinds, TableOptions

MAX_BYTES = 1 << 28
"""The most bytes of a table, and of all parts of a workbook together once they are inflated."""
MAX_COLUMNS = 1 << 14
"""The most columns of a sheet in Excel."""
FIRST_LINES = 20
"""Headings are looked for in the first lines of each sheet."""
_SPACE = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_ROW, _CELL, _VALUE, _FORMULA, _INLINE, _T = (_SPACE + tag for tag in ("row", "c", "v", "f", "is", "t"))
_TRUTH: dict[str, Cell] = {"1": SheetCell("true", "TRUE"), "0": SheetCell("false", "FALSE"), "": ""}
_AS_TEXT = "format the column as text and type the value again"
_LETTERS = r'(?:"[^"]*"|\\.|_.|[-+/():$€£ ])*'
_FORMAT = re.compile(
    rf"(?P<before>{_LETTERS})(?P<thousands>#,##)?(?P<digits>#*0+)(?P<places>\.0+)?(?P<percent>%?)(?P<after>{_LETTERS})"
    "(?P<others>;.*)?"
)
"""The number formats that are understood (ECMA-376, part 1, 18.8.31): digits, and letters before and after them."""


def sheet_lines(
    file: BinaryIO, name: str, has_headings: Callable[[Sequence[Cell]], bool], options: TableOptions, finds: TableFinds
) -> Iterator[Sequence[Cell]]:
    """The lines of the one visible sheet that has the headings, else of the first visible one.

    Raises `DataError`, also for hidden rows and columns and for merged cells.
    """
    try:
        from openpyxl import load_workbook
    except ModuleNotFoundError:
        raise DataError(
            f"the {name} is a workbook: pip install 'medfedvqa[ingest]' to read it, or save its sheet as CSV UTF-8"
        ) from None
    damaged = DataError(f"the {name} is not a workbook that can be read: save its sheet as CSV UTF-8")
    try:
        with zipfile.ZipFile(file) as parts:
            size = sum(part.file_size for part in parts.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        raise damaged from None
    if size > MAX_BYTES:
        raise DataError(f"the {name} is a workbook of more than {MAX_BYTES >> 20} MiB: save its sheet as CSV UTF-8")
    file.seek(0)
    try:
        with warnings.catch_warnings(action="ignore"):  # of features that a table does not need
            book = load_workbook(file, read_only=True, rich_text=True)
            sheet = _chosen(book.worksheets, name, has_headings, finds)
            layout = _layout(sheet._get_source())
            layout.check(name, options, finds)
            yield from _lines(sheet, layout if options.hidden == "leave-out" else None)
    except DataError:
        raise
    except Exception:  # openpyxl and expat raise errors of many kinds for damaged workbooks
        raise damaged from None


def _chosen(sheets: Sequence[Any], name: str, has_headings: Callable[[Sequence[Cell]], bool], finds: TableFinds) -> Any:
    """The sheet that is the table."""
    shown = [sheet for sheet in sheets if sheet.sheet_state == "visible"]
    with_headings = [sheet for sheet in sheets if any(map(has_headings, islice(_lines(sheet, None), FIRST_LINES)))]
    tables = [sheet for sheet in with_headings if sheet in shown]
    if len(tables) > 1:
        raise DataError(f"the {name} has {len(tables)} visible sheets with the headings: keep one of them in the file")
    if with_headings and not tables:
        raise DataError(f"the {name} has its headings on a hidden sheet: make that sheet visible, or delete it")
    if len(shown) < len(sheets):
        finds.notes.append(f"Hidden sheets of the {name}, which are not read: {len(sheets) - len(shown)}.")
    return (tables or shown)[0]


@dataclass
class SheetLayout:
    """A sheet's hidden rows and columns, and its merged cells. Rows and columns count from 1."""

    zero_height: bool = False
    """Whether rows are hidden by default."""
    columns: set[int] = field(default_factory=set)
    """Hidden columns."""
    filled_rows: set[int] = field(default_factory=set)
    filled_columns: set[int] = field(default_factory=set)
    """Hidden rows and columns in which something stands."""
    merged: list[str] = field(default_factory=list)

    def is_hidden(self, row: Callable[[str], str | None]) -> bool:
        """Whether a row with these attributes is hidden."""
        height = row("ht")
        unsaid = self.zero_height and row("hidden") is None and height is None
        return unsaid or row("hidden") in ("1", "true") or (height is not None and float(height) < 1)

    def check(self, name: str, options: TableOptions, finds: TableFinds) -> None:
        """Refuses merged cells, and what is hidden unless a person decided about it."""
        if self.merged:
            finds.refuse(
                DataError(
                    f"the {name} has merged cells, such as {self.merged[0]}: unmerge them and fill each cell, "
                    "since only the first of them holds the text"
                )
            )
        hidden = f"{len(self.filled_rows)} hidden rows and {len(self.filled_columns)} hidden columns with content"
        if self.filled_rows or self.filled_columns:
            if options.hidden == "refuse":
                finds.refuse(
                    DataError(
                        f"the {name} has {hidden}: show or delete them, or say what is meant by --hidden read or "
                        "--hidden leave-out"
                    )
                )
            else:
                done = "are left out" if options.hidden == "leave-out" else "are read"
                finds.notes.append(f"{hidden} of the {name} {done}.")


def _layout(source: IO[bytes]) -> SheetLayout:
    """A sheet's layout, read in a separate pass, since the file lists merged cells after all rows."""
    layout, place = SheetLayout(), {"row": 0, "column": 0, "hidden": 0, "spans": 0}

    def start(tag: str, said: dict[str, str]) -> None:
        if tag == _VALUE[1:] or tag == _INLINE[1:]:
            if place["hidden"]:
                layout.filled_rows.add(place["row"])
            if place["column"] in layout.columns:
                layout.filled_columns.add(place["column"])
        elif tag == _CELL[1:]:
            if layout.columns:
                place["column"] = _column(said.get("r")) or place["column"] + 1
        elif tag == _ROW[1:]:
            place.update(row=int(said.get("r", place["row"] + 1)), column=0, hidden=layout.is_hidden(said.get))
        elif tag.endswith("}mergeCell"):
            layout.merged.append(said["ref"])
        elif tag.endswith("}sheetFormatPr"):
            layout.zero_height = said.get("zeroHeight") in ("1", "true")
        elif tag.endswith("}col") and (said.get("hidden") in ("1", "true") or float(said.get("width", 1)) < 0.2):
            place["spans"] += 1
            if place["spans"] > MAX_COLUMNS:
                raise ValueError("more hidden columns than a sheet has")
            layout.columns.update(range(int(said["min"]), min(int(said["max"]), MAX_COLUMNS) + 1))

    def refuse(*_: object) -> None:
        raise ValueError("a workbook must not have a document type")

    parser = ParserCreate(namespace_separator="}")
    parser.StartElementHandler, parser.StartDoctypeDeclHandler = start, refuse
    with closing(source):
        parser.ParseFile(source)
    return layout


def _lines(sheet: Any, left_out: SheetLayout | None) -> Iterator[list[Cell]]:
    """The lines of a sheet up to the last cell of each that holds something, without what the layout hides."""
    styles: dict[int, tuple[str, bool]] = {}
    last = 0
    with closing(sheet._get_source()) as source:
        for _, row in iterparse(source):
            if row.tag != _ROW:
                continue
            before, last = last, int(row.get("r", last + 1))
            yield from ([] for _ in range(min(last - before - 1, FIRST_LINES)))  # empty rows are not in the file
            line: list[Cell] = []
            for element in row if left_out is None or not left_out.is_hidden(row.get) else ():
                column = _column(element.get("r")) or len(line) + 1
                if (left_out is None or column not in left_out.columns) and (cell := _cell(element, sheet, styles)):
                    line += [""] * (column - 1 - len(line))
                    line.append(cell)
            row.clear()
            yield line


def _column(reference: str | None) -> int:
    """The number of a cell's column, 0 if the reference names none."""
    from openpyxl.utils import column_index_from_string

    return int(column_index_from_string(reference.rstrip("0123456789"))) if reference else 0


def _cell(element: Element, sheet: Any, styles: dict[int, tuple[str, bool]]) -> Cell:
    """A cell as Excel shows it; empty if nothing stands there."""
    kind, style = element.get("t", "n"), int(element.get("s", 0))
    if style not in styles:
        from openpyxl.cell.read_only import ReadOnlyCell

        styled = ReadOnlyCell(sheet, 1, 1, None, style_id=style)
        styles[style] = styled.number_format or "General", bool(styled.font.strike)
    code, struck = styles[style]
    value, cell = element.findtext(_VALUE) or "", _TRUTH[""]
    if element.find(_FORMULA) is not None and not value and kind != "str":
        return SheetCell(refusal="has a formula without a kept value: open and save the workbook in Excel")
    if kind == "e":
        return SheetCell(refusal="holds a formula error: repair it")
    if kind == "inlineStr":
        cell = _text(element.find(_INLINE))
    elif kind == "s":
        cell = _rich(sheet._shared_strings[int(value)])
    elif kind == "b" or not value:
        # Shown in the language of the program: TRUE, WAHR, VRAI.
        cell = _TRUTH[value]
    elif kind == "str":
        cell = _rich(value)
    else:
        cell = _number(value, code, partial(_day, value, kind, sheet.parent.epoch))
    if not cell:
        return ""
    if struck:
        return SheetCell(refusal="is struck out: delete the text, or the line through it")
    if isinstance(cell, str) and code != "General" and not _shows_text(code):
        return SheetCell(refusal=f"has a format that shows the text otherwise than it is: {_AS_TEXT}")
    return cell


def _shows_text(code: str) -> bool:
    """Whether a number format shows texts as they are."""
    sections = code.split(";")
    return re.sub(r"_.", "", sections[3]) == "@" if len(sections) > 3 else "@" not in code or code == "@"


def _text(inline: Element | None) -> Cell:
    from openpyxl.cell.rich_text import CellRichText

    if inline is None:
        return ""
    return _rich(inline[0].text or "" if len(inline) == 1 and inline[0].tag == _T else CellRichText.from_tree(inline))


def _rich(text: Any) -> Cell:
    """A cell's text, from a string or from parts with fonts; refused if struck out, raised or lowered."""
    from openpyxl.utils.escape import unescape

    if isinstance(text, str):
        return str(unescape(text)).strip() if "_x" in text else text.strip()
    fonts = [part.font for part in text if not isinstance(part, str)]
    if any(font.strike for font in fonts):
        return SheetCell(refusal="has text that is struck out: delete it, or the line through it")
    if any(font.vertAlign in ("superscript", "subscript") for font in fonts):
        return SheetCell(refusal="has raised or lowered letters, which plain text joins: write it otherwise")
    return str(unescape("".join(map(str, text)))).strip()


def _number(value: str, code: str, day: Callable[[], str]) -> Cell:
    """A number as its format shows it."""
    from openpyxl.styles.numbers import is_date_format

    if is_date_format(code) or not re.fullmatch(r"[-+.\dEe]+", value):
        date = day()
        if date and re.fullmatch(r"yyyy\\?-mm\\?-dd", code, re.IGNORECASE):
            return date
        return SheetCell(refusal=f"is a date, of which Excel does not keep what was typed: {_AS_TEXT}", day=date)
    number = Decimal(value)
    if abs(number) >= 10**15:
        return SheetCell(refusal=f"is a number of more than 15 digits, of which Excel kept 15: {_AS_TEXT}")
    text = _general(number) if code in ("General", "@") else _formatted(number, code)
    if not text:
        return SheetCell(refusal=f"has a number format that cannot be read as it is shown: {_AS_TEXT}")
    held = str(int(number)) if number == int(number) else value
    return text if text == held else SheetCell(text, held)


def _day(value: str, kind: str, epoch: Any) -> str:
    """The date that a cell holds, as 1970-02-03; empty if it is a time."""
    from openpyxl.utils.datetime import from_excel, from_ISO8601

    try:
        moment = from_ISO8601(value) if kind == "d" else from_excel(float(value), epoch)
        return f"{moment:%Y-%m-%d}" if hasattr(moment, "year") else ""
    except (ValueError, OverflowError):
        return ""


def _general(number: Decimal) -> str:
    """A number as a wide column shows it; empty where Excel writes powers of ten."""
    if number == int(number):
        return str(int(number))
    text = f"{number:.10g}"
    return "" if "e" in text.lower() else text.rstrip("0").rstrip(".") if "." in text else text


def _formatted(number: Decimal, code: str) -> str:
    """A number as its format shows it; empty if the format does not fit `_FORMAT` or has another section for it.

    It is also empty where the format would print a mark for thousands, which differs between countries.
    """
    match = _FORMAT.fullmatch(code)
    if not match or (match["others"] and number <= 0):
        return ""
    places = len(match["places"] or ".") - 1
    value = (abs(number) * (100 if match["percent"] else 1)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    if match["thousands"] and value >= 1000:
        return ""  # the mark differs from country to country
    width = match["digits"].count("0") + (places + 1 if places else 0)
    before, after = (re.sub(r'"([^"]*)"|\\(.)|_.', r"\1\2", match[part]) for part in ("before", "after"))
    return f"{'-' if number < 0 and value else ''}{before}{value:0{width}f}{match['percent']}{after}".strip()
