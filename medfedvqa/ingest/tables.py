"""Reads tables as spreadsheet programs write them: several encodings, separators and headings, and workbooks."""

import codecs
import csv
import io
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import BinaryIO, TextIO

from medfedvqa.errors import DataError
from medfedvqa.ingest.name_forms import folded
from medfedvqa.ingest.table_finds import Cell, SheetCell, TableFinds, TableOptions
from medfedvqa.ingest.workbooks import FIRST_LINES, MAX_BYTES, sheet_lines

SEPARATORS = (",", ";", "\t")
"""Excel writes semicolons where the decimal mark is a comma, and tabs as `Unicode text`."""
OLD_ENCODINGS = ("cp1252", "cp1250", "cp1251", "gb18030", "big5hkscs", "cp932", "cp949", "cp1253", "cp1254", "cp1257",
                 "cp1255", "cp1256", "mac_roman")  # fmt: skip
"""Encodings that spreadsheet programs use by country instead of Unicode. No byte tells them apart for sure."""
WORKBOOK = "xlsx"
"""Stands for the encoding of a workbook."""
MAX_ROWS = 1 << 20
"""The most rows of a table, which are also the most of a sheet in Excel."""
HEADINGS = {
    "image": "image file filename picture bild bilddatei datei dateiname",
    "question": "question frage",
    "answer": "answer answers antwort",
    "frame": "frame framenumber einzelbild bildnummer",
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
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16",
          codecs.BOM_UTF16_BE: "utf-16"}  # fmt: skip
_ZIP, _OLD_WORKBOOK = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"
"""The first bytes of Excel's workbooks."""
_BLOCK = 1 << 20
_NO_TEXT = re.compile("[\0\x1b]")
_NO_OLD_TEXT = re.compile("[\0\x1b\x80-\x9f]")
"""Control characters that no text has; those from 0x80 on show that an old encoding is another one."""
_ERRORS = {"#n/a", "#value!", "#ref!", "#div/0!", "#name?", "#num!", "#null!", "#n/v", "#wert!", "#bezug!"}
"""The texts that formulas with errors leave in a table."""


def column_of(heading: str) -> str:
    """The column that a heading means; a heading that means none stays as it is, in lower case."""
    return _COLUMNS.get(folded(heading), heading.strip().casefold())


@contextmanager
def opened_table(
    file: BinaryIO,
    required: Collection[str],
    name: str,
    options: TableOptions | None = None,
    finds: TableFinds | None = None,
) -> Iterator[tuple[Iterator[Mapping[str, str]], str]]:
    """The rows of a table by their columns, read as they are taken, and the table's encoding.

    `name`: what errors call the table. `finds` receives what is noticed. Raises `DataError`, also while rows are taken,
    unless `finds` collects refusals; no error quotes the table.
    """
    options, finds = options or TableOptions(), finds or TableFinds()
    start = _start(file, name)
    if start == _OLD_WORKBOOK:
        raise DataError(f"the {name} is a workbook of Excel 2003, or has a password: save it as xlsx or as CSV UTF-8")
    if start == _ZIP:
        lines = sheet_lines(file, name, partial(_are_headings, required=required), options, finds)
        yield _rows(_filled_up(lines), required, name, finds), WORKBOOK
        return
    with opened_text(file, name, options.encoding) as (text, encoding):
        yield _rows(_fields(text, required, name), required, name, finds), encoding


def check_row_count(index: int, name: str) -> None:
    """Raises `DataError` if the index is too large for a row of a table."""
    if index >= MAX_ROWS:
        raise DataError(f"the {name} has more than {MAX_ROWS} rows: divide it, and the images, into several stores")


@contextmanager
def opened_text(file: BinaryIO, name: str, old_encoding: str | None = None) -> Iterator[tuple[TextIO, str]]:
    """A file's text, with its line ends, and its encoding. Raises `DataError` if it is not text.

    `old_encoding`: that of a file that is neither UTF-8 nor UTF-16, since none is guessed.
    """
    encoding = _unicode(file, name) or _checked(file, name, old_encoding)
    file.seek(0)
    text = io.TextIOWrapper(file, encoding, newline="")
    try:
        yield text, encoding
    finally:
        text.detach()


