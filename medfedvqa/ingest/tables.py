"""Reads tables as spreadsheet programs write them: several encodings, separators and headings, and workbooks."""

import codecs
import csv
import io
import os
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from typing import BinaryIO, TextIO

from medfedvqa.errors import DataError
from medfedvqa.ingest.name_forms import folded

SEPARATORS = (",", ";", "\t")
"""Excel writes semicolons where the decimal mark is a comma, and tabs as `Unicode text`."""
OLD_ENCODING = "windows-1252"
"""What older Excel versions write in Western Europe. No byte tells it from other encodings, so its use is reported."""
WORKBOOK = "xlsx"
"""Stands for the encoding of a workbook."""
MAX_BYTES = 1 << 28
"""The most bytes of a table, and of all parts of a workbook together once they are inflated."""
MAX_ROWS = 1 << 20
"""The most rows of a table, which are also the most of a sheet in Excel."""
HEADINGS = {
    "image": "image file filename picture bild bilddatei datei dateiname",
    "question": "question frage",
    "answer": "answer antwort",
    "organ": "organ bodypart koerperregion korperregion koerperteil korperteil",
    "split": "split part teil",
    "patient": "patient patientid patientnumber patientennummer patientenid patientennr",
    "name": "name patientname patientenname",
    "birth_date": "birthdate dateofbirth birthday geburtsdatum geburtstag",
    "number": "number accessionnumber casenumber nummer fallnummer auftragsnummer",
    "person": "person",
}
"""The headings that mean a column, without case, accents, spaces and punctuation."""
_COLUMNS = {heading: column for column, headings in HEADINGS.items() for heading in headings.split()}
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_ZIP, _OLD_WORKBOOK = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"
"""The first bytes of Excel's workbooks."""
_BLOCK = 1 << 20
Cell = object
"""Text, a number, a truth value or None."""


def column_of(heading: str) -> str:
    """The column that a heading means; a heading that means none stays as it is, in lower case."""
    return _COLUMNS.get(folded(heading), heading.strip().casefold())


@contextmanager
def opened_table(
    file: BinaryIO, required: Collection[str], name: str
) -> Iterator[tuple[Iterator[Mapping[str, Cell]], str]]:
    """The rows of a table by their columns, read as they are taken, and the table's encoding.

    `name`: what errors call the table. Raises `DataError`, also while rows are taken; no error quotes the table.
    """
    start = _start(file, name)
    if start == _OLD_WORKBOOK:
        raise DataError(f"the {name} is a workbook of Excel 2003, or has a password: save it as xlsx or as CSV UTF-8")
    if start == _ZIP:
        yield _rows(_sheet(file, name), required, name), WORKBOOK
        return
    with opened_text(file, name) as (text, encoding):
        yield _rows(_fields(text, required, name), required, name), encoding


def check_row_count(index: int, name: str) -> None:
    """Raises `DataError` if a table has a row of this index although it may not."""
    if index >= MAX_ROWS:
        raise DataError(f"the {name} has more than {MAX_ROWS} rows: divide it, and the images, into several stores")


@contextmanager
def opened_text(file: BinaryIO, name: str) -> Iterator[tuple[TextIO, str]]:
    """A file's text, with its line ends, and its encoding. Raises `DataError` if it is no text."""
    start = _start(file, name)
    marked = next((encoding for mark, encoding in _MARKS.items() if start.startswith(mark)), None)
    fitting = (encoding for encoding in ((marked,) if marked else ("utf-8", OLD_ENCODING)) if _fits(file, encoding))
    encoding = next(fitting, None)
    if encoding is None:
        raise DataError(f"the {name} is no text: save it as CSV UTF-8")
    file.seek(0)
    text = io.TextIOWrapper(file, encoding, newline="")
    try:
        yield text, encoding
    finally:
        text.detach()


def _start(file: BinaryIO, name: str) -> bytes:
    """The first four bytes. Raises `DataError` if there are too many others."""
    if os.fstat(file.fileno()).st_size > MAX_BYTES:
        raise DataError(
            f"the {name} has more than {MAX_BYTES >> 20} MiB: divide it, and the images, into several stores"
        )
    file.seek(0)
    return file.read(4)


