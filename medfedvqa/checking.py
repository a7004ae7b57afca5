"""Validates options from a user or a hostile author, and reads untrusted files. Errors name only keys of the model."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from audits.bounded_files import MAX_DOCUMENT, read_bounded
from medfedvqa.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)

_MOST_FAULTS = 10
"""The most faults that one error message names."""
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def checked(kind: type[Model], options: Mapping[str, Any], owner: str) -> Model:
    """Validates a mapping into a frozen model. Raises `ConfigError`, which names each of the model's keys with a fault.

    The error repeats no value and no unknown key, since the options may come from a stranger.
    """
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        schema = _schema(kind)
        faults = (_fault(fault["type"], fault["loc"], fault["msg"], schema) for fault in error.errors())
        raise ConfigError(f"{owner}: {'; '.join(islice(dict.fromkeys(faults), _MOST_FAULTS))}") from None


@lru_cache
def _schema(kind: type[BaseModel]) -> Mapping[str, Any]:
    """The model's JSON schema, made once: making it takes longer than the rest of a refusal."""
    return kind.model_json_schema()


def _fault(reason: str, keys: Sequence[str | int], message: str, schema: Mapping[str, Any]) -> str:
    names = {name for table in _tables(schema) for name in table}
    known = ".".join(str(key) if isinstance(key, int) or key in names else "*" for key in keys)
    if reason not in _UNKNOWN:
        return f"'{known}': {message}"
    place, alternatives = known.removesuffix("*").removesuffix("."), sorted(_siblings(schema, keys))
    where = f"'{place}' has " if place else ""
    return f"{where}an unknown key; the keys are {', '.join(alternatives)}"


def _tables(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The properties of the model and of all models in it."""
    return [part.get("properties", {}) for part in (schema, *schema.get("$defs", {}).values())]


def _siblings(schema: Mapping[str, Any], keys: Sequence[str | int]) -> set[str]:
    """The keys that the table of the last, unknown key has."""
    if len(keys) == 1:
        return set(schema.get("properties", {}))
    parent = str(schema.get("properties", {}).get(keys[0], ""))
    inner = (part for name, part in schema.get("$defs", {}).items() if f"'#/$defs/{name}'" in parent)
    return {key for part in inner for key in part.get("properties", {})}


def bytes_of(path: Path) -> bytes:
    """The content of an untrusted file. Raises `ConfigError` if it is unreadable or above `MAX_DOCUMENT` bytes."""
    try:
        return read_bounded(path, MAX_DOCUMENT)
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror}") from None
