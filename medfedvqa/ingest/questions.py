"""The file of questions: CSV with a header line, or JSON Lines."""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeGuard, get_args

from audits.bounded_files import read_bounded
from medfedvqa.errors import DataError
from medfedvqa.ingest.organs import ORGANS, organ_of

Split = Literal["train", "validate", "test"]
REQUIRED = ("image", "question", "answer")
OPTIONAL = ("organ", "split")
SPLITS: tuple[Split, ...] = get_args(Split)
LONGEST = 4096
"""Most letters of a field."""
MAX_QUESTIONS = 1 << 28
"""Bytes of the file."""
_UNPAIRED = re.compile("[\ud800-\udfff]")
"""Halves of a character, which JSON can hold and no file."""


@dataclass(frozen=True)
class IngestedQuestion:
    """One row. Its repr shows nothing of it but its index."""

    index: int
    """From 0, the header line of a CSV file not counted."""
    image: str = field(repr=False)
    """File name, path within the folder, SOP instance UID or accession number."""
    question: str = field(repr=False)
    answer: str = field(repr=False)
    organ: str | None
    split: Split | None


def read_questions(path: Path) -> list[IngestedQuestion]:
    """All rows, in order: `.jsonl` and `.ndjson` as JSON Lines, all else as CSV. Raises `DataError`."""
    try:
        text = read_bounded(path, MAX_QUESTIONS).decode("utf-8-sig")
    except OSError:
        raise DataError("the questions file cannot be read: check --questions and its permissions") from None
    except UnicodeDecodeError:
        raise DataError("the questions file is not UTF-8: save it as UTF-8") from None
    raw = _json_lines(text) if path.suffix.lower() in (".jsonl", ".ndjson") else _csv(text)
    questions = [_question(index, row) for index, row in enumerate(raw)]
    if not questions:
        raise DataError("the questions file has no rows: give it one for each question")
    return questions


def _json_lines(text: str) -> Iterator[Mapping[str, object]]:
    for index, line in enumerate(line for line in text.splitlines() if line.strip()):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"row {index} is not valid JSON: give one object a line") from None
        if not isinstance(row, dict):
            raise DataError(f"row {index} is no JSON object: give one object a line")
        yield row


def _csv(text: str) -> Iterator[Mapping[str, object]]:
    reader = csv.DictReader(text.splitlines(keepends=True), strict=True)
    try:
        if set(REQUIRED) - set(reader.fieldnames or ()):
            raise DataError(f"the questions file lacks a column: it needs {', '.join(REQUIRED)} in its first line")
        for index, row in enumerate(reader):
            if None in row or None in row.values():
                raise DataError(f"row {index} has more or fewer fields than the first line: quote texts with commas")
            yield row
    except csv.Error:
        raise DataError("the questions file is no valid CSV: check its quotes") from None


def _question(index: int, row: Mapping[str, object]) -> IngestedQuestion:
    if set(row) - {*REQUIRED, *OPTIONAL}:
        raise DataError(f"row {index} has an unknown field; there is {', '.join((*REQUIRED, *OPTIONAL))}")
    texts = {}
    for name in (*REQUIRED, *OPTIONAL):
        value = row.get(name)
        # A number is as good as its text for answers such as counts; true and false are not.
        if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
            raise DataError(f"row {index}: the field '{name}' is not text")
        texts[name] = "" if value is None else str(value).strip()
        if name in REQUIRED and not texts[name]:
            raise DataError(f"row {index}: the field '{name}' is missing or empty")
        if _UNPAIRED.search(texts[name]):
            raise DataError(f"row {index}: the field '{name}' is no Unicode text: save the file as UTF-8")
        if len(texts[name]) > LONGEST:
            raise DataError(f"row {index}: the field '{name}' is longer than {LONGEST} letters")
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