def _fits(file: BinaryIO, encoding: str) -> bool:
    """Whether the whole file is text in this encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    file.seek(0)
    try:
        while block := file.read(_BLOCK):
            if "\0" in decoder.decode(block):
                return False
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _rows(lines: Iterable[Sequence[Cell]], required: Collection[str], name: str) -> Iterator[Mapping[str, Cell]]:
    """Rows by their columns. The first line has the headings; empty rows do not count."""
    lines = iter(lines)
    columns = [column_of(_text(heading)) for heading in next(lines, ())]
    if not set(required) <= set(columns):
        raise DataError(
            f"the {name} lacks a column: it needs {', '.join(required)} in its first line, separated by commas, "
            "semicolons or tabs"
        )
    named = [column for column in columns if column]
    if len(set(named)) != len(named):
        raise DataError(f"the {name} has a heading twice: name each column once")
    for index, cells in enumerate(line for line in lines if any(map(_text, line))):
        check_row_count(index, name)
        if len(cells) != len(columns):
            raise DataError(f"row {index} has more or fewer fields than the first line: quote texts with separators")
        if any(_text(cell) and not column for column, cell in zip(columns, cells, strict=True)):
            raise DataError(f"row {index} has a field in a column without a heading: name the column or empty it")
        yield {column: cell for column, cell in zip(columns, cells, strict=True) if column}


def _fields(text: TextIO, required: Collection[str], name: str) -> Iterator[list[str]]:
    """The fields of each line of a CSV file."""
    first = text.readline()
    if first.strip().casefold() in {f"sep={separator}".strip() for separator in SEPARATORS}:
        first = text.readline()
    lines = (line for part in ((first,), text) for line in part)
    try:
        yield from csv.reader(lines, delimiter=_separator(first, required), strict=True)
    except csv.Error:
        raise DataError(f"the {name} is no valid CSV: check its quotes") from None


def _separator(line: str, required: Collection[str]) -> str:
    """The separator with which the first line has all required columns; a comma if there is none."""
    for separator in SEPARATORS:
        try:
            headings = next(csv.reader([line], delimiter=separator, strict=True), [])
        except csv.Error:
            continue
        if set(required) <= {column_of(heading) for heading in headings}:
            return separator
    return SEPARATORS[0]


def _sheet(file: BinaryIO, name: str) -> Iterator[Sequence[Cell]]:
    """The lines of a workbook's first sheet; a cell with a formula has the value that Excel kept of it."""
    try:
        from openpyxl import load_workbook
    except ModuleNotFoundError:
        raise DataError(
            f"the {name} is a workbook: pip install 'medfedvqa[ingest]' to read it, or save its sheet as CSV UTF-8"
        ) from None
    damaged = DataError(f"the {name} is no workbook that can be read: save its sheet as CSV UTF-8")
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
            sheet = load_workbook(file, read_only=True, data_only=True).worksheets[0]
        lines = map(_without_empty_end, sheet.iter_rows(values_only=True))
        headings = next(lines, ())
        yield headings
        for line in lines:
            yield [_cell(cell) for cell in (*line, *(len(headings) - len(line)) * (None,))]
    except Exception:  # openpyxl raises errors of many kinds for damaged workbooks
        raise damaged from None


def _without_empty_end(line: Sequence[Cell]) -> Sequence[Cell]:
    """The cells up to the last that holds something: sheets remember cells that were used once."""
    length = next((place for place in range(len(line), 0, -1) if _text(line[place - 1])), 0)
    return line[:length]


def _cell(cell: Cell) -> Cell:
    """A cell as a table in text would have it: whole numbers without a fraction, dates as year, month and day."""
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    if isinstance(cell, datetime):
        return cell.date().isoformat() if cell.time() == time() else cell.isoformat(" ")
    return cell.isoformat() if isinstance(cell, (date, time)) else cell


def _text(cell: Cell) -> str:
    return "" if cell is None else str(cell).strip()
