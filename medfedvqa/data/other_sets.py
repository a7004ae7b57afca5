"""Public sets of questions about pictures that are not cut by organ, in the forms in which most people have them.

PathVQA (He et al., 2020) as its authors' pickles, VQA-Med 2019 (Ben Abacha et al., CLEF 2019), VQA v2 on COCO (Y. Goyal
et al., CVPR 2017), and any set whose parquet files hold pictures beside questions and answers, as on the Hugging Face
Hub. The picture is the privacy unit. A set that names no organs is one site.
"""

import hashlib
import io
import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medfedvqa.data.published_files import read_published, texts
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError

if TYPE_CHECKING:
    import torch

PATH_FILES = {"train": "train", "validate": "val", "test": "test"}
MED_FILES = {
    "train": ("*/All_QA_Pairs_train.txt", "*rain_images"),
    "validate": ("*/All_QA_Pairs_val.txt", "*al_images"),
    "test": ("*/*Test_Questions_w_Ref_Answers.txt", "*est_[iI]mages"),
}
"""For each part, the file of rows and the folder of pictures beside it."""
MED_ORGANS = {
    "breast": "breast",
    "face, sinuses, and neck": "neck",
    "gastrointestinal": "abdomen",
    "genitourinary": "pelvis",
    "heart and great vessels": "heart",
    "lung, mediastinum, pleura": "lung",
    "musculoskeletal": "bones",
    "skull and contents": "brain",
    "spine and contents": "spine",
    "vascular and lymphatic": "vessels",
}
"""VQA-Med asks for the organ of each picture: the answer says at which site the picture is."""
COCO_PARTS = {"train": "train2014", "test": "val2014"}
FEW = 16
"""The rows of a parquet file that are in memory at a time."""
IN_PIECES = {"buffer_size": 1 << 16, "pre_buffer": False}
"""Options to read a file in pieces. By default a row group is read whole, and pandas writes a single one."""
COLUMNS = ("image", "question", "answer")


def read_path_vqa(root: Path) -> VQAData:
    """PathVQA: lists in pickles, `qas/train/train_qa.pkl`, and pictures in `images/train`. Raises `DataError`."""
    rows: list[Row] = []
    for split, part in PATH_FILES.items():
        path = root / "qas" / part / f"{part}_qa.pkl"
        if not path.is_file() and split != "train":
            continue
        for raw in _unpickled(path):
            question, answer, name = texts(raw, len(rows), {each: each for each in ("question", "answer", "image")})
            picture = root / "images" / part / f"{name.removesuffix('.jpg')}.jpg"
            rows.append(_row(len(rows), "pathology", split, question, answer, name, picture))
    return VQAData("path-vqa", ("pathology",), rows, publishes_validation=True)


def read_vqa_med(root: Path) -> VQAData:
    """VQA-Med 2019: lines `picture|question|answer`; test rows have a category in between. Raises `DataError`."""
    rows: list[Row] = []
    for split, (pattern, folder) in MED_FILES.items():
        for path in sorted(root.glob(pattern)):
            pictures = next(iter(sorted(path.parent.glob(folder))), path.parent)
            rows += _med_rows(path, pictures, split, len(rows))
    organ_of = {row.patient: MED_ORGANS[row.answer.lower()] for row in rows if row.answer.lower() in MED_ORGANS}
    rows = [replace(row, organ=organ_of.get(row.patient, "others")) for row in rows]
    organs = tuple(sorted({row.organ for row in rows}))
    return VQAData("vqa-med", organs, rows, publishes_validation=True)


def read_coco_vqa(root: Path) -> VQAData:
    """VQA v2: a file of questions and a file of answers per part; the published validation rows are for testing."""
    rows: list[Row] = []
    for split, part in COCO_PARTS.items():
        asked = root / f"v2_OpenEnded_mscoco_{part}_questions.json"
        if not asked.is_file() and split != "train":
            continue
        answers = {each.get("question_id"): each for each in _listed(root / f"v2_mscoco_{part}_annotations.json")}
        folder = next((place for place in (root / part, root / "images" / part) if place.is_dir()), root / part)
        for raw in _listed(asked, "questions"):
            answer = answers.get(raw.get("question_id"), {})
            fields = {"question": "question", "picture": "image_id", "answer": "multiple_choice_answer"}
            question, picture, word = texts({**answer, **raw}, len(rows), fields)
            name = f"COCO_{part}_{picture:0>12}.jpg"
            rows.append(_row(len(rows), "pictures", split, question, word, name, folder / name))
    return VQAData("coco-vqa", ("pictures",), rows)


