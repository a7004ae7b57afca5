"""Which fields of a report are wording, and what is left without them: figures, which follow from the evidence.

Sentences, titles and explanations change from one version to the next. A report's signature covers them; no figure
depends on them, and nobody parses them.
"""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, Field

from privacy.report.replay import same

_WORDING = Field(json_schema_extra={"wording": True})
Wording = Annotated[str, _WORDING]
MaybeWording = Annotated[str | None, _WORDING]
Wordings = Annotated[tuple[str, ...], _WORDING]
WORDING = _WORDING
"""For other fields that consist of nothing else."""


def figures_of(part: BaseModel, whole: bool = False) -> dict[str, Any]:
    """A part of a report without wording, as plain values, with the fields that its file has; or `whole`, with all."""
    names = type(part).model_fields if whole else part.model_fields_set
    fields = type(part).model_fields
    return {
        name: _plain(getattr(part, name), whole) for name in fields if name in names and not _is_wording(part, name)
    }


def _is_wording(part: BaseModel, name: str) -> bool:
    extra = type(part).model_fields[name].json_schema_extra
    return isinstance(extra, dict) and extra.get("wording") is True


def _plain(value: Any, whole: bool) -> Any:
    if isinstance(value, BaseModel):
        return figures_of(value, whole)
    if isinstance(value, tuple | list):
        return [_plain(item, whole) for item in value]
    return value


def differences(first: Any, second: Any, where: str) -> Iterator[str]:
    """Where plain JSON says something else than another, floats by more than machines differ by.

    What only the other says is no difference: reports that earlier versions wrote lack what was added since.
    """
    if type(first) is not type(second):
        yield where
    elif isinstance(first, dict):
        for name in first:
            yield from differences(first[name], second.get(name), f"{where}.{name}".lstrip("."))
    elif isinstance(first, list):
        if len(first) != len(second):
            yield where
        for index, (mine, theirs) in enumerate(zip(first, second, strict=False)):
            yield from differences(mine, theirs, f"{where}[{index}]")
    elif not same(first, second) if isinstance(first, float) else first != second:
        yield where
