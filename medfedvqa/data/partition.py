"""The split of a site's rows into training, validation and test rows."""

import hmac
import math
from dataclasses import dataclass, field
from typing import Literal, TypeGuard, get_args

from medfedvqa.bounds import MOST_SEED
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import ConfigError, DataError

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


def is_part(name: str) -> TypeGuard[Part]:
    """Whether this is the name of a part."""
    return name in PARTS


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