def read_parquet(root: Path) -> VQAData:
    """The rows of a folder's parquet files, in parts by the files' names. Pictures stay in the files.

    Rows are read a few at a time: a file may be larger than the memory. Equal pictures are one. Raises `DataError`.
    """
    rows: list[Row] = []
    places: dict[str, tuple[Path, int]] = {}
    for path in parquet_files(root):
        split = next((split for split in ("train", "validate", "test") if path.name.startswith(split[:5])), "train")
        for place, raw in enumerate(_parquet_rows(path)):
            picture = (raw["image"] or {}).get("bytes") if isinstance(raw["image"], dict) else None
            if not picture:
                raise DataError(f"row {len(rows)}: the column 'image' holds no picture's bytes")
            key = hashlib.sha256(picture).hexdigest()
            places.setdefault(key, (path, place))
            question, answer = texts(raw, len(rows), {"question": "question", "answer": "answer"})
            rows.append(_row(len(rows), "pictures", split, question, answer, key, Path(key)))
    load = partial(_load, places, False), partial(_load, places, True)
    return VQAData("parquet", ("pictures",), rows, *load, publishes_validation=any(r.split == "validate" for r in rows))


def parquet_files(root: Path) -> list[Path]:
    """The parquet files of a folder or of its folder `data`."""
    return sorted([*root.glob("*.parquet"), *root.glob("data/*.parquet")])


def _row(index: int, organ: str, split: str, question: str, answer: str, patient: str, picture: Path) -> Row:
    closed = answer.lower() in ("yes", "no")
    return Row(index, organ, split, closed, question, answer, patient, picture)


def _med_rows(path: Path, pictures: Path, split: str, first: int) -> Iterator[Row]:
    lines = read_published(path).decode("utf-8", errors="replace").splitlines()
    for index, line in enumerate(filter(str.strip, lines), start=first):
        fields = [field.strip() for field in line.split("|")]
        if len(fields) not in (3, 4) or not all(fields):
            raise DataError(f"row {index}: a line must be picture|question|answer: repair the file")
        name, question, answer = fields[0], fields[-2], fields[-1].split("#")[0]  # `#` stands between right answers
        yield _row(index, "others", split, question, answer, name, pictures / f"{name}.jpg")


class _Plain(pickle.Unpickler):
    """Makes lists, dictionaries, texts and numbers, and no object of any class."""

    def find_class(self, module: str, name: str) -> Any:
        raise DataError("a pickle names a class, which could run code: only lists of texts are read")


def _unpickled(path: Path) -> list[Any]:
    try:
        rows = _Plain(io.BytesIO(read_published(path))).load()
    except DataError:
        raise
    except Exception:  # whatever broken pickles raise
        raise DataError(f"'{path.name}' is not a list of rows: download it again") from None
    if not isinstance(rows, list):
        raise DataError(f"'{path.name}' is not a list of rows: download it again")
    return rows


def _listed(path: Path, name: str = "annotations") -> list[Mapping[str, Any]]:
    try:
        rows = json.loads(read_published(path))[name]
        return [row for row in rows if isinstance(row, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"'{path.name}' holds no list '{name}': download it again") from None


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path, **IN_PIECES) as file:
            if missing := [name for name in COLUMNS if name not in file.schema_arrow.names]:
                raise DataError(f"'{path.name}' lacks the columns {', '.join(missing)}")
            for batch in file.iter_batches(FEW, columns=list(COLUMNS)):
                yield from batch.to_pylist()
    except (ArrowException, OSError, EOFError):
        raise DataError(f"'{path.name}' is not a whole parquet file: download it again") from None


class _ParquetPictures:
    """The pictures of a file by their rows, a few in memory at a time: they are mostly read in order."""

    def __init__(self, path: Path) -> None:
        self._path, self._first = path, 0
        self._pictures: list[Any] = []
        self._batches: Iterator[Any] = iter(())

    def bytes_of(self, place: int) -> bytes:
        """The bytes of a row's picture. For a row before those in memory, the file is read again from its start."""
        from pyarrow.parquet import ParquetFile

        if not self._pictures or place < self._first:
            self._batches = ParquetFile(self._path, **IN_PIECES).iter_batches(FEW, columns=["image"])
            self._first, self._pictures = 0, []
        while place >= self._first + len(self._pictures):
            self._first += len(self._pictures)
            self._pictures = next(self._batches).column("image").to_pylist()
        return bytes(self._pictures[place - self._first]["bytes"])


_opened = lru_cache(maxsize=8)(_ParquetPictures)


def _load(places: Mapping[str, tuple[Path, int]], colour: bool, row: Row, size: int) -> "torch.Tensor":
    from medfedvqa.data.images import load_image

    path, place = places[row.patient]
    return load_image(io.BytesIO(_opened(path).bytes_of(place)), size, row.index, colour)
