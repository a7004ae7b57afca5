"""A folder of PNG pictures with a table `rows.csv`: picture, organ, split, question, answer, patient."""

import csv
from pathlib import Path

from medfedvqa.data import Row, VQAData
from medfedvqa.errors import DataError

COLUMNS = ("picture", "organ", "split", "question", "answer", "patient")
SPLITS = ("train", "validate", "test")


def read(root: Path) -> VQAData:
    """All rows, each a closed question. Raises `DataError`, which names a row by its number and quotes nothing."""
    try:
        with (root / "rows.csv").open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        raise DataError("'rows.csv' is missing or cannot be read") from None
    rows = [_row(index, line, root) for index, line in enumerate(table)]
    organs = tuple(sorted({row.organ for row in rows}))
    return VQAData("png-folder", organs, rows, publishes_validation=True)


def _row(index: int, line: dict[str, str], root: Path) -> Row:
    texts = [(line.get(column) or "").strip() for column in COLUMNS]
    picture, organ, split, question, answer, patient = texts
    if not all(texts) or split not in SPLITS or Path(picture).name != picture:
        raise DataError(f"row {index}: a column is empty, or the split is none of {', '.join(SPLITS)}")
    return Row(index, organ, split, True, question, answer, patient, root / picture)
