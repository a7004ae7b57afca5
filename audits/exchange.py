"""What a method sends, declared once: for each task, exactly which tensors go up and which come down."""

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from audits.errors import AuditError

Tensors: TypeAlias = dict[str, NDArray[Any]]

ITEM_BYTES = {"float32": 4, "float64": 8, "int64": 8}
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,199}")


class Kind(StrEnum):
    """What a tensor is; a site's policy allows or refuses by kind."""

    PARAMETERS = "parameters"
    STATISTIC = "statistic"
    ACTIVATIONS = "activations"
    REPRESENTATIONS = "representations"
    PUBLIC = "public"
    """Computed from the job's settings alone: no value of it depends on a site's data."""


SITES = "sites"
"""The peer of a computation on shares: the other sites of the job together, none of which sees a value by itself."""


class Protection(StrEnum):
    """What a tensor carries when it crosses the site's border."""

    NONE = "none"
    DP = "dp"
    MASKED = "masked"
    """Only shares of it leave, each uniformly random by itself."""
    DP_MASKED = "dp and masked"

    @property
    def private(self) -> bool:
        """Whether it is under differential privacy."""
        return self in (Protection.DP, Protection.DP_MASKED)

    @property
    def masked(self) -> bool:
        """Whether it is aggregated on shares."""
        return self in (Protection.MASKED, Protection.DP_MASKED)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a message. `recipients` are the peers at the other end, whichever way the message goes.

    Shape and dtype are exact. Raises `AuditError` if the declaration itself is malformed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    meaning: str
    recipients: tuple[str, ...] = ("server",)
    protection: Protection = Protection.NONE

    def __post_init__(self) -> None:
        _check_names("tensor", (self.name,))
        _check_names("recipient", self.recipients)
        if not all(type(length) is int and length >= 0 for length in self.shape):
            raise AuditError(f"tensor '{self.name}': a shape is a tuple of whole numbers, none negative")
        if self.dtype not in ITEM_BYTES:
            raise AuditError(f"tensor '{self.name}': its dtype must be one of {', '.join(ITEM_BYTES)}")
        if not isinstance(self.kind, Kind) or not isinstance(self.protection, Protection):
            raise AuditError(f"tensor '{self.name}': say its kind with `Kind` and its protection with `Protection`")
        if not self.recipients or not isinstance(self.meaning, str) or not self.meaning.strip():
            raise AuditError(f"tensor '{self.name}': it needs a recipient, and a sentence that says what it means")

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's values; 0 if one of its dimensions is empty."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class TaskSpec:
    """One task: its messages hold exactly the tensors `up` (site to peer) and `down` (peer to site)."""

    name: str
    up: tuple[TensorSpec, ...]
    down: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        _check_names("task", (self.name,))
        _check_names(f"task '{self.name}', up: tensor", [spec.name for spec in self.up])
        _check_names(f"task '{self.name}', down: tensor", [spec.name for spec in self.down])

    @property
    def bytes_up(self) -> int:
        """Bytes of one message from a site."""
        return sum(spec.nbytes for spec in self.up)

    @property
    def bytes_down(self) -> int:
        """Bytes of one message to a site."""
        return sum(spec.nbytes for spec in self.down)


@dataclass(frozen=True)
class Exchange:
    """All that one method moves between a site and its peers."""

    method: str
    tasks: tuple[TaskSpec, ...]

    def __post_init__(self) -> None:
        _check_names("method", (self.method,))
        _check_names("task", [task.name for task in self.tasks])

    def task(self, name: str) -> TaskSpec:
        """The task of that name. Raises `AuditError` if it is not declared."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise AuditError(f"the method '{self.method}' does not declare the task that was asked for")

    def to_json(self) -> str:
        """Canonical JSON; `from_json` reads it back."""
        return canonical(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> "Exchange":
        """Reads what `to_json` wrote. Raises `AuditError` if anything is missing, unknown or of another type."""
        try:
            found = json.loads(text)
            return cls(**found | {"tasks": tuple(_task(task) for task in _list(found["tasks"]))})
        except (KeyError, TypeError, ValueError, RecursionError):
            raise AuditError("this text is no exchange: write it with Exchange.to_json of this version") from None

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        return hashlib.sha256(canonical(asdict(self))).hexdigest()


def canonical(value: Any) -> bytes:
    """The one encoding that is hashed: JSON with sorted keys, no spaces, UTF-8.

    Raises `ValueError` for numbers that are not finite and text that is not Unicode, `TypeError` for other types.
    """
    return _ENCODER.encode(value).encode()


def wire_dtype(spec: TensorSpec) -> np.dtype[Any]:
    """The dtype in which the tensor travels and is digested: little-endian on every machine."""
    return np.dtype(spec.dtype).newbyteorder("<")


def _check_names(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise AuditError(f"{what}: a name has 1 to 200 letters, digits, or _ . : / - after the first character")
        if name in seen:
            raise AuditError(f"{what}: '{name}' is declared twice")
        seen.add(name)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list is needed")
    return value


def _task(found: dict[str, Any]) -> TaskSpec:
    return TaskSpec(**found | {way: tuple(_tensor(spec) for spec in _list(found[way])) for way in ("up", "down")})


def _tensor(found: dict[str, Any]) -> TensorSpec:
    return TensorSpec(
        **found
        | {
            "shape": tuple(_list(found["shape"])),
            "recipients": tuple(_list(found["recipients"])),
            "kind": Kind(found["kind"]),
            "protection": Protection(found["protection"]),
        }
    )
