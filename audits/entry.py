"""Entries of the audit log: the content of a line, its hash, and the two ways to read one, strict and fast.

The fast way counts only if the struct, encoded again, gives the same bytes. Every other line (of a newer format, or
damaged) goes to `parse_any`, whose error says what is wrong with it.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import IntEnum, StrEnum
from hashlib import sha256
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from audits.errors import LogError, NewerFormat, OlderFormat
from audits.exchange import Kind, Protection, canonical

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


class Event(StrEnum):
    """The events that are logged."""

    OPEN = "open"
    RECEIVE = "receive"
    RELEASE = "release"
    RECOVERED = "recovered"
    CLOSE = "close"
    WIRE = "wire"
    EXPIRED = "expired"
    FINDING = "finding"
    REFUSAL = "refusal"
    ADMITTED = "admitted"
    ANSWERED = "answered"
    EXPORTED = "exported"
    ROTATED = "rotated"


class Outcome(StrEnum):
    """How a release or a receipt ended."""

    SENT = "sent"
    ACCEPTED = "accepted"
    REFUSED = "refused"


class Isolation(StrEnum):
    """How the kernel keeps the network from the process that holds a site's rows."""

    NAMESPACE = "namespace"
    """A network without interfaces, and a filter that refuses all sockets but Unix's."""
    FILTER = "filter"
    """The filter alone."""
    NONE = "none"


@dataclass(frozen=True)
class TensorRecord:
    """One tensor of an entry. A refused or shared tensor has no digest, and no byte of a refused tensor left."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    sha256: str | None
    kind: Kind
    protection: Protection


FORMAT = 1
"""The format number of entries that this version writes."""
_OPTIONAL = {"optional": True}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One event. This class defines the format of a line; both readers are derived from it.

    Every field is in every line, `null` where it does not apply; optional ones are then left out. `time` is UTC,
    `monotonic` nanoseconds of the machine's steady clock, `peer` who receives or sent the message, `nbytes` the sum
    over `tensors`; `policy`, `exchange`, `code_digest` and `model_digest` are SHA-256 in hex.
    Where values are shared (`masked`, peer `sites`), `nbytes` counts values, not shares, and `sharing` says among whom.
    """

    seq: int
    prev_hash: str
    leaf_hash: str
    time: str
    monotonic: int
    site: str
    event: Event
    actor: str | None = None
    job: str | None = None
    method: str | None = None
    round: int | None = None
    task: str | None = None
    direction: str | None = None
    peer: str | None = None
    tensors: tuple[TensorRecord, ...] = ()
    nbytes: int = 0
    policy: str | None = None
    exchange: str | None = None
    code_version: str | None = None
    code_digest: str | None = None
    model_digest: str | None = None
    dp_event: Mapping[str, Any] | None = None
    epsilon_before: float | None = None
    epsilon_after: float | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    """A sentence for people. Facts for programs have their own fields."""
    format: int = FORMAT
    wire: Mapping[str, Any] | None = field(default=None, metadata=_OPTIONAL)
    admission: Mapping[str, Any] | None = field(default=None, metadata=_OPTIONAL)
    """How a job was opened or refused: the refusal's code, the digest of the job's definition, its nonce."""
    code: Mapping[str, Any] | None = field(default=None, metadata=_OPTIONAL)
    """The parts behind `code_digest`, where a job is opened; see `JobCode`."""
    sharing: Mapping[str, Any] | None = field(default=None, metadata=_OPTIONAL)
    """The computation on shares that the entry belongs to: its attempt, sites and stage; see `Sharing`."""
    export: Mapping[str, Any] | None = field(default=None, metadata=_OPTIONAL)
    """The exported file of weights, in an entry `exported`: its SHA-256, in hex, and its number of bytes."""
    isolation: Isolation | None = field(default=None, metadata=_OPTIONAL)
    """How the process that answers the job is kept from the network, where a job is admitted, opened or refused."""
    expiry: Mapping[str, Any] | None = field(default=None, metadata=_OPTIONAL)
    """The expiry of entries: how many, after how many days, and what shows that the days have passed."""

    def record(self) -> dict[str, Any]:
        """The entry as the JSON object that its line holds."""
        plain = vars(self) | {"tensors": [vars(tensor) for tensor in self.tensors]}
        optional = GRAMMARS[FORMAT].optional
        return {name: value for name, value in plain.items() if value is not None or name not in optional}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Entry":
        """The entry that `record` describes. Raises `LogError` if the record has no known format."""
        try:
            return cls(
                **{
                    **record,
                    "format": record["format"],
                    "event": Event(record["event"]),
                    "outcome": record["outcome"] and Outcome(record["outcome"]),
                    **({"isolation": Isolation(record["isolation"])} if "isolation" in record else {}),
                    "tensors": tuple(_tensor(tensor) for tensor in record["tensors"]),
                }
            )
        except (KeyError, TypeError, ValueError):
            raise LogError("the entry does not have the fields of this version's format") from None


