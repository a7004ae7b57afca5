"""Canaries: whole synthetic patients of which nothing exists but what is drawn here, put into a site's training."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from medfedvqa.data import Examples, Pictures, Row, SiteData
from medfedvqa.errors import ConfigError

CELLS = 16
"""A canary's picture is a pattern of so many times so many grey squares."""
WORDS, LETTERS = 4, 5
"""A canary's question has so many words of so many letters."""


@dataclass(frozen=True, eq=False)
class Canaries:
    """Synthetic patients of one site; each has one picture and one question, asked many times, answered at random.

    They are unlike any other patients and cannot be learnt but by heart, so that a trained model shows them most; and
    their rows pull the same way, so that a mechanism that bounds rows instead of patients shows it.
    """

    examples: Examples
    """Patients and pictures are numbered from 0, row by row in order of the patients."""
    pictures: Pictures
    inserted: torch.Tensor
    """bool [patients]: who is trained with, each with probability 1/2, independently."""

    def __len__(self) -> int:
        return len(self.inserted)

    def rows(self, patient: int) -> torch.Tensor:
        """The places of a patient's rows in `examples`, int64 [rows]."""
        return torch.where(self.examples.patients == patient)[0]


def draw(count: int, rows: int, answers: int, seed: tuple[int, str]) -> Canaries:
    """`count` patients of `rows` rows each, with answers from an answer space of this size.

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
    sources = [
        (Row(index, name, "train", True, "", "-", f"canary-{index}", Path(str(s))), _pattern)
        for index, s in enumerate(seeds)
    ]
    return Canaries(examples, Pictures(sources), torch.from_numpy(generator.random(count) < 0.5))


def _pattern(row: Row, size: int) -> torch.Tensor:
    cells = torch.rand(1, 1, CELLS, CELLS, generator=torch.Generator().manual_seed(int(row.image.name)))
    return F.interpolate(cells, size=(size, size))[0]


def planted(data: SiteData, canaries: Canaries, chosen: torch.Tensor) -> SiteData:
    """A site's data with the rows of the `chosen` patients, bool [patients], among those to train on.

    Pictures, answer space, validation and test rows do not depend on who is chosen.
    """
    more = canaries.examples.chosen(torch.where(chosen[canaries.examples.patients])[0])
    train = Examples(
        questions=data.train.questions + more.questions,
        answers=torch.cat([data.train.answers, more.answers]),
        pictures=torch.cat([data.train.pictures, more.pictures + len(data.pictures)]),
        patients=torch.cat([data.train.patients, more.patients + len(data.patients)]),
    )
    keys = tuple(f"canary-{patient}" for patient in range(len(canaries)))
    inserted = {keys[patient] for patient in torch.where(chosen)[0].tolist()}
    return replace(
        data,
        train=train,
        pictures=Pictures.joined([data.pictures, canaries.pictures]),
        trained_patients=data.trained_patients | inserted,
        patients=data.patients + keys,
    )


def everybody(data: SiteData, canaries: Canaries) -> tuple[SiteData, Examples]:
    """A site with all canaries, for an auditor to look at, and the canaries' rows as they are numbered there."""
    data_with_all = planted(data, canaries, torch.ones(len(canaries), dtype=torch.bool))
    last = torch.arange(len(data.train), len(data_with_all.train))
    return data_with_all, data_with_all.train.chosen(last)
