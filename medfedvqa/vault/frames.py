"""The format of the frames that a vault and its courier exchange over a Unix socket.

A frame is a prefix (four bytes that name this grammar, the head's length as uint32, the body's as uint64, both
little-endian), a head as strict JSON, and a body: the values of the arrays that the head lists, in its order, as raw
little-endian bytes, followed by plain bytes. The gate, or the server's hub, checks whether the arrays are those that
the job declares.
"""

import json
import math
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audits.exchange import ITEM_BYTES
from medfedvqa.errors import FederationError
from medfedvqa.federation.flare.strict_json import NotAllowed, parse_object

MOST_HEAD, MOST_BODY = 1 << 22, 1 << 31
"""The most bytes of a frame's head and body."""
_GRAMMAR = b"mfv1"
_PREFIX = struct.Struct("<4sIQ")
_PIECE = 1 << 20  # bytes read at a time: a length that is announced takes no memory before its bytes have come
_MOST_ARRAYS, _MOST_DIMENSIONS, _LONGEST_NAME = 10_000, 8, 256
_TYPES = {name: np.dtype(name).newbyteorder("<") for name in ITEM_BYTES}
"""Array types of an exchange, and bytes: announcements of attempts, tuples dealt for them, a job's files."""
_FIELDS: Mapping[str, Mapping[str, type]] = {
    # From the courier. A job's files are arrays of bytes; the plain bytes of a task are the server's audit bytes.
    "job": {"id": str, "code": str},
    "task": {"task": str, "round": int},
    "malformed": {},
    "silence": {},
    "end": {},
    "close": {"running": list, "ended": list, "code": str},
    # A job that never had a process: its id and the digest of its configuration, where it has them, and the reason.
    "turned away": {"id": str, "digest": str, "reason": str, "code": str},
    # From the vault.
    "ready": {"isolation": str, "code": str},
    "answer": {"round": int},
    "refused": {"code": str},
    "wait": {"attempt": str, "site": str, "seconds": float},
    "done": {},
    # Sealed mail to or from the named site.
    "mail": {"attempt": str, "site": str},
}
"""The kinds of frames, and the members of their heads."""


class FrameRefused(FederationError):
    """Received bytes are no frame, or a message does not fit into one."""


@dataclass(frozen=True)
class Frame:
    """One frame."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""


class Wire:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, kind: str, arrays: Mapping[str, Any] | None = None, data: bytes = b"", **fields: Any) -> int:
        """Send a frame; returns its size in bytes. Raises `FrameRefused` for what fits into no frame, or `OSError`."""
        prefix, values = _encoded(Frame(kind, fields, arrays or {}, data))
        parts = [part for part in (prefix, *values, data) if len(part)]  # after the last byte, nobody may be there
        for part in parts:
            self.connection.sendall(part)
        return sum(map(len, parts))

    def receive(self, *kinds: str) -> Frame:
        """The next frame, of one of these kinds.

        Raises `EOFError` if the other end is gone, `FrameRefused` for anything else, before its body is read.
        """
        grammar, head_bytes, body_bytes = _PREFIX.unpack(self._read(_PREFIX.size))
        if grammar != _GRAMMAR:
            raise FrameRefused("the other process has another message format: restart vault and courier in one version")
        if head_bytes > MOST_HEAD or body_bytes > MOST_BODY:
            raise FrameRefused("the other process announced more bytes than a frame may have")
        head = _head(bytes(self._read(head_bytes)))
        if head["kind"] not in kinds:
            raise FrameRefused("the other process sent an unexpected frame")
        specs = [_spec(item) for item in head.pop("arrays")]
        lengths = [dtype.itemsize * math.prod(shape) for _, dtype, shape in specs]
        if sum(lengths) > body_bytes or len({name for name, *_ in specs}) < len(specs):
            raise FrameRefused("a frame's body does not match its head")
        arrays = {
            name: np.frombuffer(self._read(nbytes), dtype).reshape(shape)
            for (name, dtype, shape), nbytes in zip(specs, lengths, strict=True)
        }
        return Frame(head.pop("kind"), head, arrays, bytes(self._read(body_bytes - sum(lengths))))

    def _read(self, nbytes: int) -> bytearray:
        content = bytearray()
        while len(content) < nbytes:
            piece = self.connection.recv(min(nbytes - len(content), _PIECE))
            if not piece:
                raise EOFError
            content += piece
        return content

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def _encoded(frame: Frame) -> tuple[bytes, list[Any]]:
    """Prefix and head, and the arrays' bytes without a copy."""
    specs, values = [], []
    for name, array in frame.arrays.items():
        if array.dtype.name not in _TYPES or array.ndim > _MOST_DIMENSIONS or len(name) > _LONGEST_NAME:
            raise FrameRefused("a frame cannot carry an array with this type, name or number of dimensions")
        little = np.ascontiguousarray(array, _TYPES[array.dtype.name])
        specs.append([name, array.dtype.name, list(array.shape)])
        values.append(little.reshape(-1).view(np.uint8))
    head = json.dumps({"kind": frame.kind, **frame.fields, "arrays": specs}).encode()
    body = sum(value.nbytes for value in values) + len(frame.data)
    if len(head) > MOST_HEAD or body > MOST_BODY:
        raise FrameRefused("a message is longer than a frame may be")
    return _PREFIX.pack(_GRAMMAR, len(head), body) + head, values


def _head(content: bytes) -> dict[str, Any]:
    try:
        head = parse_object(content)
    except NotAllowed:
        raise FrameRefused("a frame's head is not strict JSON") from None
    kind, arrays = head.get("kind"), head.get("arrays")
    members = _FIELDS.get(kind) if isinstance(kind, str) else None
    if members is None or head.keys() != {"kind", "arrays", *members} or type(arrays) is not list:
        raise FrameRefused("a frame's head does not have the members of its kind")
    if len(arrays) > _MOST_ARRAYS or not all(type(head[name]) is kind for name, kind in members.items()):
        raise FrameRefused("a member of a frame's head is not of its type")
    return head


def _spec(item: Any) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    match item:
        case [str() as name, str() as dtype, [*shape]] if dtype in _TYPES and len(shape) <= _MOST_DIMENSIONS:
            if all(type(length) is int and length >= 0 for length in shape):
                return name, _TYPES[dtype], tuple(shape)
    raise FrameRefused("a frame's head lists something that is not an array")