@dataclass(frozen=True)
class _Envelope:
    """The fields of entries of all formats, future ones included: enough to follow the chain and the tree."""

    seq: int
    prev_hash: str
    leaf_hash: str
    time: str
    site: str
    format: int


ENVELOPE = members_of(_Envelope, FORMAT)
GRAMMARS = {number: members_of(Entry, number) for number in range(1, FORMAT + 1)}


def leaf_hash(record: Mapping[str, Any]) -> str:
    """The hash that an entry's record must carry as its `leaf_hash`, in hex."""
    body = canonical({name: value for name, value in record.items() if name != "leaf_hash"})
    return hashlib.sha256(b"\0" + body).hexdigest()


def hashed_bytes(line: bytes, leaf_hash: str) -> bytes:
    """The bytes that a line's `leaf_hash` covers: the line without that member and without the line feed."""
    return line.removesuffix(b"\n").replace(b'"leaf_hash":"%s",' % leaf_hash.encode(), b"", 1)


def parse_line(line: bytes) -> dict[str, Any]:
    """The record in a line. Raises `LogError` unless it is canonical, complete and hashes to its `leaf_hash`. Raises
    `NewerFormat` for a sound line with members unknown to this version, `OlderFormat` without a format number."""
    record, newer = parse_any(line)
    if newer:
        raise NewerFormat
    return record


def parse_any(line: bytes) -> tuple[dict[str, Any], bool]:
    """The record in a line, also of a newer format, and whether it has members or words unknown to this version.

    Raises `LogError` as `parse_line` does.
    """
    try:
        record: dict[str, Any] = json.loads(line)
        fit = _fit(record)
        leaf = record.pop("leaf_hash")
        body, member = canonical(record), canonical({"leaf_hash": leaf})[1:-1] + b","
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise LogError("the line is not an entry") from None
    # The line without its hash must equal the body: one encoding serves both checks, and fixes every byte.
    if not fit or line.replace(member, b"", 1) != body + b"\n":
        raise LogError("the line does not have the form of an entry")
    if hashlib.sha256(b"\0" + body).hexdigest() != leaf:
        raise LogError("the entry does not match its hash")
    if "format" not in record:
        raise OlderFormat
    record["leaf_hash"] = leaf
    return record, fit is Fit.NEWER


def _fit(record: dict[str, Any]) -> Fit:
    if "format" not in record:
        return ENVELOPE.fit({**record, "format": FORMAT})
    number = record["format"]
    if type(number) is not int:
        return Fit.NO
    if number > FORMAT:
        return min(ENVELOPE.fit(record), Fit.NEWER)
    return GRAMMARS[number].fit(record) if number in GRAMMARS else Fit.NO


def _tensor(record: Mapping[str, Any]) -> TensorRecord:
    enums = {"kind": Kind(record["kind"]), "protection": Protection(record["protection"])}
    return TensorRecord(**{**record, "shape": tuple(record["shape"]), **enums})


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
    """The `msgspec` type for an annotation; raw JSON for numbers and objects, which this module checks itself."""
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
