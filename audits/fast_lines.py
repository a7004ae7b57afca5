"""Reads lines of a log fast, with a `msgspec` struct that is derived from the grammar; other lines with `parse_any`.

The fast way counts only if the struct, encoded again, gives the same bytes. Every other line (of a newer format, or
damaged) goes to `parse_any`, whose error says what is wrong with it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from hashlib import sha256
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from audits.entry import FORMAT, GRAMMARS, Entry, hashed_bytes, parse_any
from audits.exchange import canonical
from audits.field_types import LARGEST, Fit, is_optional


class LogLine(NamedTuple):
    """The fields of an entry that the verifier needs. For a newer format number, only the first seven are filled."""

    seq: int
    prev_hash: str
    leaf_hash: str
    site: str
    time: str
    entry: bytes
    """The bytes that `leaf_hash` covers."""
    newer: bool
    """Whether the entry has members or words unknown to this version."""
    event: str | None = None
    outcome: str | None = None
    job: str | None = None
    round: int | None = None
    task: str | None = None
    peer: str | None = None
    nbytes: int = 0
    tensors: Sequence[Any] = ()
    """Objects that `msgspec.json.encode` writes exactly as in the line."""
    wire: Mapping[str, Any] | None = None
    expiry: Mapping[str, Any] | None = None


_MEMBERS = ("event", "outcome", "job", "round", "task", "peer", "nbytes", "tensors")
_OBJECTS = ("wire", "expiry")
_WHOLE = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST - 1)]


def _struct(kind: type) -> type[msgspec.Struct]:
    """A struct with the members of a dataclass, in the order in which a line has them."""
    hints = get_type_hints(kind)
    members = [
        (item.name, _type(hints[item.name], msgspec.UnsetType), msgspec.UNSET)
        if is_optional(item)
        else (item.name, _type(hints[item.name]))
        for item in sorted(fields(kind), key=lambda item: item.name)
    ]
    return msgspec.defstruct(kind.__name__, members, forbid_unknown_fields=True, frozen=True, kw_only=True)


def _type(hint: Any, absent: type = NoneType) -> Any:
    """The `msgspec` type for an annotation; raw JSON where the grammar has to check numbers and objects."""
    if get_origin(hint) is UnionType:
        (inner,) = (_type(member) for member in get_args(hint) if member is not NoneType)
        return inner if inner is msgspec.Raw and absent is NoneType else inner | absent
    if get_origin(hint) is tuple:
        return tuple[_type(get_args(hint)[0]), ...]  # type: ignore[misc]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Literal[tuple(word.value for word in hint)]
    if is_dataclass(hint):
        return _struct(hint)  # type: ignore[arg-type]
    return _WHOLE if hint is int else hint if hint is str else msgspec.Raw


_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_struct(Entry))
_ENCODER = msgspec.json.Encoder()
_RAW = tuple(name for name, kind in _DECODER.type.__annotations__.items() if msgspec.Raw in (kind, *get_args(kind)))
_VALUES = attrgetter(*_MEMBERS)


def read_line(line: bytes) -> LogLine:
    """The content of a line, also of a newer format. Raises `LogError` where `parse_any` does."""
    try:
        entry = _DECODER.decode(line)
        if entry.format == FORMAT and _ENCODER.encode(entry) + b"\n" == line:
            body = hashed_bytes(line, entry.leaf_hash)
            parts = {name: _part(name, raw) for name in _RAW if (raw := getattr(entry, name)) is not msgspec.UNSET}
            if sha256(b"\0" + body).hexdigest() == entry.leaf_hash:
                place = entry.seq, entry.prev_hash, entry.leaf_hash, entry.site, entry.time, body, False
                return LogLine(*place, *_VALUES(entry), *map(parts.get, _OBJECTS))
    except (ValueError, RecursionError):  # also those of msgspec
        pass
    return _slowly(line)  # which says what is wrong with it, if anything is


def _part(name: str, raw: msgspec.Raw) -> Any:
    """The value of a member that the struct holds as raw JSON. Raises `ValueError` unless it fits and is canonical."""
    text = bytes(raw)
    if text == b"null" and name not in GRAMMARS[FORMAT].optional:
        return None
    value = json.loads(text)
    if GRAMMARS[FORMAT].checks[name](value) is not Fit.YES or canonical(value) != text:
        raise ValueError
    return value


def _slowly(line: bytes) -> LogLine:
    record, newer = parse_any(line)
    body = hashed_bytes(line, record["leaf_hash"])
    place = record["seq"], record["prev_hash"], record["leaf_hash"], record["site"], record["time"], body, newer
    if record["format"] > FORMAT:
        return LogLine(*place)
    return LogLine(*place, *(record[name] for name in _MEMBERS), *map(record.get, _OBJECTS))
