"""COSE Receipts: a signed inclusion proof of one entry, which clients of other projects can check as well.

Sources: RFC 9942 (COSE Receipts, with the tree RFC9162_SHA256), RFC 9052 (COSE_Sign1), RFC 8949, section 4.2.1 (CBOR).
The payload is the root of the log's tree. It is detached: a reader computes it from the entry and the path. The entry
is its line without `leaf_hash` and line feed: the bytes that the tree's leaf is the hash of.
"""

import base64
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from audits.checkpoint import Checkpoint
from audits.entry import hashed_bytes, parse_any
from audits.entry_proof import prove
from audits.errors import LogError, NoteError
from audits.exchange import canonical
from audits.key_succession import SUCCESSIONS, read_successions, succeeded
from audits.signed_note import AuditKey, Note, VerifierKey
from audits.tree import HASH_BYTES, inclusion_root

RECEIPT, ENTRY = "receipt.cose", "entry.json"
"""The two files that a reader needs."""
MAX_RECEIPT = 1 << 13  # bytes
_NUMBER, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG = range(7)  # CBOR's major types
_SIGN1 = 18
_ALG, _KID, _VDS, _VDP = 1, 4, 395, 396
_EDDSA, _RFC9162_SHA256, _INCLUSION = -8, 1, -1
_NO_RECEIPT = "this is no receipt of an audit log: RFC 9942 with EdDSA, RFC9162_SHA256, one path and no payload"


@dataclass(frozen=True)
class Receipt:
    """A receipt of inclusion. `kid` is the signing key's name and id, as in the key's text form."""

    kid: str
    size: int
    index: int
    path: tuple[bytes, ...]
    signature: bytes = b""

    @property
    def protected(self) -> bytes:
        """The protected header, as CBOR."""
        return cbor({_ALG: _EDDSA, _KID: self.kid.encode(), _VDS: _RFC9162_SHA256})

    def signed_bytes(self, root: bytes) -> bytes:
        """The bytes that the signature covers: the structure of RFC 9052, section 4.4."""
        return cbor(["Signature1", self.protected, b"", root])

    def __bytes__(self) -> bytes:
        proofs = {_INCLUSION: [cbor([self.size, self.index, list(self.path)])]}
        return _head(_TAG, _SIGN1) + cbor([self.protected, {_VDP: proofs}, None, self.signature])

    @classmethod
    def parse(cls, encoded: bytes) -> "Receipt":
        """Reads a receipt. Raises `NoteError` unless `bytes` of it gives the same encoding."""
        try:
            cursor = _Cursor(encoded[:MAX_RECEIPT])
            cursor.skip(_TAG, _ARRAY)
            protected = _Cursor(cursor.string())
            protected.skip(_MAP, _NUMBER, _NEGATIVE, _NUMBER)
            cursor.skip(_MAP, _NUMBER, _MAP, _NEGATIVE, _ARRAY)
            proof = _Cursor(cursor.string())
            proof.skip(_ARRAY)
            size, index, count = proof.head(_NUMBER), proof.head(_NUMBER), proof.head(_ARRAY)
            path = tuple(proof.string() for _ in range(count))
            cursor.at += 1  # nil, in place of a payload
            receipt = cls(protected.string().decode(), size, index, path, cursor.string())
        except (IndexError, ValueError):
            raise NoteError(_NO_RECEIPT) from None
        # What was skipped, a second way to write a number and bytes at the end all differ from what would be written.
        if bytes(receipt) != encoded or not path or any(len(node) != HASH_BYTES for node in path):
            raise NoteError(_NO_RECEIPT)
        return receipt


