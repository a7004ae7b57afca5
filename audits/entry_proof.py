"""A proof of one entry for readers without the log: the entry, its inclusion proof, and the signed checkpoint."""

import base64
import binascii
import json
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from audits.checkpoint import CHECKPOINTS, Checkpoint, NoteFile
from audits.entry import parse_any
from audits.errors import LogError, NoteError
from audits.format_numbers import check_number
from audits.log_files import lines_from, present_segments
from audits.signed_note import Note, VerifierKey
from audits.signed_tree import TREE
from audits.tree import TreeFile, includes, inclusion_proof
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
            raise NoteError("this file is larger than a proof of an entry may be")
        bundle_json = json.loads(bundle)
        if not check_number(bundle_json["format"], FORMAT, "the proof"):
            raise NoteError("this is no proof of an audit log's entry")
        record, _ = parse_any(bundle_json["entry"].encode() + b"\n")
        proof = [base64.b64decode(node, validate=True) for node in bundle_json["proof"]]
        note = Note.parse(bundle_json["checkpoint"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        raise NoteError("this is no proof of an audit log's entry") from None
    checkpoint = Checkpoint.parse(note.text)
    if not includes(bytes.fromhex(record["leaf_hash"]), record["seq"], checkpoint.size, proof, checkpoint.root):
        raise NoteError("the proof does not show the entry to be in the log that was signed")
    signers = tuple(key.name for key in keys if key.signed(note) or key.cosigned(note) is not None)
    if not keys or len(signers) != len(keys):
        raise NoteError("the log's checkpoint is not signed with every key that was given")
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
