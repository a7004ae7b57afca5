"""Names of headers in questions: in every script, in bytes that declare nothing or the wrong thing, in any element."""

import functools
import random
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydicom.datadict import tag_for_keyword
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import Tag

from medfedvqa.ingest.identifier_forms import header_forms
from medfedvqa.ingest.identifier_search import identifiers_in, without

ROOT = Path(__file__).parents[2]


@functools.cache
def program() -> dict[str, Any]:
    """The program that writes invented names and measures."""
    return runpy.run_path(str(ROOT / "benchmarks" / "identifiers.py"))


SCRIPTS = (
    "Latin with accents", "Cyrillic", "Greek", "Arabic", "Hebrew", "Han", "Kana", "Hangul", "Devanagari",
)  # fmt: skip


def cleaned(header: Dataset, text: str, doubtful: bool = False) -> str:
    """The text with a placeholder for each identifier."""
    return without(text, identifiers_in(text, header_forms(header).__contains__, doubtful))


def named(name: str) -> Dataset:
    """The header of a patient of this name."""
    header = Dataset()
    header.SpecificCharacterSet = "ISO_IR 192"
    header.PatientName = name
    return header


def with_bytes(keyword: str, vr: str, content: bytes, charset: str = "") -> Dataset:
    """A header as a file has it, with an element that nobody has decoded yet."""
    header = Dataset()
    if charset:
        header.SpecificCharacterSet = charset
    tag = Tag(tag_for_keyword(keyword) or 0)
    header[tag] = RawDataElement(tag, vr, len(content), content, 0, False, True)
    return header


@pytest.mark.parametrize("script", SCRIPTS)
def test_names_are_found_in_every_script(script: str) -> None:
    """Of invented names in sentences of their language at least 99 % are found: a sample."""
    assert len(program()["missed"](script, 100, seed=11)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_of_a_thousand_names_of_each_script_99_in_100_are_found(script: str) -> None:
    """As above, with 1,000 names."""
    missed = program()["missed"](script, 1000, seed=12)
    assert len(missed) <= 10, missed


def false_alarms(data: Path, step: int, headers: int) -> None:
    made = program()
    draw = random.Random(5)
    forms = [
        header_forms(made["header_of"](written(draw)[0], draw))
        for written in made["SCRIPTS"].values()
        for _ in range(headers)
    ]
    assert set(made["SCRIPTS"]) == set(SCRIPTS)
    for name, texts in made["questions"](data).items():
        sample = texts[::step]
        pairs = list(made["refused"](sample, forms))
        alone = {text for number, text in pairs if number < 0}
        bound = 0.001 if "Chinese" in name else 0.005
        assert len(sample) > 2000 / step and len(alone) <= bound * len(sample), alone
        assert len(pairs) <= bound * len(sample) * len(forms), pairs


def test_ordinary_questions_stay_beside_names_of_every_script(data_folder: Path) -> None:
    """At most 0.1 % of SLAKE's Chinese and 0.5 % of the English questions are refused, with and without a header."""
    false_alarms(data_folder, 20, 2)


@pytest.mark.slow
def test_all_ordinary_questions_stay_beside_names_of_every_script(data_folder: Path) -> None:
    """As above, with all questions and 180 headers."""
    false_alarms(data_folder, 1, 20)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Yamada^Tarou=山田^太郎", "山田太郎さんの頭部に出血はありますか", "[removed]さんの頭部に出血はありますか"),
        ("Yamada^Tarou=山田^太郎=やまだ^たろう", "Does 山田 太郎 have a bleed?", "Does [removed] have a bleed?"),
        ("Yamada^Tarou=山田^太郎=やまだ^たろう", "ﾔﾏﾀﾞ ﾀﾛｳの肺", "[removed]の肺"),
        ("王^小东", "王小东的脑部是否有肿瘤？", "[removed]的脑部是否有肿瘤？"),
        ("王小东", "小东的脑部是否有肿瘤？", "[removed]的脑部是否有肿瘤？"),
        ("王^健康", "肺部健康吗？", "肺部健康吗？"),
        ("王^健康", "王健康的肺部健康吗？", "[removed]的肺部健康吗？"),
        ("王^小东", "国王的肺", "国王的肺"),
        ("王^小东", "王先生的肺正常吗？", "[removed]先生的肺正常吗？"),
        ("Wang^XiaoDong", "Does Wang Xiao Dong have a tumour?", "Does [removed] have a tumour?"),
        ("Wang^Xiao Dong", "Is XiaoDong well?", "Is [removed] well?"),
        ("すずき^あり", "出血はありますか", "出血はありますか"),
        ("すずき^あり", "ありさんに出血はありますか", "[removed]さんに出血はありますか"),
        ("김^철수", "김철수는 골절이 있습니까?", "[removed]는 골절이 있습니까?"),
        ("สมชาย^ใจดี", "สมชายมีเนื้องอกหรือไม่", "[removed]มีเนื้องอกหรือไม่"),
        ("Иванов^Пётр", "Есть ли опухоль у Ивановой?", "Есть ли опухоль у [removed]?"),
        ("Ivanov^Pyotr", "Есть ли опухоль у Иванова Петра?", "Есть ли опухоль у [removed] [removed]?"),
        ("Люксембург", "Есть ли опухоль у Люкceмбypг?", "Есть ли опухоль у [removed]?"),
        ("Papadopoulos^Nikos", "Έχει όγκο του Παπαδοπούλου;", "Έχει όγκο του [removed];"),
        ("Kowalski^Jan", "Czy u Kowalskiego jest guz?", "Czy u [removed] jest guz?"),
        ("Yılmaz^Çağla", "Yılmaz'ın tümörü var mı?", "[removed] tümörü var mı?"),
        ("שרון^דבורה", "האם לשרון יש גידול?", "האם [removed] יש גידול?"),
        ("نزار^قباني", "هل توجد كتلة لقبّاني؟", "هل توجد كتلة [removed]؟"),
        ("राम^शर्मा", "क्या शर्मा को ट्यूमर है?", "क्या [removed] को ट्यूमर है?"),
        ("राम^शर्मा", "क्या शर्म को ट्यूमर है?", "क्या शर्म को ट्यूमर है?"),
        ("Ng^Bo", "Does Mr. Ng have a bleed?", "Does Mr. [removed] have a bleed?"),
        ("Ng^Bo", "Is Ng, Bo well?", "Is [removed] well?"),
        ("Ng^Bo", "Is an NG tube seen, bo?", "Is an NG tube seen, bo?"),
        ("Herz^Eva", "Is Frau Herz well?", "Is Frau [removed] well?"),
        ("Tumor^Eva", "Is a tumor seen?", "Is a tumor seen?"),
        ("Kopf^Eva", "Ist der Kopf normal?", "Ist der Kopf normal?"),
    ],
)  # fmt: skip
def test_a_name_is_found_as_its_language_writes_it(name: str, text: str, expected: str) -> None:
    """Blanks, order, width, particles, cases, prefixes, points and alphabets do not hide a name, and its parts that are
    ordinary words or a letter or two count only where they stand as names."""
    assert cleaned(named(name), text) == expected


