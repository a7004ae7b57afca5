"""Reads tables as spreadsheet programs write them: several encodings, separators and spellings of headings."""

import codecs
import csv
from collections.abc import Collection, Iterator, Mapping

from medfedvqa.errors import DataError

SEPARATORS = (",", ";", "\t")
"""Excel writes semicolons where the decimal mark is a comma, and tabs as `Unicode text`."""
OLD_ENCODING = "windows-1252"
"""What older Excel versions write in Western Europe. No byte tells it from other encodings, so its use is reported."""
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_WORKBOOK = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"
"""The first bytes of Excel's workbooks."""


def decoded(content: bytes) -> tuple[str, str]:
    """A table's text and its encoding. Raises `DataError` if it is no text."""
    if content.startswith(_WORKBOOK):
        raise DataError("the questions file is a workbook: save its sheet as 'CSV UTF-8' in Excel")
    marked = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    for encoding in (marked,) if marked else ("utf-8", OLD_ENCODING):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text, encoding
    raise DataError("the questions file is no text: save it as CSV UTF-8")


def rows_of(text: str, required: Collection[str]) -> Iterator[Mapping[str, str]]:
    """The rows of a table by its headings in lower case. Raises `DataError`; the error quotes nothing of the table."""
    lines = text.splitlines(keepends=True)
    if lines and lines[0].strip().casefold() in {f"sep={separator}".strip() for separator in SEPARATORS}:
        lines = lines[1:]
    separator = _separator(lines[0] if lines else "", required)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        headings = _headings(next(reader))
        for index, fields in enumerate(row for row in reader if any(field.strip() for field in row)):
            if len(fields) != len(headings):
                raise DataError(
                    f"row {index} has more or fewer fields than the first line: quote texts with separators"
                )
            cells = list(zip(headings, fields, strict=True))
            if any(field.strip() and not heading for heading, field in cells):
                raise DataError(f"row {index} has a field in a column without a heading: name the column or empty it")
            yield {heading: field for heading, field in cells if heading}
    except csv.Error:
        raise DataError("the questions file is no valid CSV: check its quotes") from None


def _separator(line: str, required: Collection[str]) -> str:
    """The separator with which the first line has all required headings."""
    for separator in SEPARATORS:
        try:
            headings = _headings(next(csv.reader([line], delimiter=separator, strict=True), []))
        except csv.Error:
            continue
        if set(required) <= set(headings):
            named = [heading for heading in headings if heading]
            if len(set(named)) != len(named):
                raise DataError("the questions file has a heading twice: name each column once")
            return separator
    raise DataError(
        f"the questions file lacks a column: it needs {', '.join(required)} in its first line, separated by commas, "
        "semicolons or tabs"
    )


def _headings(fields: list[str]) -> list[str]:
    """Headings in lower case; empty columns at the end, which Excel adds, keep an empty heading."""
    return [field.strip().casefold() for field in fields]
