"""Names the values of options in `--help`: `PATH`, `N`, or the choices; a flag takes no value."""

import datetime
import types
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

WORDS: dict[Any, str] = {
    bool: "",
    Path: "PATH",
    int: "N",
    float: "NUMBER",
    str: "TEXT",
    datetime.datetime: "YYYY-MM-DD",
}


def name_values(function: Callable[..., None]) -> None:
    """Name the value of every option of a command that has no name for it yet."""
    for name, hint in get_type_hints(function, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        kind, *settings = get_args(hint)
        for option in settings:
            if isinstance(option, OptionInfo) and option.metavar is None:
                option.metavar = word_for(kind)
            elif isinstance(option, ArgumentInfo) and option.metavar is None:
                option.metavar = name.upper() + ("..." if get_origin(kind) is list else "")


def word_for(kind: Any) -> str:
    """The word for a value of this type, or all choices."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return word_for(next(part for part in get_args(kind) if part is not type(None)))
    if origin is list:
        return word_for(get_args(kind)[0])
    if origin is Literal:
        return "|".join(map(str, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    return WORDS[kind]
