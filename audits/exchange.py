"""The declaration of what a method sends: for each task, exactly which tensors go up and which come down."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from audits.errors import AuditError, MessageRefused, ReleaseFault

if TYPE_CHECKING:  # NumPy takes a third of the time in which a verifier starts, and no log needs it
    import numpy as np
    from numpy.typing import NDArray

Tensors: TypeAlias = "dict[str, NDArray[Any]]"

ITEM_BYTES = {"float32": 4, "float64": 8, "int64": 8, "uint8": 1}
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_LARGEST = 2.0**1000
"""The largest bound or norm in a declaration, so that even whole numbers still fit a float."""
_ROUNDING = 1e-6
"""The relative margin of a scaled norm: rounding to float32 lengthens a vector by less."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,199}")


class Kind(StrEnum):
    """The kind of a tensor, by which a site's policy allows or refuses it."""

    PARAMETERS = "parameters"
    STATISTIC = "statistic"
    ACTIVATIONS = "activations"
    REPRESENTATIONS = "representations"
    PUBLIC = "public"
    """Computed from the job's settings alone, independent of any site's data."""


SITES = "sites"
"""The peer of a computation on shares: the job's other sites together. No single one of them sees a value."""


class Protection(StrEnum):
    """The protection of a tensor that crosses the site's border."""

    NONE = "none"
    DP = "dp"
    MASKED = "masked"
    """Only shares of it leave, each uniformly random by itself, or the sum over all sites, computed on shares."""
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

    Shape and dtype are exact. `bounds`: the least and the largest value that it may hold, None for no limits.
    Raises `AuditError` if the declaration itself is malformed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    meaning: str
    recipients: tuple[str, ...] = ("server",)
    protection: Protection = Protection.NONE
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _check_names("tensor", (self.name,))
        _check_names("recipient", self.recipients)
        if not all(type(length) is int and length >= 0 for length in self.shape):
            raise AuditError(f"tensor '{self.name}': the shape must be a tuple of whole numbers from 0")
        if self.dtype not in ITEM_BYTES:
            raise AuditError(f"tensor '{self.name}': its dtype must be one of {', '.join(ITEM_BYTES)}")
        if not isinstance(self.kind, Kind) or not isinstance(self.protection, Protection):
            raise AuditError(f"tensor '{self.name}': give its kind as a `Kind` and its protection as a `Protection`")
        if not self.recipients or not isinstance(self.meaning, str) or not self.meaning.strip():
            raise AuditError(f"tensor '{self.name}': give a recipient and a sentence that explains the tensor")
        if self.bounds is not None:
            object.__setattr__(self, "bounds", _bounds(self.name, self.bounds))

    def checked_copy(self, tensors: Mapping[str, Any]) -> NDArray[Any]:
        """This tensor of a message: a read-only, C-contiguous, little-endian copy, made before its values are checked.

        Raises `MessageRefused` unless it is a plain array of this dtype and shape whose values are finite and within
        the bounds.
        """
        import numpy as np

        if self.name not in tensors:
            raise MessageRefused(ReleaseFault.MISSING.format(name=self.name))
        value, dtype = tensors[self.name], wire_dtype(self)
        # Subclasses may hold more than they show, such as the values under a mask.
        if type(value) is not np.ndarray or value.dtype.kind not in "biuf":
            raise MessageRefused(ReleaseFault.ARRAY.format(name=self.name))
        if value.dtype.newbyteorder("<") != dtype:
            raise MessageRefused(ReleaseFault.DTYPE.format(name=self.name, dtype=self.dtype))
        if value.shape != self.shape:
            raise MessageRefused(ReleaseFault.SHAPE.format(name=self.name, shape=list(self.shape)))
        copy: NDArray[Any] = np.ndarray(self.shape, dtype, buffer=value.astype(dtype, copy=False).tobytes())
        if not np.isfinite(copy).all():
            raise MessageRefused(ReleaseFault.FINITE.format(name=self.name))
        if self.bounds is not None and ((copy < self.bounds[0]) | (copy > self.bounds[1])).any():
            low, high = self.bounds
            raise MessageRefused(ReleaseFault.BOUNDS.format(name=self.name, low=f"{low:g}", high=f"{high:g}"))
        return copy

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's values; 0 if one of its dimensions is empty."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class TaskSpec:
    """One task: its messages hold exactly the tensors `up` (site to peer) and `down` (peer to site).

    `most_norm`: the largest joint L2 norm of the tensors of parameters that go up, or None if there is no limit.
    """

    name: str
    up: tuple[TensorSpec, ...]
    down: tuple[TensorSpec, ...]
    most_norm: float | None = None

    def __post_init__(self) -> None:
        _check_names("task", (self.name,))
        if self.most_norm is not None:
            if not _is_number(self.most_norm) or self.most_norm <= 0:
                raise AuditError(f"task '{self.name}': the largest norm of an upload must be positive")
            object.__setattr__(self, "most_norm", float(self.most_norm))
        _check_names(f"task '{self.name}', up: tensor", [spec.name for spec in self.up])
        _check_names(f"task '{self.name}', down: tensor", [spec.name for spec in self.down])

    def parameters(self, upload: Mapping[str, NDArray[Any]]) -> Tensors:
        """The part of an upload whose joint norm is limited."""
        names = (spec.name for spec in self.up if spec.kind is Kind.PARAMETERS)
        return {name: upload[name] for name in names if name in upload}

    def check_norm(self, upload: Mapping[str, NDArray[Any]]) -> None:
        """Raises `MessageRefused` if the joint norm of an upload's parameters exceeds the task's limit."""
        if self.most_norm is not None and not joint_norm(self.parameters(upload)) <= self.most_norm:
            raise MessageRefused(ReleaseFault.NORM.format(most=f"{self.most_norm:g}"))

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
    """All messages that one method exchanges between a site and its peers."""

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
        raise AuditError(f"the method '{self.method}' does not declare the requested task")

    def check(
        self, task: str, direction: Literal["up", "down"], tensors: Mapping[str, Any], peer: str = "server"
    ) -> Tensors:
        """Checks a message against the task's declaration, at the other end of a site's gate; returns its copy.

        `peer`: the site's counterpart. Raises `MessageRefused` with all reasons, in sentences that hold only declared
        facts.
        """
        task_spec = self.task(task)
        specs = [spec for spec in (task_spec.up if direction == "up" else task_spec.down) if peer in spec.recipients]
        copies, reasons = _copies(specs, tensors)
        if surplus := len(tensors.keys() - {spec.name for spec in specs}):
            reasons.append(ReleaseFault.UNDECLARED.format(count=surplus))
        if reasons:
            raise MessageRefused("; ".join(reasons))
        if direction == "up":
            task_spec.check_norm(copies)
        return copies

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        return hashlib.sha256(canonical(self._facts())).hexdigest()

    def _facts(self) -> dict[str, Any]:
        """The exchange as plain JSON. An unset limit is left out, so that digests equal those of earlier versions."""
        facts = asdict(self)
        for task in facts["tasks"]:
            for place in (task, *task["up"], *task["down"]):
                for limit in ("bounds", "most_norm"):
                    if place.get(limit, 0) is None:
                        del place[limit]
        return facts


