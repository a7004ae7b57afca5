"""The file of questions."""

import json
from pathlib import Path

import pytest

from medfedvqa.errors import DataError
from medfedvqa.ingest.questions import contradictions, read_questions, topic
from medfedvqa.ingest.table_finds import TableOptions

HEAD = "image,question,answer,organ,split\n"


def test_csv_and_json_lines_say_the_same(tmp_path: Path) -> None:
    """A mark of byte order, quotes, lines within texts, numbers and absent optional fields included."""
    table = tmp_path / "a.csv"
    table.write_bytes(
        ('\ufeffimage,question,answer,organ,split\na.dcm,"Left, or\nright?",left,Lung,TEST\nb,How many?,2,,\n').encode()
    )
    lines = tmp_path / "a.jsonl"
    rows = [
        {"image": "a.dcm", "question": "Left, or\nright?", "answer": "left", "organ": "chest", "split": "test"},
        {"image": "b", "question": "How many?", "answer": 2},
    ]
    lines.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    one, two = read_questions(table), read_questions(lines)
    one, two = one.rows, two.rows
    assert one == two and one[0].organ == "chest" and one[0].split == "test" and one[1].organ is None


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.csv", "", "lacks a column"),
        ("a.csv", "image,question\nSECRET,SECRET?\n", "lacks a column"),
        ("a.csv", HEAD, "has no rows"),
        ("a.csv", HEAD + "SECRET,SECRET?\n", "row 0 has more or fewer fields"),
        ("a.csv", HEAD + "SECRET,SECRET?,yes,,,SECRET\n", "row 0 has more or fewer fields"),
        ("a.csv", HEAD + "SECRET,SECRET?,yes,,\nSECRET,,yes,,\n", "row 1: the field 'question' is missing or empty"),
        ("a.csv", HEAD + "SECRET,SECRET?,yes,SECRET,\n", "row 0: unknown organ"),
        ("a.csv", HEAD + "SECRET,SECRET?,yes,,SECRET\n", "row 0: unknown split"),
        ("a.csv", HEAD + "SECRET," + 5000 * "S" + ",yes,,\n", "row 0: the field 'question' is longer"),
        ("a.csv", HEAD + '"SECRET,SECRET?,yes,,\n', "not valid CSV"),
        ("a.csv", "image,question,answer,SECRET\na,b,c,d\n", "row 0 has an unknown field"),
        ("a.csv", "image,frame,question,answer\na,0,b,c\n", "row 0: the field 'frame' is not a whole number from 1"),
        ("a.csv", "image,frame,question,answer\na,-1,b,c\n", "row 0: the field 'frame' is not a whole number from 1"),
        ("a.csv", "image,Einzelbild,question,answer\na,1.5,b,c\n", "row 0: the field 'frame' is not a whole number"),
        ("a.jsonl", '{"image": "a", "frame": "SECRET", "question": "b", "answer": "c"}\n', "row 0: the field 'frame'"),
        ("a.jsonl", "{SECRET\n", "row 0 is not valid JSON"),
        ("a.jsonl", "[]\n", "has no rows"),
        ("a.jsonl", "7\n", "row 0 is not a JSON object"),
        ("a.json", '[{"image": "a", "question": "SECRET", "answer": "c"}\n', "row 1 is not valid JSON"),
        ("a.json", "[{}] SECRET", "row 0: the field 'image' is missing"),
        ("a.json", '{"questions": [\n"SECRET"]}', "row 0 is not valid JSON: give one object a line, or a list"),
        ("a.jsonl", "[" * 100_000 + "\n", "row 0 is not valid JSON"),
        ("a.jsonl", '{"image": ["SECRET"], "question": "a", "answer": "b"}\n', "row 0: the field 'image' is not text"),
        ("a.jsonl", '{"image": "a", "question": "a", "answer": {}}\n', "row 0: the field 'answer' is not text"),
        ("a.jsonl", "\n", "has no rows"),
    ],
)
def test_a_broken_file_is_one_sentence_without_content(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, match=sentence) as caught:
        read_questions(path)
    assert "SECRET" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_absent_or_no_text_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_questions(tmp_path / "SECRET.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="is not text"):
        read_questions(tmp_path / "b.csv")


TABLE = "Image;Question ;ANSWER\r\na.dcm;Größe, normal?;ja\r\n;;\r\nb.dcm;Links?;nein\r\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables_are_read_as_spreadsheets_write_them(tmp_path: Path, encoding: str, separator: str) -> None:
    """Each separator in each encoding: capital headings, a comma within a text, and an empty row."""
    text = TABLE.replace("Größe, normal?", '"Größe, normal?"').replace(";", separator)
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    table = read_questions(tmp_path / "a.csv", options=TableOptions("cp1252" if encoding == "cp1252" else None))
    assert [(row.image, row.question, row.answer) for row in table.rows] == [
        ("a.dcm", "Größe, normal?", "ja"),
        ("b.dcm", "Links?", "nein"),
    ]
    assert table.encoding == encoding


def test_a_first_line_that_names_the_separator_and_empty_columns_do_not_count(tmp_path: Path) -> None:
    """Excel reads and writes `sep=;`, and pads rows with empty fields."""
    (tmp_path / "a.csv").write_text("sep=;\nimage;question;answer;;\na;b?;c;;\n")
    assert len(read_questions(tmp_path / "a.csv").rows) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"PK\x03\x04SECRET", "is not a workbook that can be read: save its sheet as CSV UTF-8"),
        (b"\xd0\xcf\x11\xe0SECRET", "is a workbook of Excel 2003, or has a password"),
        (b"image,question,answer\nSECRET\0,b,c\n", "is not text"),
        (b"image,question,answer,Answer\nSECRET,b,c,d\n", "has a heading twice"),
        (b"image,question,answer,\na,b,c,SECRET\n", "row 0 has a field in a column without a heading"),
    ],
)
def test_other_tables_are_one_sentence_that_helps(tmp_path: Path, content: bytes, sentence: str) -> None:
    """The sentence quotes nothing of the table."""
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        read_questions(tmp_path / "a.csv")
    assert "SECRET" not in str(caught.value)


def test_contradictory_answers_are_found_whatever_their_case(tmp_path: Path) -> None:
    """All rows of the question count; the same answer twice is no contradiction."""
    lines = ["image,question,answer", "a,Left?,yes", "a,left ?,No", "a,Right?,yes", "a,right?,YES", "b,Left?,no"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    rows = read_questions(tmp_path / "a.csv").rows
    contradictory = contradictions((row.image, row) for row in rows)
    assert [row.index for row in rows if topic(row.image, row) in contradictory] == [0, 1]
