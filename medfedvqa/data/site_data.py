"""One site's data: its encoded questions, its pictures, and batches that keep a patient's rows together."""

import hashlib
import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch

from medfedvqa.data.pictures import Pictures, Source
from medfedvqa.data.schema import PARTS, Part, Row, Split, VQAData, partition
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.public_answers import answer_type, fold, public_list

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows in published order. The repr shows nothing of them."""

    questions: tuple[str, ...] = field(repr=False)
    """The questions as published."""
    answers: torch.Tensor = field(repr=False)
    """int64 [rows], indices into the site's answers; -1 for an answer outside of them."""
    pictures: torch.Tensor = field(repr=False)
    """int64 [rows], indices into the site's pictures."""
    patients: torch.Tensor = field(repr=False)
    """int64 [rows], 0 to patients - 1. All examples of a site use the same numbers."""

    closed: torch.Tensor | None = field(default=None, repr=False)
    """Whether each question is closed, bool [rows]; None where all are."""

    types: str = field(default="", repr=False)
    """The letter of each answer's type, see `ANSWER_TYPES`, also of answers outside of the list; empty if unknown."""

    modalities: tuple[str, ...] = field(default=(), repr=False)
    """How each row's picture was taken, as published; empty if unknown."""

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def are_closed(self) -> torch.Tensor:
        """Whether each question is closed, bool [rows]."""
        return torch.ones(len(self), dtype=torch.bool) if self.closed is None else self.closed

    @cached_property
    def answered(self) -> "Examples":
        """The rows whose answer is in the answer space, from which a model can learn."""
        return self.chosen((self.answers >= 0).nonzero().flatten())

    def chosen(self, rows: torch.Tensor) -> "Examples":
        """The selected rows; `rows` is int64 [rows]."""
        questions = tuple(self.questions[row] for row in rows.tolist())
        closed = None if self.closed is None else self.closed[rows]
        types = "".join(self.types[row] for row in rows.tolist()) if self.types else ""
        modalities = tuple(self.modalities[row] for row in rows.tolist()) if self.modalities else ()
        return Examples(
            questions, self.answers[rows], self.pictures[rows], self.patients[rows], closed, types, modalities
        )


@dataclass(frozen=True, eq=False)
class SiteData:
    """One site's data, ready for training."""

    name: str
    """The data set."""
    organ: str
    answers: tuple[str, ...] = field(repr=False)
    """The answer space: the site's declared list, or else the sorted folded answers of the train rows. A list from the
    rows never leaves the site."""
    train: Examples = field(repr=False)
    validate: Examples = field(repr=False)
    test: Examples = field(repr=False)
    pictures: Pictures = field(repr=False)
    trained_patients: frozenset[str] = field(repr=False)
    """The keys of all patients with train or validation rows, about whom a model can reveal something."""
    patients: tuple[str, ...] = field(repr=False)
    """The reader's key of each patient, by the patient's number in `Examples.patients`. Keys never leave."""
    public_answers: bool = False
    """Whether `answers` is a declared list, which no patient's rows can change."""
    features: tuple[str, ...] = ()
    """The names of the features of a table's rows; none where rows are about pictures."""
    captioned: bool = False
    """Whether the rows are pairs of picture and caption. Then `answers` are the distinct captions of the train rows."""

    @property
    def parts(self) -> tuple[Examples, Examples, Examples]:
        """The training, validation and test rows."""
        return self.train, self.validate, self.test

    @property
    def digest(self) -> str:
        """The SHA-256, in hex, of all that a job reads here: rows in order, answers, patients, picture files."""
        rows = [
            (part.questions, *(column.tolist() for column in (part.answers, part.pictures, part.patients)), part.types)
            for part in self.parts
        ]
        closed = [part.are_closed.tolist() for part in self.parts]
        facts = [self.name, self.organ, self.answers, self.patients, rows, closed, self.pictures.contents()]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @cached_property
    def patient_counts(self) -> dict[Part, int]:
        """The number of patients with rows in each part."""
        return {part: len(set(rows.patients.tolist())) for part, rows in zip(PARTS, self.parts, strict=True)}

    def only(self, part: Part, row: int) -> "SiteData":
        """A site that has this row alone, as a test row. Raises `DataError` for a row that does not exist."""
        rows: Examples = getattr(self, part)
        if not 0 <= row < len(rows):
            raise DataError(f"the site has {len(rows)} rows of the part '{part}', numbered from 0")
        single, none = rows.chosen(torch.tensor([row])), rows.chosen(torch.tensor([], dtype=torch.int64))
        pictures, patient = self.pictures.chosen([int(single.pictures)]), self.patients[int(single.patients)]
        first = torch.zeros_like(single.pictures)
        return replace(
            self,
            train=none,
            validate=none,
            test=replace(single, pictures=first, patients=first),
            pictures=pictures,
            trained_patients=frozenset(),
            patients=(patient,),
        )

    def view_seeds(self, seed: int) -> list[int]:
        """A seed in 0..2**32 - 1 for the augmented views of each picture; a picture without rows gets 0.

        It depends only on `seed`, the patient's key and the picture's index among the patient's pictures, so one
        patient more or less changes no other patient's views.
        """
        owners = torch.full((len(self.pictures),), -1)
        for part in self.parts:
            owners[part.pictures] = part.patients
        counts, seeds = [0] * len(self.patients), []
        for owner in owners.tolist():
            if owner < 0:
                seeds.append(0)
                continue
            key = json.dumps(["view", seed, self.patients[owner], counts[owner]])
            seeds.append(int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]))
            counts[owner] += 1
        return seeds


