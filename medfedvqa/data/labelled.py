"""Data that have no questions of their own: pictures in folders of classes, captions, and patients as rows of numbers.

Classes are those of DomainNet (X. Peng et al., ICCV 2019), or your own.

A site is a folder, a class a folder in it: `SITE/CLASS/FILE`. Every row has one question, and its answer is the class.
Where DomainNet's lists `SITE_train.txt` and `SITE_test.txt` lie beside the site's folder, they say the parts. Else a
quarter of the pictures, by the digest of site, class and file name, is for testing.

With a table `labels.csv` in the root, pictures have patients: its columns are `picture` (a path below the root),
`patient`, `site`, if need be `split`, and either `label` or one column for each finding with 1, 0 or nothing. A finding
is the question of its row, and the answer is yes or no.

`captions.csv` has the columns `picture`, `patient`, `site`, `caption`, such as the first sentence of a report, and if
need be `split`: pairs for retrieval. A row's question and its answer both are the caption, so equal captions have the
same answer.

`table.csv` has the columns `patient` and `site`, if need be `split`, a column for each feature, and either `label` or
one for each finding, for networks of a job's own. A feature's column states its range, as `age 18..95`. The range is
public: it scales values to 0..1, a value outside counts as the nearer end, and an empty one as the middle.
"""

import csv
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from audits.bounded_files import read_bounded
from medfedvqa.bounds import MOST_CHARACTERS, ORGAN_NAME, feature_range
from medfedvqa.data.published_files import MAX_ROWS
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError

if TYPE_CHECKING:
    import torch

QUESTION, PATIENT_QUESTION = "What does the picture show?", "Which label does the patient have?"
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"})
TESTED = 0.25
"""The expected share of pictures for testing, if no list names the parts."""
TABLE, CAPTIONS, FEATURES = "labels.csv", "captions.csv", "table.csv"
COLUMNS = ("picture", "patient", "site")
PARTS = ("train", "validate", "test")
ANSWER_OF = {"1": "yes", "0": "no"}


def read(root: Path) -> VQAData:
    """All pictures. The privacy unit is the patient of the table, or else the picture. Raises `DataError`."""
    if (root / TABLE).exists():
        return _read_table(root)
    folders = _folders(root)
    if not folders:
        raise DataError("the data root has no folder of a site: pictures are in SITE/CLASS/FILE")
    rows: list[Row] = []
    for folder in folders:
        if not re.fullmatch(ORGAN_NAME, folder.name):
            raise DataError(
                "a site's folder must be named by at most 32 lower-case letters, digits and hyphens: rename the others"
            )
        pictures = _pictures(folder)
        parts = _listed(folder, pictures)
        for name, picture in pictures.items():
            split = _part(name) if parts is None else parts.get(name)
            if split is not None:
                answer = picture.parent.name.replace("_", " ")
                rows.append(Row(len(rows), folder.name, split, True, QUESTION, answer, name, picture))
    return VQAData("image-classes", tuple(folder.name for folder in folders), rows)


def classes(root: Path) -> tuple[str, ...]:
    """The classes of all sites, as answers. Raises `DataError` as `read` does."""
    return tuple(sorted({row.answer.lower() for row in read(root).rows}))


def _read_table(root: Path) -> VQAData:
    """The rows of the table, in its order. Raises `DataError`, which gives a line's number and quotes nothing of it."""
    columns, lines = read_lines(root / TABLE)
    targets = [name for name in columns if name not in (*COLUMNS, "split")]
    if not {*COLUMNS} <= {*columns} or not targets:
        raise DataError(f"'{TABLE}' must have the columns {', '.join(COLUMNS)}, and 'label' or one for each finding")
    rows: list[Row] = []
    for number, line in enumerate(lines, 2):
        where = f"line {number} of '{TABLE}'"
        rows += labelled_rows(line, targets, where, len(rows), root / picture_path(line, where), QUESTION)
    return _data("image-classes", rows, f"'{TABLE}' labels no picture")


def read_captions(root: Path) -> VQAData:
    """All pairs, in the table's order. Raises `DataError`, which gives a line's number and quotes nothing of it."""
    columns, lines = read_lines(root / CAPTIONS)
    if not {*COLUMNS, "caption"} <= {*columns}:
        raise DataError(f"'{CAPTIONS}' must have the columns {', '.join(COLUMNS)} and caption")
    rows: list[Row] = []
    for number, line in enumerate(lines, 2):
        where, caption = f"line {number} of '{CAPTIONS}'", line["caption"].strip()
        if not 0 < len(caption) <= MOST_CHARACTERS:
            raise DataError(f"{where}: a caption must have 1 to {MOST_CHARACTERS} characters")
        image = root / picture_path(line, where)
        labelled = labelled_rows({**line, "label": caption}, ("label",), where, len(rows), image, caption)
        rows += (replace(row, captioned=True) for row in labelled)
    return _data("captions", rows, f"'{CAPTIONS}' has no pair")


def read_features(root: Path) -> VQAData:
    """The rows of a table of features. Raises `DataError` with the number of a line and nothing of it."""
    columns, lines = read_lines(root / FEATURES)
    features = {name: bounds for name in sorted(columns) if (bounds := feature_range(name))}
    targets = [name for name in columns if name not in ("patient", "site", "split", *features)]
    if not {"patient", "site"} <= {*columns} or not targets or not features:
        raise DataError(
            f"'{FEATURES}' must have the columns patient, site, features with their range as 'age 18..95', and 'label' "
            "or one for each finding"
        )
    rows: list[Row] = []
    vectors: dict[str, np.ndarray] = {}
    for number, line in enumerate(lines, 2):
        where = f"line {number} of '{FEATURES}'"
        vector = np.array([*_scaled(line, features, where)], dtype=np.float32)[:, None, None]
        name = hashlib.sha256(b"%d\n" % number + vector.tobytes()).hexdigest()
        vectors[name] = vector
        rows += labelled_rows(line, targets, where, len(rows), Path(name), PATIENT_QUESTION)
    data = _data("table", rows, f"'{FEATURES}' labels no patient")
    return replace(data, load=partial(_load, vectors), features=tuple(features))


