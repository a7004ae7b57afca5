"""Encodings, patient numbers and answers of tables: nothing is guessed, joined or split in silence."""

import json
from pathlib import Path

import pytest

from medfedvqa.errors import DataError
from medfedvqa.ingest.questions import read_questions, spellings
from medfedvqa.ingest.resolve import read_persons
from medfedvqa.ingest.table_finds import TableFinds, TableOptions
from medfedvqa.ingest.tables import samples
from medfedvqa.public_answers import fold

HEAD = "image,question,answer,patient\n"

LANGUAGES = [
    ("gb18030", "肺部是否有肿瘤，左侧还是右侧"),
    ("big5", "肺部是否有腫瘤，左側還是右側"),
    ("shift_jis", "肺に腫瘤はありますか、左ですか右ですか"),
    ("euc_kr", "폐에 종양이 있습니까 왼쪽입니까"),
    ("cp1250", "Czy jest guz w płucu? Żółć, łokieć"),
    ("cp1251", "Есть ли опухоль в лёгком слева?"),
    ("cp1252", "Gibt es links eine Größenänderung?"),
    ("cp1253", "Υπάρχει όγκος στον πνεύμονα;"),
    ("cp1254", "Akciğerde kitle var mı?"),
]


@pytest.mark.parametrize(("encoding", "question"), LANGUAGES)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_no_old_encoding_is_guessed_and_a_named_one_is_used(
    tmp_path: Path, encoding: str, question: str, suffix: str
) -> None:
    """Without its name the table is refused; the samples of `ingest check` have the right text among them."""
    path = tmp_path / f"a{suffix}"
    row = json.dumps({"image": "a", "question": question, "answer": "b"}, ensure_ascii=False)
    path.write_bytes((row if suffix == ".jsonl" else f'{HEAD}a,"{question}",b,7\n').encode(encoding))
    with pytest.raises(
        DataError, match="neither UTF-8 nor UTF-16: save it as CSV UTF-8, or name its encoding by --enc"
    ):
        read_questions(path)
    assert read_questions(path, options=TableOptions(encoding)).rows[0].question == question
    with path.open("rb") as file:
        assert any(question[:20] in text for _, text in samples(file, "table"))


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "base64", "no-such", "utf-8"])
def test_an_encoding_that_does_not_fit_is_refused(tmp_path: Path, encoding: str) -> None:
    """Latin-1 has control characters where Windows has dashes and quotes."""
    (tmp_path / "a.csv").write_bytes(f"{HEAD}a,Größe – links?,b,7\n".encode("cp1252"))
    with pytest.raises(DataError, match="--encoding is not a known text encoding|is not text in this encoding"):
        read_questions(tmp_path / "a.csv", options=TableOptions(encoding))


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf\xef\xbb\xbfimage,question,answer\na,b?,c\n",
        b"\xef\xbb\xbf\xef\xbb\xbfsep=;\nimage;question;answer\na;b?;c\n",
        b"image,question,answer\ra,b?,c\r",
        "image,question,answer\na,b?,c\n".encode("utf-16-le"),
        "image,question,answer\na,b?,c\n".encode("utf-16-be"),
        "image\tquestion\tanswer\r\na\tb?\tc\r\n".encode("utf-32"),
        b"image,question,answer\na,b?,c,,\n",
        b"image,question,answer,,\na,b?,c,,\n",
    ],
)
def test_forms_with_one_meaning_are_read(tmp_path: Path, content: bytes) -> None:
    """Two marks of byte order, old line ends, Unicode without a mark, commas at the end."""
    (tmp_path / "a.csv").write_bytes(content)
    assert [(row.image, row.question, row.answer) for row in read_questions(tmp_path / "a.csv").rows] == [
        ("a", "b?", "c")
    ]


@pytest.mark.parametrize(
    "content", ["a,問題,b\n".encode("iso2022_jp"), b"image,question,answer\nx\0y,b,c\n", b"\xff\xfea", b"\x81\xff\0"]
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    """Encodings that switch by escape characters look like ASCII."""
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match="is not text|neither UTF-8 nor UTF-16"):
        read_questions(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "numbers",
    [
        ["4711.0"],
        ["4711,00"],
        ["4.71108E+11"],
        ["4711\u200b"],
        ["４７１１"],
        ["47\u00ad11"],
        ["4711", "0004711"],
        ["A4711", "a4711"],
        ["4711", "47 11"],
        ["47 11", "47\u00a011"],
        ["A4711", "А4711"],  # Cyrillic
    ],
)
def test_what_may_join_or_split_patients_is_refused(tmp_path: Path, numbers: list[str]) -> None:
    """In a table of questions, and as two persons in a file of persons; no number is quoted."""
    (tmp_path / "a.csv").write_text(HEAD + "".join(f'a{n},b?,c,"{x}"\n' for n, x in enumerate(numbers)))
    (tmp_path / "p.csv").write_text("patient,person\n" + "".join(f'"{x}",P{n}\n' for n, x in enumerate(numbers)))
    for read in (lambda: read_questions(tmp_path / "a.csv"), lambda: read_persons(tmp_path / "p.csv")):
        with pytest.raises(DataError, match=f"row {len(numbers) - 1}") as caught:
            read()
        assert "47" not in str(caught.value)


