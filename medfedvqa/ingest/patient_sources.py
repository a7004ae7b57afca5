"""A hospital's facts about patients beyond their images: from the table of questions, and from a file of persons.

These facts are only compared with. Nothing but their keyed digests is written anywhere.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from audits.bounded_files import open_plain
from medfedvqa.errors import DataError
from medfedvqa.ingest.pseudonyms import NumberSpellings, Pseudonyms, plain_number
from medfedvqa.ingest.questions import PATIENT_COLUMNS, IngestedQuestion
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
