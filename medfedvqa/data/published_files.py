"""Readers of publishers' files, with errors that name no content."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from audits.bounded_files import read_bounded
from medfedvqa.errors import DataError

MAX_ROWS = 1 << 28
"""The largest file of rows, bytes."""
POINTER = b"version https://git-lfs"
"""The beginning of the text that Git LFS puts in a file's place until the file itself is fetched."""
ANSWER_TYPES = {"CLOSED": True, "OPEN": False}


def read_rows(path: Path) -> list[Any]:
    """The list in a JSON file. Raises `DataError` if it is missing, unreadable or no list."""
    content = read_published(path)
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError):
        raise DataError(f"'{path.name}' is not valid JSON: download it again") from None
    if not isinstance(rows, list):
        raise DataError(f"'{path.name}' holds no list of rows: download it again")
    return rows


def read_published(path: Path) -> bytes:
    """A published file. Raises `DataError` if it is missing, unreadable, too large, or only points to the real one."""
    if not path.is_file():
        raise DataError(f"'{path.name}' is missing: point --data-root at the published folder")
    try:
        content = read_bounded(path, MAX_ROWS)
    except OSError:
        raise DataError(f"'{path.name}' cannot be read: check its permissions and its size") from None
    if content.startswith(POINTER):
        raise DataError(f"'{path.name}' is Git LFS's pointer to the file: fetch the file with `git lfs pull`")
    return content


def folded(names: Mapping[str, str]) -> Mapping[str, str]:
    """The same mapping, for names in any case."""
    return {name.casefold(): value for name, value in names.items()}


def texts(row: Any, index: int, names: Mapping[str, str]) -> Iterator[str]:
    """The row's fields as stripped text, in the order of `names`, which maps our names to the published fields.

    Numbers count as text (VQA-RAD has five). Raises `DataError` with the row's index alone.
    """
    for ours, published in names.items():
        value = row.get(published) if isinstance(row, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not str(value).strip():
            raise DataError(f"row {index}: the {ours} is missing or empty")
        # A table that went through pandas has 2.0 where 2 was published.
        yield str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def is_closed(answer_type: str, index: int) -> bool:
    """Whether a published answer type means a closed question. Raises `DataError`."""
    answer_type = answer_type.upper()
    if answer_type not in ANSWER_TYPES:
        raise DataError(f"row {index}: the answer type is neither {' nor '.join(ANSWER_TYPES)}")
    return ANSWER_TYPES[answer_type]
