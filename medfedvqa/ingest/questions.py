"""Reads the file of questions: a table with a header line, JSON Lines, or a JSON list."""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TextIO, TypeGuard, get_args

from audits.bounded_files import open_plain
from medfedvqa.errors import DataError
from medfedvqa.ingest.organs import ORGANS, in_order, organ_of
from medfedvqa.ingest.pseudonyms import NumberSpellings, lost_digits
from medfedvqa.ingest.store import Split
from medfedvqa.ingest.table_finds import TableFinds, TableOptions
from medfedvqa.ingest.tables import check_row_count, column_of, opened_table, opened_text
from medfedvqa.ingest.written_dates import dates_in
from medfedvqa.public_answers import fold, plain, without_invisible

REQUIRED = ("image", "question", "answer")
PATIENT_COLUMNS = ("patient", "name", "birth_date", "number")
"""The columns that say who the patient of the image is."""
OPTIONAL = ("frame", "organ", "split", *PATIENT_COLUMNS)
SPLITS: tuple[Split, ...] = get_args(Split)
MAX_LETTERS = 4096
"""The most letters of a field."""
FILE = "questions file"
"""The name of the file in errors."""
_FRAME = re.compile(r"([1-9]\d{0,8})(?:\.0)?", re.ASCII)
"""The number of a frame; programs write a column of whole numbers with gaps as 3.0."""
_UNPAIRED = re.compile("[\ud800-\udfff]")
"""Lone surrogates, which JSON can hold and UTF-8 cannot."""
_NO_ANSWER = {"nan", "-nan", "<na>", "nat", "null", "#na", "nil"}
_DOUBTFUL_ANSWER = {"none", "n/a", "na"}
"""Texts that programs write for an empty field; the doubtful ones may also be answers."""


@dataclass(frozen=True, slots=True)
class IngestedQuestion:
    """One row of the file. Its repr shows the index alone, since the rest is patient data."""

    index: int
    """The row's number from 0; the header line of a CSV file does not count."""
    image: str = field(repr=False)
    """The image's file name, path within the folder, SOP instance UID or accession number."""
    question: str = field(repr=False)
    answer: str = field(repr=False)
    organ: str | None
    split: Split | None
    patient_facts: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Column and text of each of `PATIENT_COLUMNS` that has any. They are compared with, and never stored."""
    frame: int | None = None
    """The number of the image's frame, from 0; None for its main frame."""


@dataclass(frozen=True)
class QuestionsFile:
    """All rows in order, and the encoding of their file."""

    rows: list[IngestedQuestion]
    encoding: str
    notes: tuple[str, ...] = ()
    """What a person should know about the table, in sentences that quote nothing of it."""


def read_questions(
    path: Path,
    own_organs: Collection[str] = (),
    options: TableOptions | None = None,
    finds: TableFinds | None = None,
) -> QuestionsFile:
    """Reads a questions file: `.jsonl`, `.ndjson` and `.json` as JSON, others as tables. Raises `DataError`.

    `own_organs`: organs that rows may name beside those of the list. `finds` receives what is noticed; if it collects
    refusals, refused rows are left out. A million rows of 100 letters take about 500 MB of memory, since texts that
    recur are kept once.
    """
    options, finds, questions = options or TableOptions(), finds or TableFinds(), list[IngestedQuestion]()
    try:
        with open_plain(path) as file, _opened_rows(file, path.suffix.lower(), options, finds) as (rows, encoding):
            reader = _RowReader(own_organs, finds)
            for index, row in enumerate(rows):
                try:
                    questions.append(reader.question(index, row))
                except DataError as error:
                    finds.refuse(error)
    except OSError:
        raise DataError("the questions file cannot be read: check --questions and its permissions") from None
    if not questions and not finds.refusals:
        raise DataError("the questions file has no rows: give it one for each question")
    return QuestionsFile(questions, encoding, (*finds.notes, *_notes(questions)))


def spellings(questions: Iterable[IngestedQuestion]) -> dict[str, list[str]]:
    """The answers that are one class although they are written in several ways, by class."""
    classes: dict[str, list[str]] = {}
    for answer in dict.fromkeys(question.answer for question in questions):
        classes.setdefault(fold(answer), []).append(answer)
    return {name: answers for name, answers in classes.items() if len(answers) > 1}


