"""Packs named arrays into a FLARE message, and reads them from an untrusted one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

from audits import JobRefused, Refusal

if TYPE_CHECKING:
    from medfedvqa.core import Tensors

PLAIN = frozenset("biufSU")
"""The kinds of numpy types that are decoded: numbers, and text, which needs no class. A receiver that gets text where
the job declares numbers can then refuse it and name the sender."""
REASON = "medfedvqa_reason"
"""The key of a refusal, which holds the value of a `Refusal`."""
ROUND, TENSORS, AUDIT_BYTES = "medfedvqa_round", "medfedvqa_tensors", "medfedvqa_beside"
"""The keys of a message; `AUDIT_BYTES` holds checkpoints, proofs and cosignatures of audit logs."""

MOST_ROUNDS = 1_000_000
_MOST_TENSORS = 10_000
_MOST_AUDIT_BYTES = 1 << 16  # bytes
_LONGEST_NAME = 256  # characters


def pack(round: int, tensors: "Tensors", audit_bytes: bytes = b"") -> Shareable:
    """A message with a round's arrays, and the audit bytes that travel alongside."""
    message = Shareable()
    message[ROUND], message[TENSORS] = round, tensors
    if audit_bytes:
        message[AUDIT_BYTES] = audit_bytes
    return message


def unpack(message: Shareable) -> "tuple[int, Tensors]":
    """Round and arrays of a message; its headers are FLARE's own.

    Raises `JobRefused` unless the message holds a round, named arrays and at most `AUDIT_BYTES` besides. The
    gate, or the server's hub, checks whether these are the declared arrays.
    """
    if not isinstance(message, dict) or not set(message) <= {ReservedHeaderKey.HEADERS, ROUND, TENSORS, AUDIT_BYTES}:
        raise JobRefused(Refusal.MESSAGE, "the message holds other fields than a round, arrays and audit bytes")
    round, tensors = message.get(ROUND), message.get(TENSORS)
    if type(round) is not int or not 0 <= round <= MOST_ROUNDS:
        raise JobRefused(Refusal.MESSAGE, "the message does not name a round")
    if type(tensors) is not dict or len(tensors) > _MOST_TENSORS:
        raise JobRefused(Refusal.MESSAGE, "the message does not hold named arrays")
    for name, array in tensors.items():
        if type(name) is not str or len(name) > _LONGEST_NAME:
            raise JobRefused(Refusal.MESSAGE, "an array of the message does not have a name")
        if type(array) is not np.ndarray or array.dtype.kind not in PLAIN:
            raise JobRefused(Refusal.MESSAGE, "a named part of the message is not an array of plain values")
    return round, dict(tensors)


def audit_bytes(message: Mapping[str, Any]) -> bytes:
    """The audit bytes that are sent alongside the arrays.

    Anything that is not bytes, or more of them than either end sends, becomes `b"?"`, which no reader accepts.
    """
    value = message.get(AUDIT_BYTES, b"")
    return value if isinstance(value, bytes) and len(value) <= _MOST_AUDIT_BYTES else b"?"


def refusal(message: Mapping[str, Any]) -> Refusal:
    """The refusal that a site's answer names; `Refusal.FAILED` for anything else."""
    code = message.get(REASON)
    return Refusal(code) if isinstance(code, str) and code in set(Refusal) else Refusal.FAILED
