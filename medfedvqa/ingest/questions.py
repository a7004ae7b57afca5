"""Reads the file of questions: a table with a header line, or JSON Lines."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeGuard, get_args

from audits.bounded_files import read_bounded
from medfedvqa.errors import DataError
from medfedvqa.ingest.organs import ORGANS, organ_of
from medfedvqa.ingest.tables import decoded, rows_of

Split = Literal["train", "validate", "test"]
REQUIRED = ("image", "question", "answer")
OPTIONAL = ("organ", "split")
SPLITS: tuple[Split, ...] = get_args(Split)
MAX_LETTERS = 4096
"""The most letters of a field."""
MAX_BYTES = 1 << 28
"""The most bytes of the file."""
_UNPAIRED = re.compile("[\ud800-\udfff]")
"""Lone surrogates, which JSON can hold and UTF-8 cannot."""


@dataclass(frozen=True)
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


def read_questions(path: Path) -> QuestionsFile:
    """`.jsonl` and `.ndjson` are read as JSON Lines, other files as tables. Raises `DataError`."""
    try:
        text, encoding = decoded(read_bounded(path, MAX_BYTES))
    except OSError:
        raise DataError("the questions file cannot be read: check --questions and its permissions") from None
    raw = _json_lines(text) if path.suffix.lower() in (".jsonl", ".ndjson") else rows_of(text, REQUIRED)
    questions = [_question(index, row) for index, row in enumerate(raw)]
    if not questions:
        raise DataError("the questions file has no rows: give it one for each question")
    return QuestionsFile(questions, encoding)


def contradictions(questions: Iterable[IngestedQuestion]) -> frozenset[int]:
    """The indices of questions that stand twice about an image with different answers; case and spaces do not count."""
    answers: dict[tuple[str, str], dict[str, list[int]]] = {}
    for question in questions:
        same = answers.setdefault((question.image, _plain(question.question)), {})
        same.setdefault(_plain(question.answer), []).append(question.index)
    return frozenset(index for same in answers.values() if len(same) > 1 for group in same.values() for index in group)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip("?!. ")


def _json_lines(text: str) -> Iterator[Mapping[str, object]]:
    for index, line in enumerate(line for line in text.splitlines() if line.strip()):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"row {index} is not valid JSON: give one object a line") from None
        if not isinstance(row, dict):
            raise DataError(f"row {index} is no JSON object: give one object a line")
        yield row


def _question(index: int, row: Mapping[str, object]) -> IngestedQuestion:
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
    organ, split = texts["organ"] and organ_of(texts["organ"]), texts["split"].lower()
    if texts["organ"] and not organ:
        raise DataError(f"row {index}: unknown organ; there is {', '.join(ORGANS)}, or a body part of one")
    if split and not _is_split(split):
        raise DataError(f"row {index}: unknown split; there is {', '.join(SPLITS)}")
    return IngestedQuestion(
        index, texts["image"], texts["question"], texts["answer"], organ or None, split if _is_split(split) else None
    )


def _is_split(name: str) -> TypeGuard[Split]:
    return name in SPLITS
