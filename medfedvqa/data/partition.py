"""Which rows a site trains on, validates on and is tested on."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import ConfigError, DataError


@dataclass(frozen=True)
class Split:
    """How rows are told apart. `official`: the published test rows; validation rows as published, or
    else `validation` of the train patients. `patient`: `fractions` of all patients, disjoint.
    """

    kind: Literal["official", "patient"] = "official"
    seed: int = 0
    fractions: tuple[float, float, float] = (0.7, 0.15, 0.15)
    """Shares of the patients for train, validation and test; `patient` only."""
    validation: float = 0.15
    """Share of the train patients held out where the set publishes no validation rows; `official` only."""

    def __post_init__(self) -> None:
        if self.kind not in ("official", "patient"):
            raise ConfigError("the split is 'official' or 'patient'")
        if len(self.fractions) != 3 or min(self.fractions) < 0 or not math.isclose(sum(self.fractions), 1):
            raise ConfigError("the split's fractions are three numbers from 0 to 1 that sum to 1")
        if not 0 <= self.validation < 1:
            raise ConfigError("the split's validation share is at least 0 and below 1")


@dataclass(frozen=True)
class SiteRows:
    """One organ's closed rows, each part in published order."""

    train: tuple[Row, ...] = field(repr=False)
    validate: tuple[Row, ...] = field(repr=False)
    test: tuple[Row, ...] = field(repr=False)


def partition(data: VQAData, organ: str, split: Split) -> SiteRows:
    """The organ's closed rows, split. Validation and train never share a patient.

    With `official`, test rows may share patients and images with train (VQA-RAD: 202 of 203 images).
    With `patient`, no two parts share a patient over the whole set. As long as no patient has rows of two
    organs, a site that holds only its own organ's rows arrives at the same parts as one that holds all.

    Raises `DataError` for an unknown organ, an organ without closed rows, or a site without train rows.
    """
    if organ not in data.organs:
        raise DataError(f"unknown organ; {data.name} has {', '.join(data.organs)}")
    closed = [row for row in data.rows if row.closed]
    if not any(row.organ == organ for row in closed):
        raise DataError(f"the organ '{organ}' has no closed questions: check the data root")
    parts = _by_patient(closed, split) if split.kind == "patient" else _official(closed, organ, split)
    rows = SiteRows(*(tuple(row for row in part if row.organ == organ) for part in parts))
    if not rows.train:
        raise DataError(f"the organ '{organ}' has no train rows under this split: choose other fractions")
    return rows


def _official(closed: list[Row], organ: str, split: Split) -> tuple[list[Row], ...]:
    train, validate, test = ([row for row in closed if row.split == part] for part in ("train", "validate", "test"))
    if not validate:
        patients = _shuffled({row.patient for row in train if row.organ == organ}, split.seed)
        held_out = set(patients[: round(split.validation * len(patients))])
        validate = [row for row in train if row.patient in held_out]
        train = [row for row in train if row.patient not in held_out]
    return train, validate, test


def _by_patient(closed: list[Row], split: Split) -> tuple[list[Row], ...]:
    # Stratified by organ: a patient with rows of several organs counts where it appears first.
    organs: dict[str, str] = {}
    for row in closed:
        organs.setdefault(row.patient, row.organ)
    part: dict[str, int] = {}
    for organ in dict.fromkeys(organs.values()):
        patients = _shuffled((patient for patient, first in organs.items() if first == organ), split.seed)
        first_test = len(patients) - round(split.fractions[2] * len(patients))
        first_validate = first_test - round(split.fractions[1] * len(patients))
        for position, patient in enumerate(patients):
            part[patient] = (position >= first_validate) + (position >= first_test)
    return tuple([row for row in closed if part[row.patient] == number] for number in range(3))


def _shuffled(patients: Iterable[str], seed: int) -> list[str]:
    """In the order of a seeded hash: the same on every machine, whatever the order of the rows."""
    return sorted(patients, key=lambda patient: hashlib.sha256(f"{seed}/{patient}".encode()).digest())
