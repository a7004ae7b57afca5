"""Parses untrusted JSON: bounded in size and depth, and without variables that FLARE (2.9) would replace in it.

FLARE reads a job's configuration with variables: any string with braces is formatted with those of the process,
environment variables among them (`{$HOME}`, `{WORKSPACE}`, `{@definition:name=value}`, `${secret:NAME}`). A string
without braces stays as it is, so none has any, and no `$` either.
"""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

from medfedvqa.bounds import EXPANDED, MOST_TEXT

MOST_BYTES = 1 << 20
MOST_DEPTH = 16
_MOST_DIGITS = 32
_MOST_INTEGER = 2**63 - 1
_READ_BY_FLARE = "default_task_fetch_interval"
"""FLARE searches for this key at any depth and takes its value as a setting."""


class NotAllowed(Exception):
    """A file or its text is not allowed; the message quotes nothing of it."""


def read_bounded(path: Path, most: int = MOST_BYTES) -> bytes:
    """A plain file's bytes. Raises `NotAllowed` for a link, a special file and more than `most` bytes."""
    try:
        # A pipe without a writer would block for ever.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        raise NotAllowed("a file of the job is missing, is a link or cannot be read") from None
    with os.fdopen(file, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise NotAllowed("a file of the job is not a plain file")
        content = stream.read(most + 1)
    if len(content) > most:
        raise NotAllowed("a file of the job is too large")
    return content


def parse_object(content: bytes) -> dict[str, Any]:
    """The JSON object in `content`. Raises `NotAllowed`."""
    try:
        parsed = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_constant,
        )
    except (ValueError, RecursionError):
        raise NotAllowed("the configuration is not valid JSON") from None
    if not isinstance(parsed, dict):
        raise NotAllowed("the configuration is not a JSON object")
    _check(parsed, 0)
    return parsed


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise NotAllowed("the configuration has a key twice")
    return fields


def _integer(digits: str) -> int:
    # Python takes quadratic time for long numbers, and refuses very long ones in a sentence of its own.
    if len(digits) > _MOST_DIGITS or abs(int(digits)) > _MOST_INTEGER:
        raise NotAllowed("the configuration has a number that is too large")
    return int(digits)


def _number(digits: str) -> float:
    if len(digits) > _MOST_DIGITS or not math.isfinite(float(digits)):
        raise NotAllowed("the configuration has a number that is too large or too long")
    return float(digits)


def _constant(name: str) -> NoReturn:
    raise NotAllowed("the configuration has a number that is not finite")


def _check(value: Any, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise NotAllowed("the configuration is nested too deeply")
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, list):
        for item in value:
            _check(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key)
            if _READ_BY_FLARE in key:
                raise NotAllowed("the configuration has a setting that belongs to the site")
            _check(item, depth + 1)


def _check_text(text: str) -> None:
    if len(text) > MOST_TEXT:
        raise NotAllowed("the configuration has a text that is too long")
    if not text.isprintable():
        raise NotAllowed("the configuration has a text with control characters")
    if EXPANDED & set(text):
        raise NotAllowed("the configuration has a text with one of the characters '{', '}' and '$'")
