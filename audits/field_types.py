"""The permitted values of an entry's fields: one check for each type in the annotations of the entry's classes."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import IntEnum, StrEnum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

LARGEST = 1 << 63
"""The magnitude of whole numbers is at most this, so that they fit int64 in databases and arrays."""
MOST_DEPTH = 32
"""The most nested levels of objects and lists in a field, so that every reader can walk through it."""


class Fit(IntEnum):
    """Whether a value has the required form. An object has the lowest `Fit` of its members."""

    NO = 0
    NEWER = 1
    """It holds a field or a word that this version does not know, and is sound otherwise."""
    YES = 2


Check = Callable[[Any], Fit]


@dataclass(frozen=True)
class Members:
    """The members of an object, in the order of their names."""

    checks: Mapping[str, Check]
    optional: frozenset[str]
    """Names of the members that an object may lack; all others are in every object."""

    def fit(self, record: Any) -> Fit:
        """Whether an object has the members that it must have, each of its type."""
        if type(record) is not dict or not record.keys() >= self.checks.keys() - self.optional:
            return Fit.NO
        least = Fit.YES
        for name, value in record.items():
            check = self.checks.get(name)
            member_fit = check(value) if check else _yes(bounded(value), Fit.NEWER)
            if member_fit < least:
                if not member_fit:
                    return member_fit
                least = member_fit
        return least


def members_of(kind: type, number: int) -> Members:
    """The members of a dataclass's JSON objects in lines of format `number`.

    Metadata `since`: the first format with the field. Metadata `optional`: the field is left out where it is `None`.
    """
    hints = get_type_hints(kind)
    members = sorted(
        (item for item in fields(kind) if item.metadata.get("since", 1) <= number), key=lambda item: item.name
    )
    optional = frozenset(item.name for item in members if is_optional(item))
    checks = {item.name: _check(hints[item.name], number, item.name in optional) for item in members}
    return Members(checks, optional)


def is_optional(member: Field[Any]) -> bool:
    """Whether a field is left out where it is `None`."""
    return bool(member.metadata.get("optional"))


def bounded(value: Any, depth: int = MOST_DEPTH) -> bool:
    """Whether plain JSON is nested no deeper than this, with whole numbers of 63 bits only."""
    if type(value) is int:
        return -LARGEST <= value < LARGEST
    if type(value) is dict or type(value) is list:
        parts = value.values() if type(value) is dict else value
        return depth > 0 and all(bounded(part, depth - 1) for part in parts)
    return True


def _check(hint: Any, number: int, never_null: bool = False) -> Check:
    """The check of values of a type that a class annotation names."""
    if get_origin(hint) in (Union, UnionType):
        (inner,) = set(get_args(hint)) - {NoneType}
        check = _check(inner, number)
        return check if never_null else lambda value: Fit.YES if value is None else check(value)
    if get_origin(hint) is tuple:
        item = _check(get_args(hint)[0], number)
        return lambda value: min(map(item, value), default=Fit.YES) if type(value) is list else Fit.NO
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _word(frozenset(word.value for word in hint))
    if isinstance(hint, type) and is_dataclass(hint):
        return members_of(hint, number).fit
    return _PLAIN[get_origin(hint) or hint]


def _word(vocabulary: Collection[str]) -> Check:
    """The check of a word from a closed vocabulary; an unknown word may come from a newer version."""
    return lambda value: (Fit.YES if value in vocabulary else Fit.NEWER) if type(value) is str else Fit.NO


def _yes(holds: bool, fit: Fit = Fit.YES) -> Fit:
    return fit if holds else Fit.NO


_PLAIN: Mapping[Any, Check] = {
    str: lambda value: _yes(type(value) is str),
    int: lambda value: _yes(type(value) is int and -LARGEST <= value < LARGEST),
    float: lambda value: _yes(type(value) in (int, float) and bounded(value)),
    bool: lambda value: _yes(type(value) is bool),
    Any: lambda value: _yes(bounded(value)),
    Mapping: lambda value: _yes(type(value) is dict and bounded(value)),
}