def _unicode(file: BinaryIO, name: str) -> str | None:
    """The encoding that shows in the bytes: UTF-8, or UTF-16 with or without its mark."""
    start = _start(file, name)
    marked = next((encoding for mark, encoding in _MARKS.items() if start.startswith(mark)), None)
    if marked or _fits(file, "utf-8"):
        return (marked or "utf-8") if _fits(file, marked or "utf-8") else None
    file.seek(0)
    sample = file.read(_BLOCK)
    # Text without a mark has lines; with its bytes in the wrong order it has none.
    halves = [each for each in ("utf-16-le", "utf-16-be") if re.search("[\r\n]", sample.decode(each, "replace"))]
    return halves[0] if b"\0" in sample and len(halves) == 1 and _fits(file, halves[0]) else None


def _checked(file: BinaryIO, name: str, encoding: str | None) -> str:
    """The encoding that a person names. Raises `DataError` if there is none, or if it does not fit."""
    try:
        fits = encoding is not None and _fits(file, codecs.lookup(encoding).name, _NO_OLD_TEXT)
    except (LookupError, ValueError):
        raise DataError(
            "--encoding is not a known text encoding: give cp1252, gb18030, cp932 or another that Python knows"
        ) from None
    if encoding is not None and fits:
        return codecs.lookup(encoding).name
    if encoding is None and old_encodings(file):
        raise DataError(
            f"the {name} is neither UTF-8 nor UTF-16: save it as CSV UTF-8, or name its encoding by --encoding where "
            "the command has that option; medfedvqa ingest check TABLE shows its text in the encodings that fit"
        )
    raise DataError(f"the {name} is not text{' in this encoding' if encoding else ''}: save it as CSV UTF-8")


def old_encodings(file: BinaryIO) -> list[str]:
    """The old encodings in which the whole file is text."""
    return [encoding for encoding in OLD_ENCODINGS if _fits(file, encoding, _NO_OLD_TEXT)]


def samples(file: BinaryIO, name: str) -> list[tuple[str, str]]:
    """For a file that is not Unicode: a few of its lines in each possible encoding, the likeliest first; else none."""
    if _start(file, name) in (_ZIP, _OLD_WORKBOOK) or _unicode(file, name):
        return []
    from charset_normalizer import from_bytes

    fitting = old_encodings(file)
    file.seek(0)
    content = file.read(_BLOCK)
    likely = [match.encoding for match in from_bytes(content, cp_isolation=fitting)] if fitting else []
    lines = [line.strip() for line in re.split(b"[\r\n]+", content) if not line.isascii()][:2]
    order = dict.fromkeys(code for code in (*likely, *fitting) if code in fitting)
    return [(code, " / ".join(line.decode(code, "replace")[:60] for line in lines)) for code in order]


def _start(file: BinaryIO, name: str) -> bytes:
    """The first four bytes. Raises `DataError` if the file is too large."""
    if os.fstat(file.fileno()).st_size > MAX_BYTES:
        raise DataError(
            f"the {name} has more than {MAX_BYTES >> 20} MiB: divide it, and the images, into several stores"
        )
    file.seek(0)
    return file.read(4)