def canonical(value: Any) -> bytes:
    """The canonical JSON of a value, the only encoding that is hashed: sorted keys, no spaces, UTF-8.

    Raises `ValueError` for numbers that are not finite and text that is not Unicode, `TypeError` for other types.
    """
    return _ENCODER.encode(value).encode()


def wire_dtype(spec: TensorSpec) -> np.dtype[Any]:
    """The dtype in which the tensor travels and is digested: little-endian on every machine."""
    import numpy as np

    return np.dtype(spec.dtype).newbyteorder("<")


def _copies(specs: Iterable[TensorSpec], tensors: Mapping[str, Any]) -> tuple[Tensors, list[str]]:
    """Checked copies of the tensors that match their declaration, and the reasons why the others do not."""
    copies: Tensors = {}
    reasons = []
    for spec in specs:
        try:
            copies[spec.name] = spec.checked_copy(tensors)
        except MessageRefused as error:
            reasons.append(str(error))
    return copies, reasons


def joint_norm(tensors: Mapping[str, NDArray[Any]]) -> float:
    """The L2 norm of all values together."""
    import numpy as np

    return math.hypot(*(float(np.linalg.norm(array.astype(np.float64))) for array in tensors.values()))


def clip_to_norm(tensors: Mapping[str, NDArray[Any]], most_norm: float) -> Tensors:
    """The tensors, scaled down together if their joint norm exceeds the limit; they keep their dtypes."""
    import numpy as np

    norm = joint_norm(tensors)
    if norm <= most_norm:
        return dict(tensors)
    factor = most_norm / norm * (1 - _ROUNDING)
    with np.errstate(invalid="ignore"):  # a value that is not finite stays one, and the gate refuses it
        return {name: np.asarray(array.astype(np.float64) * factor, array.dtype) for name, array in tensors.items()}


def _bounds(name: str, bounds: Any) -> tuple[float, float]:
    if not isinstance(bounds, tuple) or len(bounds) != 2 or not all(map(_is_number, bounds)) or bounds[0] > bounds[1]:
        raise AuditError(f"tensor '{name}': bounds must be two finite numbers, the smaller one first")
    return float(bounds[0]), float(bounds[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _check_names(what: str, names: Iterable[str]) -> None:
    earlier: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise AuditError(f"{what}: a name has 1 to 200 letters, digits, or _ . : / - after the first character")
        if name in earlier:
            raise AuditError(f"{what}: '{name}' is declared twice")
        earlier.add(name)
