"""Tables that hospitals have: workbooks, German headings, and very many rows."""

import subprocess
import sys
import zipfile
from datetime import date
from io import BytesIO
from pathlib import Path

import pytest
from openpyxl import Workbook

from medfedvqa.errors import DataError
from medfedvqa.ingest.questions import read_questions
from medfedvqa.ingest.tables import MAX_BYTES, WORKBOOK

MOST_MEMORY = 700
"""MB of a process that reads a million rows; Python and the modules take about 60 of them."""


def workbook(*lines: tuple[object, ...]) -> Workbook:
    """Its first sheet has these lines, and a second one is not the table."""
    book = Workbook()
    for line in lines:
        book.active.append(line)
    book.create_sheet("Notes").append(("SECRET",))
    return book


def texts(path: Path) -> list[tuple[str, str, str]]:
    return [(row.image, row.question, row.answer) for row in read_questions(path).rows]


def test_a_workbook_is_read_as_its_sheet_in_text_would_be(tmp_path: Path) -> None:
    """Whole numbers have no fraction, dates no time; empty rows, and columns that were used once, do not count."""
    book = workbook(
        ("Datei", "Frage", "Antwort", "Körperregion"),
        ("a.dcm", "Größe, normal?", "ja", "Lung"),
        (None, None, None, None),
        ("b.dcm", "Wie viele?", 2.0),
        ("c.dcm", "Wann?", date(2012, 9, 1)),
    )
    book.active["H9"].value = " "
    book.save(tmp_path / "a.xlsx")
    table = read_questions(tmp_path / "a.xlsx")
    assert texts(tmp_path / "a.xlsx") == [
        ("a.dcm", "Größe, normal?", "ja"),
        ("b.dcm", "Wie viele?", "2"),
        ("c.dcm", "Wann?", "2012-09-01"),
    ]
    assert table.rows[0].organ == "chest" and table.encoding == WORKBOOK


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([("image", "question"), ("SECRET", "SECRET")], "lacks a column"),
        ([("image", "question", "answer"), ("a", "b", "c", "SECRET")], "row 0 has more or fewer fields"),
        ([("image", "question", "answer"), ("a", "b", None)], "row 0: the field 'answer' is missing or empty"),
        ([("image", "question", "answer"), ("a", "=SECRET", "c")], "row 0: the field 'question' has a formula without"),
        ([], "lacks a column"),
    ],
)
def test_a_workbook_that_cannot_be_used_is_one_sentence_without_content(
    tmp_path: Path, lines: list[tuple[object, ...]], sentence: str
) -> None:
    workbook(*lines).save(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match=sentence) as caught:
        read_questions(tmp_path / "a.xlsx")
    assert "SECRET" not in str(caught.value)


def as_excel_writes(path: Path, lines: list[tuple[str, ...]]) -> None:
    """A workbook whose texts are in a part of their own, which openpyxl reads and never writes."""
    book, buffer = Workbook(), BytesIO()
    for number, line in enumerate(lines):
        book.active.append(tuple(number * len(line) + place for place in range(len(line))))
    book.save(buffer)
    strings = "".join(f"<si><t>{text}</t></si>" for line in lines for text in line)
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    with zipfile.ZipFile(buffer) as plain, zipfile.ZipFile(path, "w") as shared:
        for name in plain.namelist():
            content = plain.read(name).replace(b' t="n"', b' t="s"')
            part = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/></Types>'.encode()
            shared.writestr(name, content.replace(b"</Types>", part))
        shared.writestr(STRINGS, f'<sst xmlns="{MAIN}">{strings}</sst>')


MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
SHEET, STRINGS = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml"
LINES = [("image", "question", "answer"), ("SECRET", "Left?", "yes"), ("b", "Right?", "no")]


def test_texts_that_excel_keeps_in_a_part_of_their_own_are_read(tmp_path: Path) -> None:
    as_excel_writes(tmp_path / "a.xlsx", LINES)
    assert texts(tmp_path / "a.xlsx") == LINES[1:]


