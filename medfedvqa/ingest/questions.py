"""Reads the file of questions: a table with a header line, or JSON Lines."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, TypeGuard, get_args

from audits.bounded_files import open_plain
from medfedvqa.errors import DataError
from medfedvqa.ingest.calendar_dates import dates_in
from medfedvqa.ingest.organs import ORGANS, in_order, organ_of
from medfedvqa.ingest.tables import check_row_count, column_of, opened_table, opened_text

Split = Literal["train", "validate", "test"]
REQUIRED = ("image", "question", "answer")
PATIENT_COLUMNS = ("patient", "name", "birth_date", "number")
"""The columns that say who the patient of the image is."""
OPTIONAL = ("organ", "split", *PATIENT_COLUMNS)
SPLITS: tuple[Split, ...] = get_args(Split)
MAX_LETTERS = 4096
"""The most letters of a field."""
FILE = "questions file"
"""What errors call the file."""
_UNPAIRED = re.compile("[\ud800-\udfff]")
"""Lone surrogates, which JSON can hold and UTF-8 cannot."""


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


@dataclass(frozen=True)
class QuestionsFile:
    """All rows in order, and the encoding of their file."""

    rows: list[IngestedQuestion]
    encoding: str


def read_questions(path: Path, own_organs: Collection[str] = ()) -> QuestionsFile:
    """`.jsonl` and `.ndjson` are read as JSON Lines, other files as tables. Raises `DataError`.

    `own_organs`: organs that rows may name beside those of the list.
    A million rows of 100 letters take about 500 MB of memory, since texts that recur are kept once.
    """
    try:
        with open_plain(path) as file, _opened_rows(file, path.suffix.lower()) as (rows, encoding):
            texts: dict[str, str] = {}

            def keep(text: str) -> str:
                return texts.setdefault(text, text)

            questions = [_question(index, row, keep, own_organs) for index, row in enumerate(rows)]
    except OSError:
        raise DataError("the questions file cannot be read: check --questions and its permissions") from None
    if not questions:
        raise DataError("the questions file has no rows: give it one for each question")
    return QuestionsFile(questions, encoding)


def named_images(path: Path, own_organs: Collection[str] = ()) -> list[str]:
    """The images that the questions name, each once, in the order of the file. Raises as `read_questions` does."""
    return list(dict.fromkeys(question.image for question in read_questions(path, own_organs).rows))


@contextmanager
def _opened_rows(file: BinaryIO, suffix: str) -> Iterator[tuple[Iterator[Mapping[str, object]], str]]:
    """The rows, read as they are taken, and the encoding."""
    if suffix in (".jsonl", ".ndjson"):
        with opened_text(file, FILE) as (text, encoding):
            yield _json_lines(text), encoding
    else:
        with opened_table(file, REQUIRED, FILE) as table:
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
    """Stands for a question about the image with this ID."""
    return _digest(image, question.question)


def _digest(*texts: str) -> bytes:
    plain = (" ".join(text.casefold().split()).rstrip("?!. ") for text in texts)
    return hashlib.blake2b("\0".join(plain).encode(), digest_size=16).digest()


def _json_lines(text: Iterable[str]) -> Iterator[Mapping[str, object]]:
    for index, line in enumerate(line for line in text if line.strip()):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"row {index} is not valid JSON: give one object a line") from None
        if not isinstance(row, dict):
            raise DataError(f"row {index} is no JSON object: give one object a line")
        columns = {column_of(name): value for name, value in row.items()}
        if len(columns) != len(row):
            raise DataError(f"row {index} has a field twice: name each once")
        check_row_count(index, FILE)
        yield columns


def _question(
    index: int, row: Mapping[str, object], keep: Callable[[str], str], own_organs: Collection[str]
) -> IngestedQuestion:
    """The question in a row. `keep` returns the first of equal texts, so that texts which recur are kept once."""
    if set(row) - {*REQUIRED, *OPTIONAL}:
        raise DataError(f"row {index} has an unknown field; there is {', '.join((*REQUIRED, *OPTIONAL))}")
    texts = {}
    for name in (*REQUIRED, *OPTIONAL):
        value = row.get(name)
        # Answers such as counts may be numbers; true and false are no answers.
        if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
            raise DataError(f"row {index}: the field '{name}' is not text")
        texts[name] = "" if value is None else str(value).strip()
        if name in REQUIRED and not texts[name]:
            raise DataError(f"row {index}: the field '{name}' is missing or empty")
        if _UNPAIRED.search(texts[name]):
            raise DataError(f"row {index}: the field '{name}' is no Unicode text: save the file as UTF-8")
        if len(texts[name]) > MAX_LETTERS:
            raise DataError(f"row {index}: the field '{name}' is longer than {MAX_LETTERS} letters")
    if texts["birth_date"] and not any(dates_in(texts["birth_date"])):
        raise DataError(f"row {index}: the field 'birth_date' is no date: write it as 1970-02-03 or 03.02.1970")
    named, split = texts["organ"].casefold(), texts["split"].lower()
    organ = named if named in own_organs else organ_of(named)
    if named and not organ:
        names = ", ".join(in_order({*ORGANS, *own_organs}))
        raise DataError(f"row {index}: unknown organ; there is {names}, or a body part of one; others by --organ")
    if split and not _is_split(split):
        raise DataError(f"row {index}: unknown split; there is {', '.join(SPLITS)}")
    facts = tuple((column, keep(texts[column])) for column in PATIENT_COLUMNS if texts[column])
    return IngestedQuestion(
        index,
        keep(_within(texts["image"], index)),
        keep(texts["question"]),
        keep(texts["answer"]),
        organ,
        split if _is_split(split) else None,
        facts,
    )


def name_of_image(text: str) -> str:
    """The name of an image as names are compared: by slashes, and with accents as one letter each."""
    return unicodedata.normalize("NFC", text.replace("\\", "/")).removeprefix("./")


def _within(text: str, index: int) -> str:
    """The name of an image. Raises `DataError` for a path that leads out of the folder."""
    name = name_of_image(text)
    if name.startswith("/") or re.match("[A-Za-z]:/", name) or ".." in name.split("/"):
        raise DataError(f"row {index}: the field 'image' leads out of the folder: give the path within it")
    return name


def _is_split(name: str) -> TypeGuard[Split]:
    return name in SPLITS