@pytest.mark.parametrize("charset", ["", "ISO_IR 100", "ISO_IR 192", "ISO_IR 13", "ISO_IR 144", "FOO", "GB18030"])
@pytest.mark.parametrize(
    ("name", "encoding", "text"),
    [
        ("Grünwälder^Zoë", "utf-8", "Is there a bleed in Mrs. Grünwälder's head?"),
        ("Grünwälder^Zoë", "latin-1", "Is there a bleed in Mrs. Gruenwaelder's head?"),
        ("王^小东", "gb18030", "王小东的脑部是否有肿瘤？"),
        ("山田^太郎", "shift_jis", "山田太郎の肺"),
        ("山田^太郎", "iso2022_jp", "山田太郎の肺"),
        ("김^철수", "euc_kr", "김철수의 폐"),
        ("Иванов^Пётр", "cp1251", "Есть ли опухоль у Иванова?"),
        ("Иванов^Пётр", "iso8859_5", "Есть ли опухоль у Иванова?"),
        ("Διονύσιος", "iso8859_7", "Έχει ο Διονύσιος όγκο;"),
        ("Kowalczyk^Łucja", "iso8859_2", "Was Łucja seen?"),
    ],
)
def test_a_name_is_found_whatever_encoding_its_header_declares(
    name: str, encoding: str, text: str, charset: str
) -> None:
    """Every plausible reading of the bytes counts: a header that declares none, or a wrong one, hides no name."""
    header = with_bytes("PatientName", "PN", name.encode(encoding), charset)
    assert cleaned(header, text) != text


def test_bytes_that_each_encoding_reads_otherwise_are_no_error() -> None:
    """A header of arbitrary bytes under any declared encoding has forms, and an ordinary question stays."""
    draw = random.Random(3)
    for charset in ("", "ISO_IR 100", "ISO_IR 192", "ISO_IR 13", "GB18030", "ISO 2022 IR 87", "FOO"):
        for keyword, vr in (("PatientName", "PN"), ("PatientComments", "LT"), ("PatientID", "LO"), ("StudyID", "UN")):
            for _ in range(5):
                header = with_bytes(keyword, vr, draw.randbytes(40).replace(b"\\", b""), charset)
                assert cleaned(header, "Is the liver normal?") == "Is the liver normal?"