@pytest.mark.parametrize(
    ("part", "cut"), [(SHEET, True), (STRINGS, True), (STRINGS, False), ("xl/workbook.xml", False)]
)
def test_a_damaged_workbook_is_one_sentence(tmp_path: Path, part: str, cut: bool) -> None:
    """A part is cut, or missing."""
    as_excel_writes(tmp_path / "sound.xlsx", LINES)
    with zipfile.ZipFile(tmp_path / "sound.xlsx") as sound, zipfile.ZipFile(tmp_path / "a.xlsx", "w") as damaged:
        for name in sound.namelist():
            content = sound.read(name)
            if name != part or cut:
                damaged.writestr(name, content[: len(content) // 2] if name == part else content)
    with pytest.raises(DataError, match="not a workbook that can be read") as caught:
        read_questions(tmp_path / "a.xlsx")
    assert "SECRET" not in str(caught.value)


def test_a_workbook_that_inflates_without_bound_is_not_inflated(tmp_path: Path) -> None:
    """A hundredth of a megabyte for every ten."""
    workbook(("image", "question", "answer"), ("a", "b", "c")).save(tmp_path / "a.xlsx")
    with zipfile.ZipFile(tmp_path / "a.xlsx", "a", zipfile.ZIP_DEFLATED) as book, book.open("xl/x.xml", "w") as part:
        for _ in range(MAX_BYTES // 2**20 + 1):
            part.write(bytes(2**20))
    assert (tmp_path / "a.xlsx").stat().st_size < 2**20
    with pytest.raises(DataError, match="is a workbook of more than 256 MiB: save its sheet as CSV UTF-8"):
        read_questions(tmp_path / "a.xlsx")


def test_a_german_table_of_excel_is_read(tmp_path: Path) -> None:
    """Semicolons, the mark of UTF-8, an umlaut in a heading, lines that end as in Windows, quotes, a line in a text."""
    lines = 'Datei;Frage;Antwort;Körperregion;Teil\r\na.dcm;"Größe;\r\n""normal""?";ja;Thorax;Test\r\n'
    (tmp_path / "a.csv").write_bytes(("\ufeff" + lines).encode())
    (row,) = read_questions(tmp_path / "a.csv").rows
    assert (row.question, row.organ, row.split) == ('Größe;\r\n"normal"?', "chest", "test")


def test_letters_that_end_a_line_only_for_python_do_not_end_a_row(tmp_path: Path) -> None:
    """A line separator (U+2028) that was pasted into a question stays in it, in tables and in JSON Lines."""
    (tmp_path / "a.csv").write_text("image,question,answer\na,Left\u2028or right?,left\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text(
        '{"file": "a", "question": "Left\u2028or right?", "answer": "left"}\n', encoding="utf-8"
    )
    assert texts(tmp_path / "a.csv") == texts(tmp_path / "a.jsonl") == [("a", "Left\u2028or right?", "left")]


READ = (
    "import sys; from pathlib import Path; from medfedvqa.ingest.questions import read_questions;"
    "rows = read_questions(Path(sys.argv[1])).rows;"
    "print(len(rows), Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
)


@pytest.mark.slow
def test_one_hidden_row_among_a_million_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    """It is the last row but one; read or left out on request, all others are there."""
    as_excel_writes(tmp_path / "a.xlsx", LINES)
    cells = '<c r="A{0}" t="s"><v>3</v></c><c r="B{0}" t="s"><v>4</v></c><c r="C{0}"><v>{0}</v></c></row>'
    rows = (f'<row r="{n}"{HIDDEN if n == 2**20 - 2 else ""}>{cells.format(n)}' for n in range(4, 2**20))
    with zipfile.ZipFile(tmp_path / "a.xlsx") as sound, zipfile.ZipFile(tmp_path / "b.xlsx", "w", 8) as large:
        for name in sound.namelist():
            head, end, rest = sound.read(name).partition(b"</sheetData>")
            with large.open(name, "w") as part:
                part.write(head)
                for row in rows if name == SHEET else ():
                    part.write(row.encode())
                part.write(end + rest)
    with pytest.raises(DataError, match="has 1 hidden rows and 0 hidden columns with content"):
        read_questions(tmp_path / "b.xlsx")
    code = READ.replace("(Path(sys.argv[1]))", "(Path(sys.argv[1]), (), TableOptions(hidden='leave-out'))")
    code = "from medfedvqa.ingest.tables import TableOptions;" + code
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "b.xlsx")], stdout=subprocess.PIPE, check=True)
    count, memory = map(int, done.stdout.split())
    assert count == 2 + 2**20 - 4 - 1 and memory < MOST_MEMORY * 1000


HIDDEN = ' hidden="1"'


@pytest.mark.slow
def test_a_million_rows_are_read_in_bounded_memory_and_more_are_refused(tmp_path: Path) -> None:
    """A process of its own reads 1,048,576 rows of 100 letters; one row more is one sentence."""
    path = tmp_path / "a.csv"
    question = "Is there an opacity in the left lower lobe of this patient or is it clear at number"
    with path.open("w") as file:
        file.write("image,question,answer\n")
        file.writelines(f"deep/{number // 10}.dcm,{question} {number % 10}?,no\n" for number in range(2**20))
    done = subprocess.run([sys.executable, "-c", READ, str(path)], stdout=subprocess.PIPE, text=True, check=True)
    count, memory = map(int, done.stdout.split())
    assert count == 2**20 and memory < MOST_MEMORY * 1000
    with path.open("a") as file:
        file.write("a,b,c\n")
    with pytest.raises(DataError, match="has more than 1048576 rows: divide it"):
        read_questions(path)
