"""Suggests existing names for a mistyped one."""

from collections.abc import Iterable
from difflib import get_close_matches

from medfedvqa.errors import ConfigError

MOST, LEAST = 2, 0.65
"""The most names in one suggestion, and their least similarity to the typed name, from 0 to 1."""


def suggestion(typed: str, names: Iterable[str]) -> str:
    """The question `did you mean 'rounds'?` for a name that resembles one of `names`; empty if none does."""
    lowered = {name.lower().lstrip("-"): name for name in names}
    close = get_close_matches(typed.lower().lstrip("-"), lowered, MOST, cutoff=LEAST)
    return f"did you mean {' or '.join(repr(lowered[name]) for name in close)}?" if close else ""


def check_name(kind: str, typed: str, names: Iterable[str], hint: str, owner: str = "") -> None:
    """Raises `ConfigError` unless `typed` is one of `names`. The error has the nearest names, or else `hint`.

    `owner`: words after the name, such as ` of 'fedavg'`.
    """
    known = tuple(names)
    if typed not in known:
        raise ConfigError(f"there is no {kind} '{typed}'{owner}: {suggestion(typed, known) or hint}")