def _notes(questions: Sequence[IngestedQuestion]) -> Iterator[str]:
    """What a person should know about the rows."""
    distinct = {hash((topic(f"{row.image} {row.frame}", row), _digest(row.answer))) for row in questions}
    if repeated := len(questions) - len(distinct):
        yield (
            f"Rows that repeat image, question and answer of another row, and are kept: {repeated}. Case, blanks and "
            "the last punctuation do not count."
        )
    if several := len(spellings(questions)):
        yield f"Classes whose answers are written in several ways, which differ in case alone: {several}."
    if doubtful := sum(row.answer.casefold() in _DOUBTFUL_ANSWER for row in questions):
        yield f"Answers 'None' or 'N/A', which programs also write where nothing stood: {doubtful}. Check them."


def named_images(path: Path, own_organs: Collection[str] = ()) -> list[str]:
    """The images that the questions name, each once, in the order of the file. Raises as `read_questions` does."""
    return list(dict.fromkeys(question.image for question in read_questions(path, own_organs).rows))


@contextmanager
def _opened_rows(
    file: BinaryIO, suffix: str, options: TableOptions, finds: TableFinds
) -> Iterator[tuple[Iterator[Mapping[str, object]], str]]:
    """The rows, read as they are taken, and the encoding."""
    if suffix in (".jsonl", ".ndjson", ".json"):
        with opened_text(file, FILE, options.encoding) as (text, encoding):
            yield _json_rows(text), encoding
    else:
        with opened_table(file, REQUIRED, FILE, options, finds) as table:
            yield table


def contradictions(questions: Iterable[tuple[str, IngestedQuestion]]) -> frozenset[bytes]:
    """The topics that have different answers; case, spaces and the last punctuation do not count.

    `questions`: each with the ID of its image, since a table may name one image in several ways.
    """
    answers: dict[bytes, bytes] = {}
    return frozenset(
        about
        for image, question in questions
        if answers.setdefault(about := topic(image, question), answer := _digest(question.answer)) != answer
    )


def topic(image: str, question: IngestedQuestion) -> bytes:
    """A key for a question about the image with this ID: equal keys mean the same question."""
    return _digest(image, question.question)


def _digest(*texts: str) -> bytes:
    folded = (plain(text).casefold().rstrip("?!. ") for text in texts)
    return hashlib.blake2b("\0".join(folded).encode(), digest_size=16).digest()


def _json_rows(text: TextIO) -> Iterator[Mapping[str, object]]:
    """The objects of a list, or those of the lines."""
    filled = (line for line in text if line.strip("\ufeff \t\r\n"))
    first = next(filled, "").lstrip("\ufeff")
    lines = map(json.loads, chain((first,), filled))
    objects = _listed(first + text.read()) if first.lstrip().startswith("[") else lines
    index = 0
    while first:
        try:
            row = next(objects)
        except StopIteration:
            return
        except (ValueError, RecursionError):
            raise DataError(f"row {index} is not valid JSON: give one object a line, or a list of objects") from None
        if not isinstance(row, dict):
            raise DataError(f"row {index} is not a JSON object: give one object a line, or a list of objects")
        columns = {column_of(name): value for name, value in row.items()}
        if len(columns) != len(row):
            raise DataError(f"row {index} has a field twice: name each once")
        check_row_count(index, FILE)
        yield columns
        index += 1


def _listed(text: str) -> Iterator[object]:
    """The entries of a JSON list, one at a time, since all of them take several times the text's memory."""
    decoder, mark = json.JSONDecoder(), re.compile(r"\s*([,\]])\s*")
    found = re.match(r"\s*\[\s*(\]?)\s*", text)
    while found and found[1] != "]":
        entry, place = decoder.raw_decode(text, found.end())
        yield entry
        found = mark.match(text, place)
    if not found or found.end() < len(text):
        raise ValueError("neither a comma nor an end, or something after it")


