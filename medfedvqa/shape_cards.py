"""Shape cards: the facts about a backbone for a server, a job and its author if only sites have the backbone.

A card holds names and shapes, no weights and no path. In a job it is untrusted text, so every field is bounded; a site
compares it with the model that it loads, and refuses the job if they differ.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from medfedvqa.bounds import BackboneName

MOST_PARAMETERS = 20_000
_Count = Annotated[int, Field(ge=0, le=2**24)]
_Some = Annotated[int, Field(ge=1, le=2**16)]
_Path = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*\z", max_length=200)]
_Tower = Annotated[str, StringConstraints(pattern=r"^[a-z]+\z", max_length=16)]


class _Card(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TowerCard(_Card):
    """The fields of `medfedvqa.models.TowerShape`."""

    layers: Annotated[int, Field(ge=1, le=1024)]
    width: _Some
    heads: Annotated[int, Field(ge=0, le=1024)]
    blocks: _Path | Literal[""] = ""
    queries_values: Annotated[tuple[tuple[_Path, _Count, _Count], ...], Field(max_length=2)] = ()
    features: _Count = 0
    names: Annotated[tuple[_Path, ...], Field(max_length=1024)] = ()
    widths: Annotated[tuple[_Some, ...], Field(max_length=1024)] = ()
    by_block: Annotated[
        tuple[Annotated[tuple[tuple[_Path, _Count, _Count, _Count], ...], Field(max_length=2)], ...],
        Field(max_length=1024),
    ] = ()


class ShapeCard(_Card):
    """The shape of one backbone, by the name that jobs and sites give it."""

    format: Literal[1] = 1
    name: BackboneName
    towers: Annotated[dict[_Tower, TowerCard], Field(min_length=1, max_length=4)]
    embed: _Count
    image_size: Annotated[int, Field(ge=1, le=4096)]
    context: Annotated[int, Field(ge=1, le=8192)]
    words: _Count = 0
    parameters: Annotated[
        dict[_Path, Annotated[tuple[_Count, ...], Field(max_length=6)]], Field(max_length=MOST_PARAMETERS)
    ]
    """The shapes of the parameters that features depend on, by name."""