def _fits(file: BinaryIO, encoding: str, no_text: re.Pattern[str] = _NO_TEXT) -> bool:
    """Whether the whole file is text in this encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    file.seek(0)
    try:
        while block := file.read(_BLOCK):
            if no_text.search(decoder.decode(block)):
                return False
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _rows(
    lines: Iterable[Sequence[Cell]], required: Collection[str], name: str, finds: TableFinds
) -> Iterator[Mapping[str, str]]:
    """Rows by their columns. The first line that is not empty has the headings; empty rows do not count."""
    lines = iter(lines)
    columns = _headings(lines, required, name)
    index, below = -1, False
    for line in lines:
        if not any(map(_text, line)):
            below = True
            continue
        index += 1
        check_row_count(index, name)
        try:
            row = _row(index, columns, line, finds)
            if below and not all(row[column] for column in required):
                raise DataError(
                    f"row {index} lacks a field and comes after an empty row: delete everything below the table, "
                    "such as a legend or a second table"
                )
            if all(column_of(row[column]) == column for column in required):
                raise DataError(f"row {index} has the headings again: keep one table in the file")
        except DataError as error:
            finds.refuse(error)
        else:
            yield row


def _filled_up(lines: Iterable[Sequence[Cell]]) -> Iterator[Sequence[Cell]]:
    """Lines of a sheet, which end with their last cell, at least as long as those above."""
    width = 0
    for line in lines:
        width = max(width, len(line))
        yield [*line, *(width - len(line)) * ("",)]


def _headings(lines: Iterator[Sequence[Cell]], required: Collection[str], name: str) -> list[str]:
    """The columns, from the first line that is not empty."""
    numbered = enumerate(lines, 1)
    _, first = next(((place, line) for place, line in numbered if any(map(_text, line))), (0, ()))
    if not _are_headings(first, required):
        below = islice(numbered, FIRST_LINES)
        place = next((place for place, line in below if _are_headings(line, required)), None)
        if place:
            raise DataError(f"the {name} has its headings in its line {place}: delete the lines above, such as a title")
        raise DataError(
            f"the {name} lacks a column: it needs {', '.join(required)} in its first line, separated by commas, "
            "semicolons or tabs"
        )
    columns = [column_of(_text(heading)) for heading in first]
    named = [column for column in columns if column]
    if len(set(named)) != len(named):
        raise DataError(f"the {name} has a heading twice: name each column once")
    return columns


def _are_headings(line: Sequence[Cell], required: Collection[str]) -> bool:
    return set(required) <= {column_of(_text(cell)) for cell in line}


def _row(index: int, columns: Sequence[str], line: Sequence[Cell], finds: TableFinds) -> dict[str, str]:
    """The texts of a line by their columns. Raises `DataError` for a cell that cannot be read as it is shown."""
    if len(line) < len(columns) or any(map(_text, line[len(columns) :])):
        raise DataError(f"row {index} has more or fewer fields than the first line: quote texts with separators")
    row = {}
    for column, cell in zip(columns, line, strict=False):
        text = _text(cell)
        if not column:
            if text:
                raise DataError(f"row {index} has a field in a column without a heading: name the column or empty it")
            continue
        if isinstance(cell, SheetCell):
            text = cell.day if column == "birth_date" and cell.day else cell.text
            if cell.refusal and not text:
                raise DataError(f"row {index}: the field '{column}' {cell.refusal}")
            if column == "patient" and "." in cell.held:
                raise DataError(f"row {index}: the cell format rounds the field 'patient': format the column as text")
            if cell.held:
                finds.change(column, cell.held, text)
        if text.casefold() in _ERRORS:
            raise DataError(f"row {index}: the field '{column}' holds a formula error: repair it")
        row[column] = text
    return row


def _fields(text: TextIO, required: Collection[str], name: str) -> Iterator[list[str]]:
    """The fields of each line of a CSV file."""
    first = text.readline().lstrip("\ufeff")  # of files that were joined
    if first.strip().casefold() in {f"sep={separator}".strip() for separator in SEPARATORS}:
        first = text.readline()
    try:
        yield from csv.reader(chain((first,), text), delimiter=_separator(first, required), strict=True)
    except csv.Error:
        raise DataError(f"the {name} is not valid CSV: check its quotes") from None


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


def _text(cell: Cell) -> str:
    """A cell's text; for a cell that cannot be read, its text in the file or else the reason."""
    return cell.strip() if isinstance(cell, str) else cell.text or cell.refusal