class _RowReader:
    """Makes questions of rows."""

    def __init__(self, own_organs: Collection[str], finds: TableFinds) -> None:
        self._organs, self._finds = own_organs, finds
        self._numbers = NumberSpellings()
        self._kept: dict[str, str] = {}

    def _keep(self, text: str) -> str:
        """The first of equal texts, so that texts which recur are kept once."""
        return self._kept.setdefault(text, text)

    def _text(self, index: int, name: str, value: object) -> str:
        """A field as it is stored. Raises `DataError`."""
        if value is None and name not in REQUIRED:
            return ""
        given = value
        if name == "answer":
            value = _one_answer(index, value)
        if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
            raise DataError(f"row {index}: the field '{name}' is not text")
        written = "" if value is None else str(value).strip()
        if _UNPAIRED.search(written):
            raise DataError(f"row {index}: the field '{name}' is not Unicode text: save the file as UTF-8")
        text = written if name == "patient" else without_invisible(written)
        if name == "answer":
            text = _without_dot(text)
        if name in REQUIRED and not text:
            raise DataError(f"row {index}: the field '{name}' is missing or empty")
        if len(text) > MAX_LETTERS:
            raise DataError(f"row {index}: the field '{name}' is longer than {MAX_LETTERS} letters")
        if text != written or isinstance(given, (bool, list)):
            self._finds.change(name, str(given)[:MAX_LETTERS], text)
        return text

    def question(self, index: int, row: Mapping[str, object]) -> IngestedQuestion:
        """The question in a row. Raises `DataError`."""
        if set(row) - {*REQUIRED, *OPTIONAL}:
            raise DataError(f"row {index} has an unknown field; there is {', '.join((*REQUIRED, *OPTIONAL))}")
        texts = {name: self._text(index, name, row.get(name)) for name in (*REQUIRED, *OPTIONAL)}
        if texts["answer"].casefold() in _NO_ANSWER:
            raise DataError(
                f"row {index}: the field 'answer' is a placeholder for an empty field, such as NaN: "
                "give an answer, or leave out the row"
            )
        if texts["patient"] and (fault := self._numbers.fault(texts["patient"])):
            raise DataError(f"row {index}: the field 'patient' {fault}")
        if lost_digits(texts["number"]):
            raise DataError(
                f"row {index}: the field 'number' was reformatted by a spreadsheet: format the column as text"
            )
        if texts["birth_date"] and not any(dates_in(texts["birth_date"])):
            raise DataError(
                f"row {index}: the field 'birth_date' is not a date: write it as 1970-02-03 or 03.02.1970, or format "
                "the column as a date"
            )
        frame = _FRAME.fullmatch(texts["frame"])
        if texts["frame"] and not frame:
            raise DataError(f"row {index}: the field 'frame' is not a whole number from 1 on")
        named, split = texts["organ"].casefold(), texts["split"].lower()
        organ = named if named in self._organs else organ_of(named)
        if named and not organ:
            names = ", ".join(in_order({*ORGANS, *self._organs}))
            raise DataError(f"row {index}: unknown organ; there is {names}, or a body part of one; others by --organ")
        if split and not _is_split(split):
            raise DataError(f"row {index}: unknown split; there is {', '.join(SPLITS)}")
        facts = tuple((column, self._keep(texts[column])) for column in PATIENT_COLUMNS if texts[column])
        return IngestedQuestion(
            index,
            self._keep(_within(texts["image"], index)),
            self._keep(texts["question"]),
            self._keep(texts["answer"]),
            organ,
            split if _is_split(split) else None,
            facts,
            int(frame[1]) - 1 if frame else None,
        )


def _without_dot(answer: str) -> str:
    """An answer in its plain form, without a final dot, which distinguishes no answers."""
    return plain(answer).rstrip(".").rstrip() or answer


def _one_answer(index: int, value: object) -> object:
    """The answer in a field: the most frequent one of several persons; truth values and whole numbers as text."""
    if isinstance(value, list):
        entries = [each.get("answer") if isinstance(each, dict) else each for each in value]
        answers = [_one_answer(index, each) for each in entries if isinstance(each, (str, int, float))]
        votes = Counter(fold(_without_dot(str(each))) for each in answers).most_common(2)
        if len(answers) < max(1, len(value)) or (len(votes) > 1 and votes[0][1] == votes[1][1]):
            raise DataError(f"row {index}: no answer of the list has the most votes: give one answer")
        return next(each for each in answers if fold(_without_dot(str(each))) == votes[0][0])
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, (int, float)) else value


def name_of_image(text: str) -> str:
    """An image's name in the form for comparisons: forward slashes, and letters with accents composed (NFC)."""
    return unicodedata.normalize("NFC", text.replace("\\", "/")).removeprefix("./")


def _within(text: str, index: int) -> str:
    """The name of an image. Raises `DataError` for a path that leads out of the folder."""
    name = name_of_image(text)
    if name.startswith("/") or re.match("[A-Za-z]:/", name) or ".." in name.split("/"):
        raise DataError(f"row {index}: the field 'image' points outside of the folder: give a path within it")
    return name


def _is_split(name: str) -> TypeGuard[Split]:
    return name in SPLITS