def _data(name: str, rows: list[Row], empty: str) -> VQAData:
    """The rows of a table as a set. Raises `DataError` with the sentence `empty` if there are none."""
    if not rows:
        raise DataError(empty)
    sites = tuple(dict.fromkeys(row.organ for row in rows))
    return VQAData(name, sites, rows, publishes_validation=any(row.split == "validate" for row in rows))


def _load(vectors: Mapping[str, np.ndarray], row: Row, size: int) -> "torch.Tensor":
    """The row's features as a picture of one pixel, [features, 1, 1] in 0..1. Raises `DataError` for a larger one."""
    import torch  # which a check of tables does not need

    if size != 1:
        raise DataError("the rows of a table are not pictures: give the job a 'network' and its 'features'")
    return torch.from_numpy(vectors[row.image.name])


def _scaled(line: Mapping[str, str], features: Mapping[str, tuple[float, float]], where: str) -> Iterator[float]:
    for name, (low, high) in features.items():
        try:
            value = float(line[name]) if line[name].strip() else (low + high) / 2
        except ValueError:
            value = float("nan")
        if not abs(value) < float("inf"):
            raise DataError(f"{where}: a feature is a number or empty")
        yield (min(max(value, low), high) - low) / (high - low)


def picture_path(line: Mapping[str, str], where: str) -> Path:
    """The picture that a line names, relative to the root. Raises `DataError` for a path that leaves the root."""
    path = Path(line["picture"].strip())
    if not path.name or path.is_absolute() or ".." in path.parts:
        raise DataError(f"{where} names no picture below the root")
    return path


def read_lines(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns of a table and its lines by column. Raises `DataError`."""
    try:
        table = csv.DictReader(io.StringIO(read_bounded(path, MAX_ROWS).decode("utf-8-sig")), strict=True)
        columns, lines = list(table.fieldnames or []), list(table)
    except (OSError, ValueError, csv.Error):
        raise DataError(
            f"'{path.name}' cannot be read: it must be a table in UTF-8, with columns separated by commas"
        ) from None
    if len({*columns}) < len(columns) or "" in columns:
        raise DataError(f"'{path.name}' has a column without a name, or two columns with the same name")
    for number, line in enumerate(lines, 2):
        if None in line or None in line.values():
            raise DataError(f"line {number} of '{path.name}' and the first line have different numbers of columns")
    return columns, lines


def labelled_rows(
    line: Mapping[str, str], targets: Sequence[str], where: str, first: int, image: Path, question: str
) -> Iterator[Row]:
    """A row that asks `question` for the label, or one for each finding that the line gives. Raises `DataError`."""
    patient, site = line["patient"].strip(), line["site"].strip()
    # A patient's pictures are in one part, which depends on no other patient.
    split = line.get("split", "").strip() or _part(f"{site}/{patient}")
    if not patient:
        raise DataError(f"{where} names no patient")
    if not re.fullmatch(ORGAN_NAME, site) or split not in PARTS:
        raise DataError(
            f"{where}: a site has at most 32 lower-case letters, digits and hyphens; a split is {', '.join(PARTS)} "
            "or empty"
        )
    for target in targets:
        value = line[target].strip()
        if target != "label" and value not in ("", *ANSWER_OF):
            raise DataError(f"{where}: a finding must be 1, 0 or empty")
        if value:
            asked, answer = (question, value) if target == "label" else (target, ANSWER_OF[value])
            yield Row(first, site, split, True, asked, answer, f"{site}/{patient}", image)
            first += 1


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(site: Path) -> dict[str, Path]:
    """The site's pictures by SITE/CLASS/FILE. Raises `DataError` for a class without any."""
    found = {}
    for folder in _folders(site):
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
        if not files:
            raise DataError(f"a class of the site '{site.name}' has no picture: remove its folder, or fill it")
        found.update({f"{site.name}/{folder.name}/{path.name}": path for path in files})
    return found


def _listed(site: Path, pictures: dict[str, Path]) -> dict[str, str] | None:
    """The part of each listed picture; None without lists. Raises `DataError` for a list of other pictures."""
    files = {part: site.with_name(f"{site.name}_{part}.txt") for part in ("train", "test")}
    if not any(file.exists() for file in files.values()):
        return None
    parts: dict[str, str] = {}
    for part, file in files.items():
        for number, line in enumerate(_lines(file), 1):
            name = line.rpartition(" ")[0]
            if name not in pictures or name in parts:
                raise DataError(f"line {number} of '{file.name}' names no picture of the site, or one a second time")
            parts[name] = part
    return parts


def _lines(file: Path) -> list[str]:
    try:
        return read_bounded(file, MAX_ROWS).decode().splitlines()
    except (OSError, ValueError):
        raise DataError(f"'{file.name}' is missing or cannot be read: a site needs both of its lists") from None


def _part(name: str) -> str:
    """A picture's part, which depends on no other picture."""
    place = int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:6]) / 2**48
    return "test" if place < TESTED else "train"
