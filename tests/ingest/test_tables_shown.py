"""Workbooks are read as Excel shows them, or refused with what to do."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.styles import Font
from openpyxl.utils.datetime import CALENDAR_MAC_1904

from medfedvqa.errors import DataError
from medfedvqa.ingest.questions import read_questions
from medfedvqa.ingest.table_finds import TableFinds, TableOptions

HEADINGS = ("image", "question", "answer", "patient", "birth_date")
Change = Callable[[Workbook, Any], object]


def saved(path: Path, change: Change) -> Path:
    """A workbook with one sound row, changed."""
    book = Workbook()
    book.active.append(HEADINGS)
    book.active.append(("a.png", "Left?", "yes", "0004711"))
    change(book, book.active)
    book.save(path)
    return path


def put(place: str, value: object, code: str = "General", kind: str | None = None) -> Change:
    """Sets a cell and its number format."""

    def change(_: Workbook, sheet: Any) -> None:
        sheet[place].value, sheet[place].number_format = value, code
        sheet[place].data_type = kind or sheet[place].data_type

    return change


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        (4711, "0000000", "0004711"),
        (4711, '"P"00000', "P04711"),
        (4711, "\\P00000", "P04711"),
        (4711, "@", "4711"),
        (0.5, "0%", "50%"),
        (0.125, "0.0%", "12.5%"),
        (2.0, "General", "2"),
        (2.5, "0.00", "2.50"),
        (2.5, "0", "3"),
        (-3, "0.0", "-3.0"),
        (0.1 + 0.2, "General", "0.3"),
        (999, "#,##0", "999"),
        (12, '000" (old)"', "012 (old)"),
        (0, "#0", "0"),
        (5, "0_);[Red](0)", "5"),
        (True, "General", "true"),
        (datetime(2012, 9, 1), "yyyy-mm-dd", "2012-09-01"),
        # None of these can be told from the file alone, or shows what was typed.
        (1234, "#,##0", None),
        (0.5, "# ?/?", None),
        (123456789, "000-00-0000", None),
        (0, '0;-0;"none"', None),
        (12345, "0.00E+00", None),
        (5, '[>3]"many";0', None),
        (-5, "0;(0)", None),
        (2.5, "#.##", None),
        (7, ";;;", None),
        ("yes", '"not "@', None),
        ("yes", ";;;", None),
        (datetime(2026, 2, 1), "d/m", None),
        (datetime(2026, 2, 1, 8, 30), "h:mm", None),
        (12345678901234567, "0", None),
    ],
)
def test_a_cell_is_read_as_it_is_shown_or_refused(tmp_path: Path, value: object, code: str, shown: str | None) -> None:
    """Of an answer; the refusal says to format the column as text."""
    path = saved(tmp_path / "a.xlsx", put("C2", value, code))
    if not shown:
        with pytest.raises(DataError, match="row 0: the field 'answer' .*: format the column as text and type"):
            read_questions(path)
    else:
        assert read_questions(path).rows[0].answer == shown


def rich(**font: object) -> CellRichText:
    return CellRichText(TextBlock(InlineFont(**font), "yes"), TextBlock(InlineFont(), " no"))


def several(*changes: Change) -> Change:
    return lambda book, sheet: [change(book, sheet) for change in changes]


def struck(_: Workbook, sheet: Any) -> None:
    sheet["C2"].font = Font(strike=True)


def second_sheet(book: Workbook, _: Any) -> None:
    sheet = book.create_sheet("Other")
    sheet.append(HEADINGS)
    sheet.append(("b.png", "Right?", "no", "SECRET"))


def hide_first(book: Workbook, sheet: Any) -> None:
    book.create_sheet("Notes").append(("SECRET",))
    sheet.sheet_state, book.active = "veryHidden", 1


def title(_: Workbook, sheet: Any) -> None:
    sheet.insert_rows(1, 2)
    sheet["A1"] = "SECRET"


def again(_: Workbook, sheet: Any) -> None:
    sheet.append(HEADINGS)
    sheet.append(("b.png", "Right?", "no", "2"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (put("C2", "#N/A", kind="e"), "row 0: the field 'answer' holds a formula error"),
        (put("C2", "#REF!", kind="s"), "row 0: the field 'answer' holds a formula error"),
        (put("A2", '="a"&".png"'), "row 0: the field 'image' has a formula without a kept value: open and save"),
        (put("C2", rich(strike=True)), "row 0: the field 'answer' has text that is struck out"),
        (put("C2", rich(vertAlign="superscript")), "row 0: the field 'answer' has raised or lowered letters"),
        (struck, "row 0: the field 'answer' is struck out"),
        (lambda _, sheet: sheet.merge_cells("A2:A3"), "has merged cells, such as A2:A3: unmerge them and fill each"),
        (second_sheet, "has 2 visible sheets with the headings: keep one of them"),
        (hide_first, "has its headings on a hidden sheet: make that sheet visible"),
        (title, "has its headings in its line 3: delete the lines above"),
        (put("A5", "SECRET"), "row 1 lacks a field and comes after an empty row: delete everything below the table"),
        (again, "row 1 has the headings again: keep one table in the file"),
        (put("E2", 11450), "row 0: the field 'birth_date' is not a date: .* or format the column as a date"),
        (put("D2", 4711.4, "0"), "row 0: the cell format rounds the field 'patient'"),
        (put("C2", 0.25, "yyyy-mm-dd"), "row 0: the field 'answer' is a date"),
        (put("E2", 0.25, "h:mm"), "row 0: the field 'birth_date' is a date"),
    ],
)
def test_what_people_would_read_otherwise_is_refused_with_what_to_do(
    tmp_path: Path, change: Change, sentence: str
) -> None:
    """The sentence quotes nothing of the table."""
    with pytest.raises(DataError, match=sentence) as caught:
        read_questions(saved(tmp_path / "a.xlsx", change))
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("epoch", [None, CALENDAR_MAC_1904])
def test_a_birth_date_is_the_same_in_both_date_systems(tmp_path: Path, epoch: datetime | None) -> None:
    """Excel for Macintosh counted days from 1904; any format of a date will do."""

    def change(book: Workbook, sheet: Any) -> None:
        book.epoch = epoch or book.epoch
        sheet["E2"], sheet["E2"].number_format = datetime(1931, 5, 7), "d/m/yy"

    (row,) = read_questions(saved(tmp_path / "a.xlsx", change)).rows
    assert dict(row.patient_facts)["birth_date"] == "1931-05-07"


def hidden_row(_: Workbook, sheet: Any) -> None:
    sheet.append(("b.png", "Right?", "no", "SECRET"))
    sheet.row_dimensions[3].hidden = True
    sheet.row_dimensions[9].hidden = True  # with nothing in it


def low_row(_: Workbook, sheet: Any) -> None:
    sheet.append(("b.png", "Right?", "no", "SECRET"))
    sheet.row_dimensions[3].height = 0.5  # points


def hidden_column(_: Workbook, sheet: Any) -> None:
    sheet.column_dimensions["D"].hidden = True
    sheet.column_dimensions["G"].hidden = True


@pytest.mark.parametrize(
    ("change", "read", "left_out"),
    [
        (hidden_row, [("a.png", "0004711"), ("b.png", "SECRET")], [("a.png", "0004711")]),
        (low_row, [("a.png", "0004711"), ("b.png", "SECRET")], [("a.png", "0004711")]),
        (hidden_column, [("a.png", "0004711")], [("a.png", "")]),
    ],
)
def test_what_is_hidden_is_read_only_if_a_person_says_so(
    tmp_path: Path, change: Change, read: list[tuple[str, str]], left_out: list[tuple[str, str]]
) -> None:
    """Hidden, or of a height that nobody sees. Each decision is noted."""
    path = saved(tmp_path / "a.xlsx", change)
    with pytest.raises(DataError, match="hidden rows and . hidden columns with content: show or delete them") as caught:
        read_questions(path)
    assert "SECRET" not in str(caught.value)
    for decision, expected in (("read", read), ("leave-out", left_out)):
        table = read_questions(path, options=TableOptions(hidden=decision))
        assert [(row.image, dict(row.patient_facts).get("patient", "")) for row in table.rows] == expected
        assert any("with content of the questions file are" in note for note in table.notes)


def test_the_visible_sheet_is_the_table_and_hidden_ones_are_noted(tmp_path: Path) -> None:
    """An earlier version on a hidden sheet is not read."""

    def change(book: Workbook, sheet: Any) -> None:
        second_sheet(book, sheet)
        sheet.sheet_state, book.active = "hidden", 1

    table = read_questions(saved(tmp_path / "a.xlsx", change))
    assert [row.image for row in table.rows] == ["b.png"]
    assert table.notes == ("Hidden sheets of the questions file, which are not read: 1.",)


def test_all_refusals_of_a_workbook_are_collected_at_once(tmp_path: Path) -> None:
    """As `ingest check` lists them; sound rows are read, and what is shown otherwise than held is known."""
    wrong = several(put("C2", 0.5, "0%"), hidden_row, put("C4", "#N/A", kind="e"), put("A4", "d.png"), put("B4", "Q?"))
    finds = TableFinds(collects=True)
    table = read_questions(saved(tmp_path / "a.xlsx", wrong), finds=finds)
    assert [row.index for row in table.rows] == [0, 1] and len(finds.refusals) == 2
    assert ("answer", "0.5", "50%") in finds.changes and "50%" not in repr(finds)