def build_site(data: VQAData, organ: str, split: Split, answers: tuple[str, ...] | None = None) -> SiteData:
    """Like `load_site`, from a data set in memory.

    With a public answer space, a site needs no train rows: whether it has any would reveal something about its
    patients. A site of captions has no public answer space.
    """
    rows = partition(data, organ, split)
    captioned = _are_captions((*rows.train, *rows.validate, *rows.test))
    answers = None if captioned else answers
    if answers is None and not rows.train:
        raise DataError(f"the organ '{organ}' has no train rows under this split: choose other fractions")
    space = answer_space(rows.train) if answers is None else _declared(answers)
    everything = (*rows.train, *rows.validate, *rows.test)
    # A picture that two patients share counts once for each of them, so that no patient's pictures depend on others.
    row_of = {(row.patient, row.image): row for row in everything}
    images = _numbers((row.patient, row.image) for row in everything)
    patients = _numbers(row.patient for row in everything)
    pictures = Pictures(Source(row_of[image], data.load, data.coloured) for image in images)
    places = _numbers(space)

    def encode(part: Sequence[Row]) -> Examples:
        return Examples(
            questions=tuple(row.question for row in part),
            answers=torch.tensor([places.get(fold(row.answer), -1) for row in part], dtype=torch.int64),
            pictures=torch.tensor([images[row.patient, row.image] for row in part], dtype=torch.int64),
            patients=torch.tensor([patients[row.patient] for row in part], dtype=torch.int64),
            closed=torch.tensor([row.closed for row in part], dtype=torch.bool),
            types="".join(answer_type(row.answer) for row in part),
            modalities=tuple(row.modality for row in part),
        )

    train, validate, test = (encode(part) for part in (rows.train, rows.validate, rows.test))
    trained = frozenset(row.patient for row in (*rows.train, *rows.validate))
    return SiteData(
        name=data.name,
        organ=organ,
        answers=space,
        train=train,
        validate=validate,
        test=test,
        pictures=pictures,
        trained_patients=trained,
        patients=tuple(patients),
        public_answers=answers is not None,
        features=data.features,
        captioned=captioned,
    )


