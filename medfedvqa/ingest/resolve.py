"""Resolves questions, which name images, into rows of the store, and compares a hospital's other facts about patients:
from the table of questions, and from a file of persons. Nothing but their keyed digests is written anywhere.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Self

from audits.bounded_files import open_plain
from medfedvqa.errors import DataError
from medfedvqa.ingest.identifier_search import identifiers_in, without
from medfedvqa.ingest.pseudonyms import NumberSpellings, Pseudonyms, plain_number
from medfedvqa.ingest.questions import PATIENT_COLUMNS, IngestedQuestion, contradictions, name_of_image, topic
from medfedvqa.ingest.refusal_reasons import RowReason
from medfedvqa.ingest.store import Image, Record, Split, StoredRow
from medfedvqa.ingest.tables import opened_table

FILE = "file of patients"
Facts = Mapping[str, Sequence[str]]
"""The texts of each of the columns `PATIENT_COLUMNS` that has any."""


@dataclass(frozen=True)
class PatientSources:
    """All facts about patients. The repr shows none of them."""

    facts: Mapping[str, Facts] = field(default_factory=dict, repr=False)
    """The table's facts, by the keyed digest of the name that it uses for the image."""
    persons: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    """The numbers of each person who has several, without case and white space; the first one stands for the person."""
    withdrawn: frozenset[str] = field(default=frozenset(), repr=False)
    """The pseudonyms of patients who were withdrawn."""

    def about(self, names: Iterable[str]) -> Facts:
        """The table's facts about an image with these keyed names."""
        texts: dict[str, set[str]] = {}
        for name in names:
            for column, values in self.facts.get(name, {}).items():
                texts.setdefault(column, set()).update(values)
        return {column: sorted(texts[column]) for column in PATIENT_COLUMNS if column in texts}

    def numbers(self, number: str) -> tuple[str, ...]:
        """All numbers of the person who has this one."""
        return self._by_number.get(plain_number(number), (plain_number(number),))

    def as_json(self) -> dict[str, Any]:
        """The sources as JSON, which a worker process reads."""
        return {"facts": self.facts, "persons": self.persons, "withdrawn": sorted(self.withdrawn)}

    @classmethod
    def from_json(cls, sources: Mapping[str, Any]) -> Self:
        """The sources that `as_json` wrote."""
        return cls(sources["facts"], tuple(map(tuple, sources["persons"])), frozenset(sources["withdrawn"]))

    @cached_property
    def _by_number(self) -> dict[str, tuple[str, ...]]:
        return {number: numbers for numbers in self.persons for number in numbers}


NOTHING_SAID = PatientSources()


class SourceDigests:
    """Keyed digests of the facts about each image, by which an ingestion notices that they have changed."""

    def __init__(self, sources: PatientSources, keys: Pseudonyms) -> None:
        self._sources, self._keys = sources, keys
        self._persons = {keys.patient(number): numbers for numbers in sources.persons for number in numbers}

    def about(self, names: Iterable[str], number: str) -> str:
        """The digest of the facts about an image with these keyed names; empty without facts. `number`: the pseudonym
        of its patient's own number, empty if there is none."""
        facts, numbers = self._sources.about(names), self._persons.get(number, ())
        withdrawn = number in self._sources.withdrawn
        text = json.dumps([facts, numbers, withdrawn])
        return self._keys.digest("sources", text) if facts or numbers or withdrawn else ""


def table_facts(questions: Iterable[IngestedQuestion], keys: Pseudonyms) -> dict[str, dict[str, list[str]]]:
    """The table's facts about patients, by the keyed digest of the name that it uses for the image."""
    facts: dict[str, dict[str, list[str]]] = {}
    for question in questions:
        for column, text in question.patient_facts:
            texts = facts.setdefault(keys.digest("name", question.image), {}).setdefault(column, [])
            if text not in texts:
                texts.append(text)
    return facts


def read_persons(path: Path) -> tuple[tuple[str, ...], ...]:
    """The numbers of each person who has several, in the order of a file with the columns `patient` and `person`.

    Raises `DataError` if a number belongs to two persons; no error quotes the file.
    """
    numbers, persons, spellings = dict[str, list[str]](), dict[str, str](), NumberSpellings()
    try:
        with open_plain(path) as file, opened_table(file, ("patient", "person"), FILE) as (rows, _):
            for index, row in enumerate(rows):
                number, person = (plain_number(row[name]) for name in ("patient", "person"))
                if not number or not person:
                    raise DataError(f"{FILE}, row {index}: a field is empty; each row has a patient and a person")
                if persons.setdefault(number, person) != person:
                    raise DataError(f"{FILE}, row {index}: this patient belongs to another person in a row above")
                if fault := spellings.fault(row["patient"], person) or NumberSpellings().fault(row["person"]):
                    raise DataError(f"{FILE}, row {index}: a number {fault}")
                if number not in numbers.setdefault(person, []):
                    numbers[person].append(number)
    except OSError:
        raise DataError(f"the {FILE} cannot be read: check --patients and its permissions") from None
    return tuple(tuple(same) for same in numbers.values() if len(same) > 1)


PARTS: tuple[tuple[Split, float], ...] = (("train", 0.70), ("validate", 0.15), ("test", 0.15))
"""Shares of the parts among patients whose questions name no split. A patient's keyed digest chooses the part, so it
stays when other patients come."""


