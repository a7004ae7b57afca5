"""The permitted values of an entry's fields: one `Form` for each type in the annotations of the entry's classes.

A form holds the check of a parsed value and the pattern of its text. Both readers of lines are built from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import IntEnum, StrEnum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

LARGEST = 1 << 63
"""Whole numbers are smaller, so that databases and arrays can hold them."""
MOST_DEPTH = 32
"""Levels of objects and lists within a field, so that every reader can walk through it."""


class Fit(IntEnum):
    """Whether a value has the form that it must have; of several values, the least counts."""

    NO = 0
    NEWER = 1
    """It holds a field or a word that this version does not know, and is sound otherwise."""
    YES = 2


@dataclass(frozen=True)
class Form:
    """How a value is checked, and the pattern of its JSON in a line without backslashes and control characters.

    Whoever matches the pattern looks for these first: a character class that leaves them out takes twice as long.
    """

    fit: Callable[[Any], Fit]
    pattern: bytes
    exact: bool = True
    """Whether all that has the pattern has the form and is canonical JSON; otherwise the text has to be parsed too."""


_TEXT = rb'"[^"]*+"'
_WHOLE = rb"(?:0|-?+[1-9][0-9]{0,17}+)"
_FLOAT = rb"(?:" + _WHOLE + rb"|-?[0-9]+\.[0-9]+(?:e[-+][0-9]+)?|-?[0-9]e[-+][0-9]+)"
_OBJECT = rb"\{.*?\}"


@dataclass(frozen=True)
class Members:
    """The members of an object, in the order of their names."""

    forms: Mapping[str, Form]
    optional: frozenset[str]
    """Names of the members that an object may lack; all others are in every object."""

    def fit(self, record: Any) -> Fit:
        """Whether an object has the members that it must have, each of its form."""
        if type(record) is not dict or not record.keys() >= self.forms.keys() - self.optional:
            return Fit.NO
        least = Fit.YES
        for name, value in record.items():
            form = self.forms.get(name)
            member_fit = form.fit(value) if form else _yes(bounded(value), Fit.NEWER)
            if member_fit < least:
                if not member_fit:
                    return member_fit
                least = member_fit
        return least


def members_of(kind: type, number: int) -> Members:
    """The members of the objects that stand for a dataclass in lines of this format.

    A field whose metadata have `since` is not in formats before that one; one with `optional` is left out where it is
    `None`.
    """
    hints = get_type_hints(kind)
    members = sorted(
        (item for item in fields(kind) if item.metadata.get("since", 1) <= number), key=lambda item: item.name
    )
    optional = frozenset(item.name for item in members if is_optional(item))
    forms = {item.name: _form(hints[item.name], number, item.name in optional) for item in members}
    return Members(forms, optional)


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


def _form(hint: Any, number: int, never_null: bool = False) -> Form:
    """The form of values of a type that a class annotation names."""
    if get_origin(hint) in (Union, UnionType):
        (inner,) = set(get_args(hint)) - {NoneType}
        form = _form(inner, number)
        return form if never_null else _or_null(form)
    if get_origin(hint) is tuple:
        return _list(_form(get_args(hint)[0], number))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _word([word.value for word in hint])
    if isinstance(hint, type) and is_dataclass(hint):
        return _object(members_of(hint, number))
    return _PLAIN[get_origin(hint) or hint]


def _or_null(form: Form) -> Form:
    def fit(value: Any) -> Fit:
        return Fit.YES if value is None else form.fit(value)

    return Form(fit, rb"(?:null|" + form.pattern + rb")", form.exact)


def _word(words: Sequence[str]) -> Form:
    """One of a closed vocabulary, to which a newer version may have added."""
    vocabulary = frozenset(words)

    def fit(value: Any) -> Fit:
        if type(value) is not str:
            return Fit.NO
        return Fit.YES if value in vocabulary else Fit.NEWER

    return Form(fit, b'"(?:' + b"|".join(word.encode() for word in words) + b')"')


def _object(members: Members) -> Form:
    if members.optional or not all(form.exact for form in members.forms.values()):
        return Form(members.fit, _OBJECT, exact=False)
    pattern = b",".join(b'"%s":%s' % (name.encode(), form.pattern) for name, form in members.forms.items())
    return Form(members.fit, rb"\{" + pattern + rb"\}")


def _list(item: Form) -> Form:
    def fit(value: Any) -> Fit:
        return min(map(item.fit, value), default=Fit.YES) if type(value) is list else Fit.NO

    return Form(fit, rb"\[(?:%s(?:,%s)*+)?\]" % (item.pattern, item.pattern) if item.exact else rb"\[.*?\]", item.exact)


def _yes(holds: bool, fit: Fit = Fit.YES) -> Fit:
    return fit if holds else Fit.NO


_PLAIN: Mapping[Any, Form] = {
    str: Form(lambda value: _yes(type(value) is str), _TEXT),
    int: Form(lambda value: _yes(type(value) is int and -LARGEST <= value < LARGEST), _WHOLE),
    float: Form(lambda value: _yes(type(value) in (int, float) and bounded(value)), _FLOAT, exact=False),
    bool: Form(lambda value: _yes(type(value) is bool), rb"(?:true|false)"),
    Any: Form(lambda value: _yes(bounded(value)), rb".*?", exact=False),
    Mapping: Form(lambda value: _yes(type(value) is dict and bounded(value)), _OBJECT, exact=False),
}
