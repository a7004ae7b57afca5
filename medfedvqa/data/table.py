"""Patients as rows of numbers, without pictures, for networks of a job's own.

`table.csv` in the root has the columns `patient` and `site`, if need be `split`, a column for each feature, and either
`label` or one column for each finding with 1, 0 or nothing. A feature's column states its range, as `age 18..95`. The
range is public: it scales values to 0..1, a value outside counts as the nearer end, and an empty one as the middle.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from medfedvqa.bounds import feature_range
from medfedvqa.data.image_classes import labelled_rows, read_lines
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError

if TYPE_CHECKING:
    import torch

QUESTION = "Which label does the patient have?"
TABLE = "table.csv"


def read(root: Path) -> VQAData:
    """All rows. Raises `DataError` with the number of a line and nothing of it."""
    columns, lines = read_lines(root / TABLE)
    features = {name: bounds for name in sorted(columns) if (bounds := feature_range(name))}
    targets = [name for name in columns if name not in ("patient", "site", "split", *features)]
    if not {"patient", "site"} <= {*columns} or not targets or not features:
        raise DataError(
            f"'{TABLE}' must have the columns patient, site, features with their range as 'age 18..95', and 'label' or "
            "one for each finding"
        )
    rows: list[Row] = []
    vectors: dict[str, np.ndarray] = {}
    for number, line in enumerate(lines, 2):
        vector = np.array([*_scaled(line, features, number)], dtype=np.float32)[:, None, None]
        name = hashlib.sha256(b"%d\n" % number + vector.tobytes()).hexdigest()
        vectors[name] = vector
        rows += labelled_rows(line, targets, f"line {number} of '{TABLE}'", len(rows), Path(name), QUESTION)
    if not rows:
        raise DataError(f"'{TABLE}' labels no patient")
    sites = tuple(dict.fromkeys(row.organ for row in rows))
    validates = any(row.split == "validate" for row in rows)
    return VQAData("table", sites, rows, partial(_load, vectors), None, validates, tuple(features))


def _load(vectors: Mapping[str, np.ndarray], row: Row, size: int) -> "torch.Tensor":
    """The row's features as a picture of one pixel, [features, 1, 1] in 0..1. Raises `DataError` for a larger one."""
    import torch  # which a check of tables does not need

    if size != 1:
        raise DataError("the rows of a table are not pictures: give the job a 'network' and its 'features'")
    return torch.from_numpy(vectors[row.image.name])


def _scaled(line: Mapping[str, str], features: Mapping[str, tuple[float, float]], number: int) -> Iterator[float]:
    for name, (low, high) in features.items():
        try:
            value = float(line[name]) if line[name].strip() else (low + high) / 2
        except ValueError:
            value = float("nan")
        if not abs(value) < float("inf"):
            raise DataError(f"line {number} of '{TABLE}': a feature is a number or empty")
        yield (min(max(value, low), high) - low) / (high - low)
