"""Entries of the audit log: what a line holds, how it is hashed, and the strict way to read one."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from audits.errors import LogError, NewerFormat, OlderFormat
from audits.exchange import Kind, Protection, canonical
from audits.field_types import Fit, members_of


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
    """One event. This class is the only grammar of a line: both readers are derived from it.

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
        raise LogError("the line is no entry") from None
    # The line without its hash must equal the body: one encoding serves both checks, and fixes every byte.
    if not fit or line.replace(member, b"", 1) != body + b"\n":
        raise LogError("the line is not written as an entry is")
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