@dataclass(frozen=True)
class ImageNames:
    """The names that questions use for images."""

    names: frozenset[str]
    """The names as in the questions file, to compare with file names and paths."""
    keyed: frozenset[str]
    """Their digests, to compare with those of SOP instance UIDs and accession numbers."""

    @classmethod
    def of(cls, questions: Sequence[IngestedQuestion], keys: Pseudonyms) -> Self:
        names = frozenset(question.image for question in questions)
        return cls(names, frozenset(keys.digest("name", name) for name in names))

    def by_name(self, paths: Sequence[str]) -> bool:
        """Whether a question names one of these paths, in full or by its last part."""
        return not self.names.isdisjoint(names_of_paths(paths))

    def match(self, paths: Sequence[str], record: Record) -> bool:
        """Whether a question is about a file at these paths."""
        return self.by_name(paths) or not self.keyed.isdisjoint(record.found)


def names_of_paths(paths: Sequence[str]) -> set[str]:
    """The names that questions may use for a file at these paths: each path in full, and its last part."""
    names = [name_of_image(path) for path in paths]
    return {*names, *(PurePosixPath(name).name for name in names)}


class Resolver:
    """Finds the image of each question."""

    def __init__(
        self,
        paths: Mapping[str, Sequence[str]],
        records: Mapping[str, Mapping[int | None, Record]],
        keys: Pseudonyms,
        replace: bool = False,
    ) -> None:
        """`paths`: the paths of each source within the folder. `records`: the verdicts on each source's frames, as a
        journal has them. `replace`: an
        identifier in a question or an answer becomes a placeholder; else the question is left out."""
        self._records, self._keys, self._replace = records, keys, replace
        self._secret = cache(lambda form: keys.digest("secret", form))
        self.replaced = list[int]()
        """The indices of questions in which something was replaced."""
        self.left_out = list[tuple[int, RowReason]]()
        """The indices of questions that are left out, with the reasons."""
        self._secrets: dict[str, set[str]] = defaultdict(set)
        """The digests of what identifies each patient, from the headers of all its pictures."""
        self._by_path: dict[str, list[str]] = defaultdict(list)
        self._by_file: dict[str, list[str]] = defaultdict(list)
        self._by_key: dict[str, list[str]] = defaultdict(list)
        for source, places in paths.items():
            for place in map(name_of_image, places):
                self._by_path[place].append(source)
                self._by_file[PurePosixPath(place).name].append(source)
        for source, record in ((source, frames[None]) for source, frames in records.items()):
            for key in set(record.found):
                self._by_key[key].append(source)
            if record.image is not None:
                self._secrets[record.image.patient].update(record.secrets)

    def rows(self, questions: Sequence[IngestedQuestion]) -> Iterator[StoredRow]:
        """The rows, in order of the questions. `left_out` and `replaced` are complete once all rows are taken."""
        images = [self._image(question) for question in questions]
        with_image = [
            (image, question) for image, question in zip(images, questions, strict=True) if isinstance(image, Image)
        ]
        contradictory = contradictions((image.id, question) for image, question in with_image)
        named_splits = {image.patient: question.split for image, question in reversed(with_image) if question.split}
        index = 0
        for question, image in zip(questions, images, strict=True):
            texts = self._kept(question, image, contradictory)
            if isinstance(texts, RowReason):
                self.left_out.append((question.index, texts))
                continue
            assert isinstance(image, Image)
            yield StoredRow(
                index=index,
                image=image.id,
                organ=question.organ or image.organ,
                split=question.split or named_splits.get(image.patient) or part_of(image.patient, self._keys),
                question=texts[0],
                answer=texts[1],
            )
            index += 1

    def _kept(
        self, question: IngestedQuestion, image: Image | RowReason, contradictory: Collection[bytes]
    ) -> tuple[str, str] | RowReason:
        """Question and answer as they are stored, or why they are not."""
        if not isinstance(image, Image):
            return image
        if topic(image.id, question) in contradictory:
            return RowReason.CONTRADICTORY
        return self._texts(question, image) or RowReason.IDENTIFIER_IN_TEXT

    def _image(self, question: IngestedQuestion) -> Image | RowReason:
        """The one image that the question is about, or why there is none that may be stored."""
        keyed = self._keys.digest("name", question.image)
        places = (self._by_path.get(question.image), self._by_file.get(question.image), self._by_key.get(keyed))
        sources = set(next(filter(None, places), ()))
        if len(sources) != 1:
            return RowReason.SEVERAL_IMAGES if sources else RowReason.NO_SUCH_IMAGE
        frames = self._records.get(sources.pop(), {})
        if not frames or (main := frames[None].image) is None:
            return RowReason.IMAGE_QUARANTINED
        if question.frame in (None, main.frame):
            return main
        other = frames.get(question.frame)
        return other.image if other and other.image else RowReason.NO_SUCH_FRAME

    def _texts(self, question: IngestedQuestion, image: Image) -> tuple[str, str] | None:
        """Question and answer without identifiers; None if the question must be left out.

        An identifier in an answer is never replaced: a placeholder is not an answer.
        """
        secrets = self._secrets[image.patient]

        def is_known(form: str) -> bool:
            return self._secret(form) in secrets

        in_question, in_answer = (identifiers_in(text, is_known) for text in (question.question, question.answer))
        if in_answer or (in_question and not self._replace):
            return None
        if in_question:
            self.replaced.append(question.index)
        return without(question.question, in_question), question.answer


def part_of(patient: str, keys: Pseudonyms) -> Split:
    """The part for a patient whose questions name no split."""
    position, reached = int(keys.digest("split", patient)[:8], 16) / 2**32, 0.0
    for part, share in PARTS:
        reached += share
        if position < reached:
            return part
    return PARTS[-1][0]