def united(sites: Sequence[SiteData]) -> SiteData:
    """All sites' rows as one site, in order of the sites. No two sites share patients or pictures.

    A patient's key is the organ followed by the key at the site. The answer space is public if every site's is. Raises
    `DataError` for sites of captions beside others.
    """
    if len({site.captioned for site in sites}) > 1:
        raise DataError("pairs of picture and caption and questions are not trained on as one site")
    public = all(site.public_answers for site in sites)
    union = dict.fromkeys(answer for site in sites for answer in site.answers)
    answers = tuple(union) if public else tuple(sorted(union))
    firsts = [
        (sum(len(site.pictures) for site in sites[:n]), sum(len(site.patients) for site in sites[:n]))
        for n in range(len(sites))
    ]

    def joined(number: int) -> Examples:
        parts = [site.parts[number] for site in sites]
        return Examples(
            questions=tuple(question for part in parts for question in part.questions),
            answers=torch.cat(
                [numbered(site.answers, answers, part.answers) for site, part in zip(sites, parts, strict=True)]
            ),
            pictures=torch.cat([part.pictures + first[0] for part, first in zip(parts, firsts, strict=True)]),
            patients=torch.cat([part.patients + first[1] for part, first in zip(parts, firsts, strict=True)]),
            closed=torch.cat([part.are_closed for part in parts]),
            types="".join(part.types for part in parts),
            modalities=tuple(modality for part in parts for modality in part.modalities),
        )

    return SiteData(
        name=sites[0].name,
        organ="all",
        answers=answers,
        train=joined(0),
        validate=joined(1),
        test=joined(2),
        pictures=Pictures.joined([site.pictures for site in sites]),
        trained_patients=frozenset(f"{site.organ}/{key}" for site in sites for key in site.trained_patients),
        patients=tuple(f"{site.organ}/{key}" for site in sites for key in site.patients),
        public_answers=public,
        features=sites[0].features,
        captioned=sites[0].captioned,
    )


def answer_space(train: Sequence[Row]) -> tuple[str, ...]:
    """The sorted distinct folded answers. Raises `DataError` for fewer than two."""
    answers = tuple(sorted({fold(row.answer) for row in train}))
    if len(answers) < 2 and train[0].captioned:
        raise DataError("a site of captions needs at least two train pairs with different captions")
    if len(answers) < 2:
        raise DataError("all train rows have the same answer, so there is nothing to learn: check the split")
    return answers


def _are_captions(rows: Sequence[Row]) -> bool:
    """Whether all rows are captions. Raises `DataError` if some are."""
    kinds = {row.captioned for row in rows}
    if len(kinds) > 1:
        raise DataError("a site has either captions or questions: cut the sets by organ")
    return kinds == {True}


def _declared(answers: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return public_list(answers)
    except ValueError as error:
        raise DataError(f"the declared answers are no answer space: {error}") from None


def _numbers(keys: Iterable[Key]) -> dict[Key, int]:
    """The number of each distinct key, from 0, in order of first appearance."""
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}


def numbered(local: tuple[str, ...], common: tuple[str, ...], answers: torch.Tensor) -> torch.Tensor:
    """Answers, int64 [rows] into the list `local`, as indices into `common`; -1 stands for any other answer."""
    index = {answer: number for number, answer in enumerate(common)}
    table = torch.tensor([index.get(answer, -1) for answer in local] + [-1], dtype=torch.int64)
    return table[answers]


def batches(examples: Examples, rows: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """One epoch of row indices, each int64 [at most `rows`], every row exactly once.

    Patients come in random order, the rows of each in published order. A batch takes patients until the next patient
    would overfill it. A patient with more than `rows` rows is cut.
    Raises `ConfigError` if `rows` is not positive.
    """
    if rows < 1:
        raise ConfigError("a batch must have at least 1 row")
    order, counts = torch.argsort(examples.patients, stable=True), torch.bincount(examples.patients)
    patients = [its_rows for its_rows in torch.split(order, counts.tolist()) if len(its_rows)]
    batch: list[torch.Tensor] = []
    for number in torch.randperm(len(patients), generator=generator).tolist():
        for part in patients[number].split(rows):
            if sum(map(len, batch)) + len(part) > rows:
                yield torch.cat(batch)
                batch = []
            batch.append(part)
    if batch:
        yield torch.cat(batch)
