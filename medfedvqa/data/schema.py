"""The result of every reader: a data set and its rows."""

import hmac
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from medfedvqa.bounds import MOST_SEED
from medfedvqa.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Row:
    """One question about one image. Its repr never shows the text, the patient or the path."""

    index: int
    """The position in the published files in order, from 0. Messages identify a row only by it."""
    organ: str
    split: str
    """`train`, `validate` or `test`, as published."""
    closed: bool
    question: str = field(repr=False)
    answer: str = field(repr=False)
    """Never empty where `closed`."""
    patient: str = field(repr=False)
    """The privacy unit: VQA-RAD's case, SLAKE's image, the phantom's patient."""
    image: Path = field(repr=False)
    """The picture's file, or the picture's name in a set that draws its pictures."""
    question_type: str = field(default="", repr=False)
    """What the question asks for, as published; empty where the set does not say."""
    modality: str = field(default="", repr=False)
    """How the picture was taken, as published; empty where the set does not say."""
    captioned: bool = False
    """Whether the row is a pair of picture and caption. Then question and answer both are the caption."""

    def __post_init__(self) -> None:
        if not self.patient.strip():
            raise DataError(f"row {self.index} names no patient: privacy is kept by patient, so every row needs one")


def load_file(row: Row, size: int) -> "torch.Tensor":
    """The row's picture from its file, as float32 [1, size, size] in 0..1. Raises `DataError`."""
    from medfedvqa.data.images import load_image  # with torch, which a check of tables does not need

    return load_image(row.image, size, row.index)


def load_coloured_file(row: Row, size: int) -> "torch.Tensor":
    """Like `load_file`, but [3, size, size] for a file that has colour."""
    from medfedvqa.data.images import load_image

    return load_image(row.image, size, row.index, colour=True)


@dataclass(frozen=True)
class VQAData:
    """A data set: rows in published order, organs in the order of its sites."""

    name: str
    organs: tuple[str, ...]
    rows: Sequence[Row] = field(repr=False)
    load: "Callable[[Row, int], torch.Tensor]" = field(default=load_file, repr=False)
    """A row's picture at a size in pixels, as float32 [1, size, size] in 0..1."""
    load_coloured: "Callable[[Row, int], torch.Tensor] | None" = field(default=None, repr=False)
    """Like `load`, but [3, size, size] for a picture that has colour. None: pictures have the colour of their files if
    `load` is the default, and else none."""
    publishes_validation: bool | frozenset[str] = False
    """Whether the set publishes validation rows, or for which organs. It is a fact about the set that no single
    patient's rows decide."""
    features: tuple[str, ...] = ()
    """The names of a table's features, in the order in which `load` gives them; none where rows are about pictures."""

    def validates(self, organ: str) -> bool:
        """Whether validation rows of this organ are published."""
        published = self.publishes_validation
        return published if isinstance(published, bool) else organ in published

    @property
    def coloured(self) -> "Callable[[Row, int], torch.Tensor]":
        """The function that loads a row's picture with its colour, if there is any."""
        return self.load_coloured or (load_coloured_file if self.load is load_file else self.load)


# The split of a site's rows into training, validation and test rows.

Part = Literal["train", "validate", "test"]
Questions = Literal["closed", "open", "all"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Split:
    """The rule that chooses rows and assigns them to parts.

    `official`: test rows as published; validation rows as published, or else the train patients whose `place`, a
    number in 0..1 derived from the patient's key, is below `validation`. `patient`: each patient's `place` chooses
    train, validation or test in proportion to `fractions`, so that no patient is in two parts.

    Shares hold on average: a patient's part depends only on the patient's key and the split, never on other patients.
    """

    kind: Literal["official", "patient"] = "official"
    seed: int = 0
    fractions: tuple[float, float, float] = (0.7, 0.15, 0.15)
    """Expected shares of the patients for train, validation and test; `patient` only."""
    validation: float = 0.15
    """Expected share of the train patients held out where the set publishes no validation rows; `official` only."""
    questions: Questions = "closed"
    """The kind of questions that the parts hold; a question without a published answer is never one of them."""

    def __post_init__(self) -> None:
        if self.kind not in ("official", "patient"):
            raise ConfigError("the split must be 'official' or 'patient'")
        if self.questions not in get_args(Questions):
            raise ConfigError("the questions must be 'closed', 'open' or 'all'")
        if not 0 <= self.seed <= MOST_SEED:
            raise ConfigError("the split's seed must be a whole number from 0 to 2^63 - 1")
        shares = len(self.fractions) == 3 and all(0 <= share <= 1 for share in self.fractions)
        if not shares or not math.isclose(sum(self.fractions), 1):
            raise ConfigError("the split's fractions must be three numbers from 0 to 1 that sum to 1")
        if not 0 <= self.validation < 1:
            raise ConfigError("the split's validation share must be at least 0 and below 1")

    def asks(self, row: Row) -> bool:
        """Whether the row's question is one of this kind; a caption always is."""
        return row.captioned or (bool(row.answer) and self.questions in ("all", "closed" if row.closed else "open"))

    def place(self, patient: str) -> float:
        """The patient's place in [0, 1): HMAC-SHA256 of the patient's key under a key made of the seed."""
        key = f"medfedvqa split {self.seed}".encode()
        digest = hmac.digest(key, patient.encode("utf-8", "surrogatepass"), "sha256")
        return int.from_bytes(digest[:6]) / 2**48


@dataclass(frozen=True)
class PartitionRows:
    """One organ's rows of the split's questions, each part in published order."""

    train: tuple[Row, ...] = field(repr=False)
    validate: tuple[Row, ...] = field(repr=False)
    test: tuple[Row, ...] = field(repr=False)


def partition(data: VQAData, organ: str, split: Split) -> PartitionRows:
    """The organ's rows of the split's questions, split. Validation and train never share a patient.

    With `official`, test rows may share patients and images with train (VQA-RAD: 202 of 203 images).
    With `patient`, no two parts share a patient over the whole set. The parts of one patient's rows depend only on
    these rows and the split, not on other patients, the order of rows or other organs.
    A validation or test part may be empty.

    Raises `DataError` for an unknown organ, an organ without such questions, or a site without train rows.
    """
    if organ not in data.organs:
        raise DataError(f"unknown organ; {data.name} has {', '.join(data.organs)}")
    asked = [row for row in data.rows if row.organ == organ and split.asks(row)]
    if not asked:
        kind = "" if split.questions == "all" else f"{split.questions} "
        raise DataError(f"the organ '{organ}' has no {kind}questions: check the data root and 'questions'")
    names = [part_of(row, split, data.validates(organ)) for row in asked]
    train, validate, test = (
        tuple(row for row, name in zip(asked, names, strict=True) if name == part) for part in PARTS
    )
    return PartitionRows(train, validate, test)


def part_of(row: Row, split: Split, publishes_validation: bool) -> str:
    """The part of a row of the split's questions."""
    place = split.place(row.patient)
    if split.kind == "patient":
        first, second, _ = split.fractions
        return PARTS[(place >= first) + (place >= first + second)]
    validates = row.split == "train" and not publishes_validation and place < split.validation
    return "validate" if validates else row.split
