"""Canaries: random synthetic patients that are added to a site's training data."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from medfedvqa.data import Examples, Pictures, Row, SiteData, Source
from medfedvqa.errors import ConfigError

CELLS = 16
"""The grey squares along each side of a canary's picture."""
WORDS, LETTERS = 4, 5
"""The words of a canary's question, and the letters of each."""


@dataclass(frozen=True, eq=False)
class Canaries:
    """Synthetic patients of one site. Each has one picture, one question in several equal rows, and a random answer.

    They resemble no other patient, so a model can only memorise them, and reveals them more than others. All rows of a
    canary have the same gradient, so an audit catches a mechanism that bounds rows instead of patients.
    """

    examples: Examples
    """Patients and pictures are numbered from 0, row by row in order of the patients."""
    pictures: Pictures
    inserted: torch.Tensor
    """Whether each canary is in training, independently with probability 1/2, bool [patients]."""

    def __len__(self) -> int:
        return len(self.inserted)

    def rows(self, patient: int) -> torch.Tensor:
        """The places of a patient's rows in `examples`, int64 [rows]."""
        return torch.where(self.examples.patients == patient)[0]


def draw(count: int, rows: int, answers: int, seed: tuple[int, str]) -> Canaries:
    """Draws `count` patients of `rows` rows each, with answers from an answer space of this size.

    `seed`: a number and the name of the site. Raises `ConfigError` for fewer than two patients, or no rows.
    """
    if count < 2 or rows < 1:
        raise ConfigError("an audit needs at least 2 canaries at each site, of at least 1 row each")
    number, name = seed
    generator = np.random.default_rng([number, *name.encode(), count, rows])
    patients = np.repeat(np.arange(count), rows)
    letters = generator.integers(ord("a"), ord("z") + 1, (count, WORDS, LETTERS)).astype(np.uint8)
    questions = [" ".join(word.tobytes().decode() for word in question) for question in letters]
    examples = Examples(
        questions=tuple(questions[patient] for patient in patients),
        answers=torch.from_numpy(generator.integers(0, answers, count)[patients]),
        pictures=torch.from_numpy(patients),
        patients=torch.from_numpy(patients),
    )
    seeds = generator.integers(2**31, size=count).tolist()
    shown = (
        Row(index, name, "train", True, "", "-", f"canary-{index}", Path(str(picture)))
        for index, picture in enumerate(seeds)
    )
    pictures = Pictures(Source(row, _pattern, _pattern) for row in shown)
    return Canaries(examples, pictures, torch.from_numpy(generator.random(count) < 0.5))


def _pattern(row: Row, size: int) -> torch.Tensor:
    """The picture of a canary. The row's image name is its seed."""
    cells = torch.rand(1, 1, CELLS, CELLS, generator=torch.Generator().manual_seed(int(row.image.name)))
    return F.interpolate(cells, size=(size, size))[0]


def with_canaries(data: SiteData, canaries: Canaries, present: torch.Tensor) -> SiteData:
    """A site's data with the training rows of the `present` canaries, bool [patients].

    Pictures, answer space, validation and test rows do not depend on which canaries are present.
    """
    more = canaries.examples.chosen(torch.where(present[canaries.examples.patients])[0])
    train = Examples(
        questions=data.train.questions + more.questions,
        answers=torch.cat([data.train.answers, more.answers]),
        pictures=torch.cat([data.train.pictures, more.pictures + len(data.pictures)]),
        patients=torch.cat([data.train.patients, more.patients + len(data.patients)]),
    )
    keys = tuple(f"canary-{patient}" for patient in range(len(canaries)))
    inserted = {keys[patient] for patient in torch.where(present)[0].tolist()}
    return replace(
        data,
        train=train,
        pictures=Pictures.joined([data.pictures, canaries.pictures]),
        trained_patients=data.trained_patients | inserted,
        patients=data.patients + keys,
    )


def with_all_canaries(data: SiteData, canaries: Canaries) -> tuple[SiteData, Examples]:
    """A site's data with all canaries, for the auditor, and the canaries' rows with their numbers there."""
    data_with_all = with_canaries(data, canaries, torch.ones(len(canaries), dtype=torch.bool))
    last = torch.arange(len(data.train), len(data_with_all.train))
    return data_with_all, data_with_all.train.chosen(last)