def issue(folder: Path, seq: int, key: AuditKey) -> tuple[bytes, bytes]:
    """A receipt for an entry of the log in the folder, and the entry's bytes. `key`: the log's own.

    Raises `LogError` as `prove` does, and if the tree has one leaf only or the checkpoint is not signed by the key.
    """
    bundle = prove(folder, seq)
    note = Note.parse(bundle["checkpoint"])
    checkpoint = Checkpoint.parse(note.text)
    if not succeeded(key.public, read_successions(folder / SUCCESSIONS)).signed(note):
        raise LogError("the log's checkpoint is not signed by this site's key: have the log verified")
    line = bundle["entry"].encode()
    entry = hashed_bytes(line, json.loads(line)["leaf_hash"])
    unsigned = Receipt(key.public.hint, checkpoint.size, seq, tuple(map(base64.b64decode, bundle["proof"])))
    if not unsigned.path:
        raise LogError("RFC 9942 has no receipt for a log of one entry: have the log signed again after its next entry")
    return bytes(replace(unsigned, signature=key.signature(unsigned.signed_bytes(checkpoint.root)))), entry


def check_receipt(encoded: bytes, entry: bytes, keys: Collection[VerifierKey]) -> dict[str, Any]:
    """The entry's record. Raises `NoteError` unless each of `keys` verifies the receipt, `LogError` for no entry.

    The signature covers the tree's root alone, so nothing vouches for the tree's size.
    """
    receipt = Receipt.parse(encoded)
    leaf = sha256(b"\0" + entry).digest()
    record = _record(entry, leaf)
    root = inclusion_root(leaf, receipt.index, receipt.size, receipt.path)
    if root is None or record["seq"] != receipt.index:
        raise NoteError("the receipt's path is not one of this entry")
    message = receipt.signed_bytes(root)
    if not keys or not all(key.hint == receipt.kid and key.verifies(receipt.signature, message) for key in keys):
        raise NoteError("the receipt is not one of this entry, or not signed with every key that was given")
    return record


def cbor(value: Any) -> bytes:
    """Deterministic CBOR of None, int, bytes, str, dict or list. A dict's keys must be in order already."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _head(_NUMBER, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
    if isinstance(value, bytes):
        return _head(_BYTES, len(value)) + value
    if isinstance(value, str):
        return _head(_TEXT, len(value.encode())) + value.encode()
    if isinstance(value, dict):
        return _head(_MAP, len(value)) + b"".join(cbor(name) + cbor(item) for name, item in value.items())
    return _head(_ARRAY, len(value)) + b"".join(map(cbor, value))


def _head(major: int, number: int) -> bytes:
    """A major type and a number, in as few bytes as possible."""
    if number < 24:
        return bytes([major << 5 | number])
    code = next(code for code in range(4) if number < 1 << (8 << code))
    return bytes([major << 5 | 24 + code]) + number.to_bytes(1 << code, "big")


class _Cursor:
    """Reads CBOR. Raises `IndexError` if the input ends too early, and `ValueError` for an unexpected type."""

    def __init__(self, encoded: bytes) -> None:
        self._encoded, self.at = encoded, 0

    def head(self, major: int) -> int:
        """The number of the next head, which has to be of this major type."""
        first = self._encoded[self.at]
        self.at += 1
        if first >> 5 != major or first & 31 > 27:
            raise ValueError
        return first & 31 if first & 31 < 24 else int.from_bytes(self._take(1 << (first & 31) - 24), "big")

    def skip(self, *majors: int) -> None:
        """Passes heads of these major types."""
        for major in majors:
            self.head(major)

    def string(self) -> bytes:
        """The next byte string."""
        return self._take(self.head(_BYTES))

    def _take(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self._encoded):
            raise IndexError
        return self._encoded[self.at - count : self.at]


def _record(entry: bytes, leaf: bytes) -> dict[str, Any]:
    """The record in an entry's bytes. Raises `LogError` unless a log would write it in this way."""
    try:
        line = canonical(json.loads(entry) | {"leaf_hash": leaf.hex()}) + b"\n"
    except (ValueError, TypeError, RecursionError):
        raise LogError("the line is no entry") from None
    record, _ = parse_any(line)
    return record