def test_other_numbers_stay_and_spellings_of_one_person_are_no_fault(tmp_path: Path) -> None:
    """A point within a number, letters before zeros, and a file of persons that joins both spellings."""
    numbers = ["4711", "4712", "P-0004711", "12E5", "4711.1", "4711", "患者7", "0"]
    (tmp_path / "a.csv").write_text(HEAD + "".join(f"a{n},b?,c,{x}\n" for n, x in enumerate(numbers)))
    rows = read_questions(tmp_path / "a.csv").rows
    assert [dict(row.patient_facts)["patient"] for row in rows] == numbers
    (tmp_path / "p.csv").write_text("patient,person\n4711,Q\n0004711,Q\n")
    assert read_persons(tmp_path / "p.csv") == (("4711", "0004711"),)


UNSEEN = ["yes\u00a0", "yes\u200b", "\ufeffyes", "y\u00ades", "ｙｅｓ", "yes\u2060", "yes\ufe0f", "yes\u200d", "yes."]


@pytest.mark.parametrize("answer", UNSEEN)
def test_an_answer_is_stored_as_it_looks(tmp_path: Path, answer: str) -> None:
    """Without what nobody sees and without a final dot; a change inside the text is known to `ingest check`."""
    finds = TableFinds()
    (tmp_path / "a.csv").write_text(f"{HEAD}a,Ist es\u200b links?,{answer},7\n", encoding="utf-8")
    (row,) = read_questions(tmp_path / "a.csv", finds=finds).rows
    assert (row.question, row.answer) == ("Ist es links?", "yes")
    assert ("answer", answer, "yes") in finds.changes or not answer.strip().replace("yes", "")


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        *((answer, "yes") for answer in UNSEEN[:-1]),
        ("X\u2011Ray ?", "x-ray"),
        ("１０ cm", "10 cm"),
        ("ﬁne", "fine"),
        # Joiners are letters of these scripts.
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("क्\u200dष", "क्\u200dष"),
        ("Straße", "straße"),
    ],
)
def test_every_reader_folds_what_looks_the_same_into_one_class(text: str, folded: str) -> None:
    """Data sets that never were a table have no other classes; to fold again changes nothing."""
    assert fold(text) == fold(fold(text)) == folded


@pytest.mark.parametrize("answer", ["NaN", "nan", "null", "NULL", "<NA>", "NaT", "#N/A", "#DIV/0!"])
def test_what_programs_write_where_nothing_stood_is_no_answer(tmp_path: Path, answer: str) -> None:
    (tmp_path / "a.csv").write_text(f"{HEAD}a,b?,{answer},7\n")
    with pytest.raises(DataError, match="row 0: the field 'answer' (is a placeholder|holds a formula error)"):
        read_questions(tmp_path / "a.csv")


def test_what_may_be_meant_is_noted(tmp_path: Path) -> None:
    """`None` is an answer, too; repeated rows and spellings of a class are counted, and no note quotes the table."""
    rows = "a,Q?,None,\nb,Q?,yes,\nb,q ?,Yes,\nb,Q?,YES.,\nb,Q?,yes,2\n"
    (tmp_path / "a.csv").write_text("image,question,answer,frame\n" + rows)
    table = read_questions(tmp_path / "a.csv")
    repeated, several, doubtful = table.notes
    assert "are kept: 2." in repeated and several.endswith(": 1.") and ": 1. Check them." in doubtful
    assert spellings(table.rows) == {"yes": ["yes", "Yes", "YES"]}


@pytest.mark.parametrize(
    ("answer", "stored"),
    [
        ("true", "true"),
        ("2.0", "2"),
        ("2.5", "2.5"),
        ('["yes", "Yes.", "no"]', "yes"),
        ('[{"answer": "no", "answer_id": 1}, {"answer": "yes"}, {"answer": "yes"}]', "yes"),
        ("[2, 2, 3]", "2"),
        ("[]", None),
        ('["yes", "no"]', None),
        ('["yes", null]', None),
        ('[["yes"]]', None),
        ("{}", None),
        ("NaN", None),
        ("null", None),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_answers_of_several_people_are_the_most_frequent_one(
    tmp_path: Path, answer: str, stored: str | None, listed: bool
) -> None:
    """In a list as in lines; of a tie, or of none, nothing is stored."""
    row = f'{{"image": "a", "question": "b?", "answers": {answer}}}'
    (tmp_path / "a.json").write_text(f" [\n{row},\n{row}]\n" if listed else f"{row}\n{row}\n")
    if stored is None:
        with pytest.raises(DataError, match="row 0: (no answer of the list|the field 'answer')"):
            read_questions(tmp_path / "a.json")
    else:
        assert [row.answer for row in read_questions(tmp_path / "a.json").rows] == [stored, stored]
