"""Checks of objects within an entry, such as counts of bytes, before a class is made of one."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from enum import StrEnum
from types import MappingProxyType, UnionType
from typing import Any

from audits.errors import NewerFormat
from audits.field_types import LARGEST

_NO_WORDS: Mapping[str, type[StrEnum]] = MappingProxyType({})


def check_members(
    kind: type, parts: Collection[Mapping[str, Any]], what: str, words: Mapping[str, type[StrEnum]] = _NO_WORDS
) -> None:
    """Raises `NewerFormat`, which names `what`, if a part has a member that the dataclass lacks, or another word.

    `words`: members whose texts are of a closed vocabulary.
    """
    names = {member.name for member in fields(kind)}
    for part in parts:
        strange = [name for name, vocabulary in words.items() if part.get(name) not in list(vocabulary)]
        if part.keys() - names or any(isinstance(part.get(name), str) for name in strange):
            raise NewerFormat(what)


def check_types(record: object, kind: type | UnionType, names: Iterable[str]) -> None:
    """Raises `TypeError` unless these fields have values of that type."""
    if not all(isinstance(getattr(record, name), kind) for name in names):
        raise TypeError


def check_counts(record: object, names: Iterable[str]) -> None:
    """Raises `ValueError` unless these fields are whole numbers that a file's size or a counter may have."""
    if not all(type(value := getattr(record, name)) is int and 0 <= value < LARGEST for name in names):
        raise ValueError