def elsewhere() -> dict[str, Dataset]:
    """Headers that name `Leuenberger` in an element where few look."""
    private = Dataset()
    private.private_block(0x0009, "EXAMPLE PACS", create=True).add_new(1, "UN", b"Leuenberger^Ida ")
    line = Dataset()
    line.private_block(0x0009, "EXAMPLE PACS", create=True).add_new(2, "LO", "Leuenberger^Ida")
    siemens = Dataset()
    siemens.private_block(0x0029, "EXAMPLE MR", create=True).add_new(3, "LO", "Head^Leuenberger")
    nested, item, former = Dataset(), Dataset(), with_bytes("PatientName", "UN", b"Leuenberger^Ida ")
    item.ModifiedAttributesSequence = [former]
    nested.OriginalAttributesSequence = [item]
    return {
        "a private element of unknown kind": private,
        "a private line of text": line,
        "the name as a line of text": with_bytes("PatientName", "LO", b"Leuenberger^Ida "),
        "the name as unknown bytes": with_bytes("PatientName", "UN", b"Leuenberger^Ida "),
        "the physician as a text": with_bytes("ReferringPhysicianName", "ST", b"Leuenberger^Max^^Dr. "),
        "a sequence in a sequence": nested,
        "the study's description": with_bytes("StudyDescription", "LO", b"CT Schaedel Leuenberger Ida "),
        "an element of a device beside its protocol": siemens,
        "comments on the patient": with_bytes("PatientComments", "LT", b"Tochter Annelies LEUENBERGER anrufen"),
    }


@pytest.mark.parametrize("place", sorted(elsewhere()))
def test_a_name_is_found_in_whatever_element_it_stands(place: str) -> None:
    """The keyword and the text make a name, not the kind that the file gives its element. Of a text that says more
    than names its words count after a title or with a capital within a sentence."""
    header, texts = (
        elsewhere()[place],
        ["Is there a bleed in Mrs. Leuenberger's head?", "Was daughter Leuenberger called?"],
    )
    if place not in ("the study's description", "comments on the patient"):
        texts += ["Leuenberger has a bleed?", "is leuenberger's liver normal?"]
    for text in texts:
        assert cleaned(header, text) != text, place


@pytest.mark.parametrize(
    "text",
    [
        "Is this an axial T2 image?",
        "Is the Chest normal?",
        "CT of which organ?",
        "Is it FLAIR or DWI?",
        "is leuenberger it",
        "Is the abdomen normal?",
        "Has the patient swallowed it?",
        "Is the head seen?",
    ],
)
def test_words_of_free_text_are_names_only_where_they_look_like_names(text: str) -> None:
    """What a header's description says of the study stays in questions, on pictures as well as in the table."""
    header = with_bytes("StudyDescription", "LO", b"CT Chest axial T2 FLAIR DWI Leuenberger ")
    header.SeriesDescription = "Abdomen^Routine swallowed coin"
    header.private_block(0x0029, "EXAMPLE MR", create=True).add_new(3, "LO", "Abdomen^Head")
    assert cleaned(header, text) == text


def test_words_on_pictures_have_the_same_forms() -> None:
    """What is read from pixels is compared with names in any script, and with free text in any case."""
    assert cleaned(named("王^小东"), "王小东 1975", doubtful=True).startswith("[removed]")
    assert cleaned(named("Meier^Johanna"), "MEIERJOHANMA", doubtful=True) == "[removed]"
    assert cleaned(named("Ivanov^Pyotr"), "ИВАНОВ ПЁТР", doubtful=True) == "[removed] [removed]"
    header = with_bytes("StudyDescription", "LO", b"CT Schaedel axial Leuenberger ")
    assert cleaned(header, "leuenberger", doubtful=True) == "[removed]"
    assert cleaned(header, "AXIAL SCHAEDEL 3 MM", doubtful=True) == "AXIAL SCHAEDEL 3 MM"


def test_an_ingestion_leaves_out_questions_that_name_the_patient(place: Any, make_dicom: Any, encode: Any) -> None:
    """The way of a user: headers in Chinese, and in UTF-8 that they do not declare, and questions with the names."""
    chinese = make_dicom(PatientID="C-1", SpecificCharacterSet="GB18030", PatientName="Wang^XiaoDong=王^小东")
    german = encode(make_dicom(PatientID="G-1", PatientName="X" * 14))
    place.add("chinese.dcm", chinese)
    place.add("german.dcm", german.replace(b"X" * 14, "Grünwälder^A".encode()))
    texts = {"chinese.dcm": "王小东的脑部是否有肿瘤？", "german.dcm": "Is there a bleed in Mrs. Grünwälder's head?"}
    lines = ["image,question,answer", *(f"{name},{text},yes" for name, text in texts.items())]
    lines += [f"{name},Is there a bleed?,no" for name in texts]
    place.questions.write_text("\n".join(lines), encoding="utf-8")
    counts = place.ingest().counts
    assert (counts.rows, counts.rows_left_out) == (2, {"identifier_in_text": 2})


def test_libraries_of_numbers_are_loaded_where_a_text_needs_them() -> None:
    """A process that reads names and ordinary questions loads no library of national numbers, phones or calendars."""
    program = (
        "import sys; from medfedvqa.ingest.identifier_search import identifiers_in as find; "
        "find('Is it 4 cm?', lambda _: False);"
        "print(*{name.split('.')[0] for name in sys.modules} & {'stdnum', 'phonenumbers', 'convertdate', 'pydicom'})"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.split() == []
