"""Proofs of one entry for readers without the log: its inclusion proof with the signed checkpoint, or a COSE Receipt,
which clients of other projects can check as well.

Sources: RFC 9942 (COSE Receipts, with the tree RFC9162_SHA256), RFC 9052 (COSE_Sign1), RFC 8949, section 4.2.1 (CBOR).
The payload is the root of the log's tree. It is detached: a reader computes it from the entry and the path. The entry
is its line without `leaf_hash` and line feed: the bytes that the tree's leaf is the hash of.
"""

import base64
import binascii
import json
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from audits.bounded_files import check_number
from audits.checkpoint import CHECKPOINTS, SUCCESSIONS, Checkpoint, NoteFile, read_successions, succeeded
from audits.entry import hashed_bytes, parse_any
from audits.errors import LogError, NoteError
from audits.exchange import canonical
from audits.log_files import lines_from, present_segments
from audits.signed_note import AuditKey, Note, VerifierKey
from audits.signed_tree import TREE
from audits.tree import HASH_BYTES, TreeFile, includes, inclusion_proof, inclusion_root
from audits.witness import KEYS, read_keys

FORMAT = "medfedvqa audit proof 1"
MAX_BUNDLE = 1 << 26  # bytes
_NEWEST = 64


@dataclass(frozen=True)
class ProofResult:
    """The result of checking a proof: the entry, the signed checkpoint, and which of the given keys signed it."""

    record: dict[str, Any]
    checkpoint: Checkpoint
    signers: tuple[str, ...]


def prove(folder: Path, seq: int) -> dict[str, Any]:
    """A bundle for entry `seq` as plain JSON, under the recent checkpoint that covers it and has the most signers.

    Raises `LogError` if the entry is not there or expired, or is not under a checkpoint yet.
    """
    present_segments(folder)
    note = _checkpoint(folder, seq)
    checkpoint = Checkpoint.parse(note.text)
    try:
        line = next(islice(lines_from(folder, seq), 1), b"")
        record, _ = parse_any(line)
        tree = TreeFile(folder / TREE, write=False)
        try:
            proof = inclusion_proof(tree.node, seq, checkpoint.size)
        finally:
            tree.close()
    except (OSError, ValueError):
        raise LogError("the log's tree is missing: copy the whole audit folder, or let the site sign again") from None
    leaf = bytes.fromhex(record["leaf_hash"])
    if record["seq"] != seq or not includes(leaf, seq, checkpoint.size, proof, checkpoint.root):
        raise LogError("the entry is not the one that was signed: have the log verified")
    keys = read_keys(folder / KEYS)
    names = dict.fromkeys((checkpoint.origin, *(name for name, _ in note.signatures)))
    return {
        "format": FORMAT,
        "entry": line.decode().removesuffix("\n"),
        "proof": [base64.b64encode(node).decode() for node in proof],
        "checkpoint": str(note),
        "keys": [str(keys[name]) for name in names if name in keys],
    }


def check(bundle: bytes, keys: Collection[VerifierKey]) -> ProofResult:
    """Checks a bundle that every one of the given keys must have signed or cosigned.

    The keys in the bundle itself are for people to compare; they prove nothing. Raises `NoteError` unless the proof
    holds, `LogError` for a malformed entry and `NewerFormat` for a newer bundle.
    """
    try:
        if len(bundle) > MAX_BUNDLE:
            raise NoteError("this file exceeds the size limit of an entry's proof")
        bundle_json = json.loads(bundle)
        if not check_number(bundle_json["format"], FORMAT, "the proof"):
            raise NoteError("this is not a proof of an audit log's entry")
        record, _ = parse_any(bundle_json["entry"].encode() + b"\n")
        proof = [base64.b64decode(node, validate=True) for node in bundle_json["proof"]]
        note = Note.parse(bundle_json["checkpoint"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        raise NoteError("this is not a proof of an audit log's entry") from None
    checkpoint = Checkpoint.parse(note.text)
    if not includes(bytes.fromhex(record["leaf_hash"]), record["seq"], checkpoint.size, proof, checkpoint.root):
        raise NoteError("the proof does not show that the signed log contains the entry")
    signers = tuple(key.name for key in keys if key.signed(note) or key.cosigned(note) is not None)
    if not keys or len(signers) != len(keys):
        raise NoteError("the log's checkpoint lacks a signature by a given key")
    return ProofResult(record, checkpoint, signers)


def _checkpoint(folder: Path, seq: int) -> Note:
    """The checkpoint with the most signers among the newest that cover an entry, with all its signatures."""
    newest: OrderedDict[str, Note] = OrderedDict()
    for note in NoteFile(folder / CHECKPOINTS):
        if Checkpoint.parse(note.text).size > seq:
            newest[note.text] = newest[note.text].joined(note) if note.text in newest else note
            if len(newest) > _NEWEST:
                newest.popitem(last=False)
    if not newest:
        raise LogError("no checkpoint covers this entry: wait for the next one, or check the number of the entry")
    return max(
        newest.values(), key=lambda note: (len({name for name, _ in note.signatures}), Checkpoint.parse(note.text).size)
    )


RECEIPT, ENTRY = "receipt.cose", "entry.json"
"""The two files that a reader needs."""
MAX_RECEIPT = 1 << 13  # bytes
_NUMBER, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG = range(7)  # CBOR's major types
_SIGN1 = 18
_ALG, _KID, _VDS, _VDP = 1, 4, 395, 396
_EDDSA, _RFC9162_SHA256, _INCLUSION = -8, 1, -1
_NO_RECEIPT = "this is not a receipt of an audit log: RFC 9942 with EdDSA, RFC9162_SHA256, one path and no payload"


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
    """The entry's record. Raises `NoteError` unless each of `keys` verifies the receipt, `LogError` for bytes of no
    entry.

    The signature covers the tree's root alone, so nothing vouches for the tree's size.
    """
    receipt = Receipt.parse(encoded)
    leaf = sha256(b"\0" + entry).digest()
    record = _record(entry, leaf)
    root = inclusion_root(leaf, receipt.index, receipt.size, receipt.path)
    if root is None or record["seq"] != receipt.index:
        raise NoteError("the receipt's path does not belong to this entry")
    message = receipt.signed_bytes(root)
    if not keys or not all(key.hint == receipt.kid and key.verifies(receipt.signature, message) for key in keys):
        raise NoteError("the receipt does not belong to this entry, or lacks a signature by a given key")
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
        raise LogError("the line is not an entry") from None
    record, _ = parse_any(line)
    return record
