"""Reads the file of questions: a table with a header line, or JSON Lines."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, TypeGuard, get_args

from audits.bounded_files import open_plain
from medfedvqa.errors import DataError
from medfedvqa.ingest.organs import ORGANS, in_order, organ_of
from medfedvqa.ingest.tables import check_row_count, column_of, opened_table, opened_text

Split = Literal["train", "validate", "test"]
REQUIRED = ("image", "question", "answer")
OPTIONAL = ("organ", "split")
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
            questions = [_question(index, row, texts, own_organs) for index, row in enumerate(rows)]
    except OSError:
        raise DataError("the questions file cannot be read: check --questions and its permissions") from None
    if not questions:
        raise DataError("the questions file has no rows: give it one for each question")
    return QuestionsFile(questions, encoding)


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
    index: int, row: Mapping[str, object], kept: dict[str, str], own_organs: Collection[str]
) -> IngestedQuestion:
    """The question in a row. `kept`: the texts of earlier rows, of which equal ones are taken again."""
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
    named, split = texts["organ"].casefold(), texts["split"].lower()
    organ = named if named in own_organs else organ_of(named)
    if named and not organ:
        known = ", ".join(in_order({*ORGANS, *own_organs}))
        raise DataError(f"row {index}: unknown organ; there is {known}, or a body part of one; others by --organ")
    if split and not _is_split(split):
        raise DataError(f"row {index}: unknown split; there is {', '.join(SPLITS)}")
    return IngestedQuestion(
        index,
        kept.setdefault(texts["image"], texts["image"]),
        kept.setdefault(texts["question"], texts["question"]),
        kept.setdefault(texts["answer"], texts["answer"]),
        organ,
        split if _is_split(split) else None,
    )


def _is_split(name: str) -> TypeGuard[Split]:
    return name in SPLITS
