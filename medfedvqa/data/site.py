"""What one site holds: its closed questions, encoded, and its pictures."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import torch

from medfedvqa.data.answers import numbered
from medfedvqa.data.partition import Split, partition
from medfedvqa.data.pictures import Pictures
from medfedvqa.data.readers import read
from medfedvqa.data.schema import Row, VQAData, fold
from medfedvqa.errors import DataError

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows in published order. The repr shows nothing of them."""

    questions: tuple[str, ...] = field(repr=False)
    """As published."""
    answers: torch.Tensor = field(repr=False)
    """int64 [rows], indices into the site's answers; -1 for an answer outside of them."""
    pictures: torch.Tensor = field(repr=False)
    """int64 [rows], indices into the site's pictures."""
    patients: torch.Tensor = field(repr=False)
    """int64 [rows], 0 to patients - 1, the same numbers in all of a site's examples."""

    def __len__(self) -> int:
        return len(self.questions)

    def chosen(self, rows: torch.Tensor) -> "Examples":
        """These rows, int64 [rows]."""
        questions = tuple(self.questions[row] for row in rows.tolist())
        return Examples(questions, self.answers[rows], self.pictures[rows], self.patients[rows])


@dataclass(frozen=True, eq=False)
class SiteData:
    """One site's data, ready for training."""

    name: str
    """The data set."""
    organ: str
    answers: tuple[str, ...] = field(repr=False)
    """The answer space: the folded answers of the train rows, sorted. It never leaves the site."""
    train: Examples = field(repr=False)
    validate: Examples = field(repr=False)
    test: Examples = field(repr=False)
    pictures: Pictures = field(repr=False)
    trained_patients: frozenset[str] = field(repr=False)
    """The keys of all patients with train or validation rows: those whom a model can tell something about."""

    @property
    def parts(self) -> tuple[Examples, Examples, Examples]:
        """Rows to train on, to validate on, to test on."""
        return self.train, self.validate, self.test

    def only(self, part: Literal["train", "validate", "test"], row: int) -> "SiteData":
        """A site with this row for testing, and no other. Raises `DataError` if there is no such row."""
        rows: Examples = getattr(self, part)
        if not 0 <= row < len(rows):
            raise DataError(f"the site has {len(rows)} rows of the part '{part}', numbered from 0")
        one, none = rows.chosen(torch.tensor([row])), rows.chosen(torch.tensor([], dtype=torch.int64))
        pictures = self.pictures.only(int(one.pictures))
        one = replace(one, pictures=torch.zeros_like(one.pictures))
        return replace(self, train=none, validate=none, test=one, pictures=pictures, trained_patients=frozenset())


def load_site(reader: str, root: Path | None, organ: str, split: Split, seed: int = 0) -> SiteData:
    """One organ of a data set as a site; `seed` draws the phantom set.

    Raises `DataError` as `read`, `partition` and `answer_space` do; pictures are decoded later.
    """
    return build_site(read(reader, root, organ, seed), organ, split)


def build_site(data: VQAData, organ: str, split: Split) -> SiteData:
    """As `load_site`, of a data set that is already read."""
    rows = partition(data, organ, split)
    answers = answer_space(rows.train)
    everything = (*rows.train, *rows.validate, *rows.test)
    shown = {row.image: row for row in everything}
    images, patients = _numbers(row.image for row in everything), _numbers(row.patient for row in everything)
    pictures = Pictures([(shown[image], data.load) for image in images])
    known = _numbers(answers)

    def encode(part: Sequence[Row]) -> Examples:
        return Examples(
            questions=tuple(row.question for row in part),
            answers=torch.tensor([known.get(fold(row.answer), -1) for row in part], dtype=torch.int64),
            pictures=torch.tensor([images[row.image] for row in part], dtype=torch.int64),
            patients=torch.tensor([patients[row.patient] for row in part], dtype=torch.int64),
        )

    train, validate, test = (encode(part) for part in (rows.train, rows.validate, rows.test))
    trained = frozenset(row.patient for row in (*rows.train, *rows.validate))
    return SiteData(data.name, organ, answers, train, validate, test, pictures, trained)


def united(sites: Sequence[SiteData]) -> SiteData:
    """All sites' rows in order of the sites, as if one had them; each site's patients and pictures are its own."""
    answers = tuple(sorted({answer for site in sites for answer in site.answers}))
    patients = [1 + max(int(part.patients.max()) for part in site.parts if len(part)) for site in sites]
    firsts = [(sum(len(site.pictures) for site in sites[:n]), sum(patients[:n])) for n in range(len(sites))]

    def joined(number: int) -> Examples:
        parts = [site.parts[number] for site in sites]
        return Examples(
            questions=tuple(question for part in parts for question in part.questions),
            answers=torch.cat(
                [numbered(site.answers, answers, part.answers) for site, part in zip(sites, parts, strict=True)]
            ),
            pictures=torch.cat([part.pictures + first[0] for part, first in zip(parts, firsts, strict=True)]),
            patients=torch.cat([part.patients + first[1] for part, first in zip(parts, firsts, strict=True)]),
        )

    pictures = Pictures.joined([site.pictures for site in sites])
    trained = frozenset().union(*(site.trained_patients for site in sites))
    return SiteData(sites[0].name, "all", answers, joined(0), joined(1), joined(2), pictures, trained)


def answer_space(train: Sequence[Row]) -> tuple[str, ...]:
    """The distinct folded answers, sorted. Raises `DataError` if there are fewer than two."""
    answers = tuple(sorted({fold(row.answer) for row in train}))
    if len(answers) < 2:
        raise DataError("all train rows have the same answer, so there is nothing to learn: check the split")
    return answers


def _numbers(keys: Iterable[Key]) -> dict[Key, int]:
    """Each distinct key's number, from 0, by first appearance."""
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}
