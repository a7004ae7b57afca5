"""The methods that jobs can name, and their options."""

from dataclasses import dataclass
from typing import Any

from medfedvqa.core import method_names, method_type

__all__ = ["Option", "method_names", "options"]


@dataclass(frozen=True)
class Option:
    """One option of a method."""

    name: str
    default: Any
    meaning: str
    """One phrase, with the option's unit and the source of its default."""


def options(method: str) -> tuple[Option, ...]:
    """The options of the method of this name, each with its default and meaning. Raises `ConfigError`."""
    fields = method_type(method).config_type.model_fields
    return tuple(Option(name, field.default, field.description or "") for name, field in fields.items())
