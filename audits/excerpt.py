"""The part of a log that somebody is shown who has no log: entries, each proven to be under one signed checkpoint."""

import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from audits.checkpoint import CHECKPOINTS, Checkpoint, NoteFile, origin_of
from audits.entry import Entry, parse_any, parse_line
from audits.errors import LogError, NewerFormat, NoteError
from audits.exchange import canonical
from audits.external_evidence import ExternalEvidence
from audits.log_files import lines_from
from audits.running_jobs import Snapshot
from audits.signed_note import Note, VerifierKey
from audits.signed_tree import TREE
from audits.tree import Nodes, TreeFile, consistency_proof, consistent, includes, inclusion_proof
from audits.witness import KEYS, read_keys

_NEWEST = 64
"""Checkpoints that are remembered on the way to the newest that others cosigned."""


_STRICT = {"extra": "forbid"}
"""For those who read these classes from JSON with pydantic."""


@dataclass(frozen=True)
class QuotedEntry:
    """An entry of the audit log and its inclusion proof."""

    __pydantic_config__: ClassVar = _STRICT

    record: dict[str, Any]
    """The entry as it stands in the log, `leaf_hash` included."""
    proof: tuple[str, ...]
    """Hashes in base64, from the leaf's neighbour upwards (RFC 9162, 2.1.3)."""


@dataclass(frozen=True)
class CosignedCheckpoint:
    """The newest checkpoint that others have cosigned, and the proof that the excerpt's continues it."""

    __pydantic_config__: ClassVar = _STRICT

    checkpoint: str
    """Signed note."""
    proof: tuple[str, ...]
    """Hashes in base64 (RFC 9162, 2.1.4)."""


@dataclass(frozen=True)
class Excerpt:
    """Entries of a site's audit log, and what proves them."""

    __pydantic_config__: ClassVar = _STRICT

    key: str
    """The site's verifier key, as `medfedvqa audit key` shows it."""
    others: tuple[str, ...]
    """Verifier keys of those who cosigned, as the site knows them."""
    checkpoint: str
    """The newest signed note over the whole log."""
    cosigned: CosignedCheckpoint | None
    first: int
    """Number of the first entry that is still in the log; those before it have expired."""
    entries: tuple[QuotedEntry, ...]


@dataclass(frozen=True)
class ExcerptFacts:
    """What an excerpt shows once its proofs are found to hold."""

    checkpoint: Checkpoint
    cosigned: int
    """Entries under the checkpoint that others cosigned; 0 if none did."""
    cosigners: tuple[str, ...]


def quote(
    folder: Path, site: str, wanted: Callable[[Mapping[str, Any]], bool], others: ExternalEvidence | None = None
) -> Excerpt:
    """The entries in the folder whose record is `wanted`, up to the newest checkpoint.

    `others`: what others hold of the log, for a newer cosigned checkpoint than the site's own folder has. Raises
    `LogError` if there is no log, checkpoint or tree, and `NoteError` if what is there is no such thing.
    """
    first = Snapshot(folder).first() or 0
    known = read_keys(folder / KEYS)
    key, note = known.get(origin_of(site)), NoteFile(folder / CHECKPOINTS).latest()
    if key is None or note is None:
        raise LogError("the audit log is not signed: let the site sign it first")
    size = Checkpoint.parse(note.text).size
    tree = _tree(folder)
    try:
        notes = [*NoteFile(folder / CHECKPOINTS), *(others.notes[key.name] if others else ())]
        cosigners = {one for name in others.keys for one in others.keys[name]} if others else set()
        cosigned, signers = _cosigned(notes, key, {*known.values(), *cosigners}, tree.node, size)
        quoted = []
        for number, line in enumerate(lines_from(folder, first), first):
            if number >= size:
                break
            if wanted(record := parse_line(line)):
                quoted.append(QuotedEntry(record=record, proof=_coded(inclusion_proof(tree.node, number, size))))
    except (OSError, ValueError):
        raise LogError("the log or its tree cannot be read: have the log verified") from None
    finally:
        tree.close()
    return Excerpt(
        key=str(key),
        others=tuple(str(one) for one in signers),
        checkpoint=str(note),
        cosigned=cosigned,
        first=first,
        entries=tuple(quoted),
    )


def held(excerpt: Excerpt, site: str) -> ExcerptFacts:
    """What the excerpt shows of the log of `site` to somebody who trusts its key.

    Raises `NoteError` if a signature or a proof does not hold, or an entry is not as it was written.
    """
    key, note = VerifierKey.parse(excerpt.key), Note.parse(excerpt.checkpoint)
    found = Checkpoint.parse(note.text)
    if key.name != origin_of(site) or found.origin != key.name or not key.signed(note):
        raise NoteError("the checkpoint is not signed by the site's key")
    if not 0 <= excerpt.first <= found.size:
        raise NoteError("the first entry that is still there is not one of the log's")
    before = excerpt.first - 1
    for one in excerpt.entries:
        number = _checked(one, site, found)
        if number <= before:
            raise NoteError("entries do not stand in the order of the log, each once")
        before = number
    if excerpt.cosigned is None:
        if excerpt.others:
            raise NoteError("keys are given of parties that cosigned nothing")
        return ExcerptFacts(found, 0, ())
    return _cosigned_held(excerpt, excerpt.cosigned, key, found)


def quoted_entries(excerpt: Excerpt) -> tuple[Entry, ...]:
    """The entries, in order. Raises `LogError`, and `NewerFormat` if one holds what this version does not know."""
    for one in excerpt.entries:
        if parse_any(canonical(one.record) + b"\n")[1]:
            raise NewerFormat("an entry of the audit log")
    return tuple(Entry.from_record(one.record) for one in excerpt.entries)


def _checked(one: QuotedEntry, site: str, found: Checkpoint) -> int:
    """The number of an entry that is as it was written and is under the checkpoint."""
    try:
        record, _ = parse_any(canonical(one.record) + b"\n")
    except (LogError, ValueError, TypeError):
        raise NoteError("an entry is not as it was written: its hash is another") from None
    number: int = record["seq"]
    if record["site"] != site:
        raise NoteError(f"entry {number} is of another site's log")
    if not includes(bytes.fromhex(record["leaf_hash"]), number, found.size, _decoded(one.proof), found.root):
        raise NoteError(f"the proof of entry {number} does not show it to be in the log that was signed")
    return number


def _cosigned_held(excerpt: Excerpt, cosigned: CosignedCheckpoint, key: VerifierKey, found: Checkpoint) -> ExcerptFacts:
    note = Note.parse(cosigned.checkpoint)
    old = Checkpoint.parse(note.text)
    if old.origin != key.name or not key.signed(note):
        raise NoteError("the checkpoint that others cosigned is not signed by the site's key")
    if not consistent(old.size, found.size, old.root, found.root, _decoded(cosigned.proof)):
        raise NoteError("the log is not shown to continue the checkpoint that others cosigned")
    others = [VerifierKey.parse(one) for one in excerpt.others]
    if not others or not all(one != key and one.cosigned(note) is not None for one in others):
        raise NoteError("the checkpoint is not cosigned by all who are said to have done so")
    return ExcerptFacts(found, old.size, tuple(one.name for one in others))


def _cosigned(
    notes: Iterable[Note], key: VerifierKey, known: Collection[VerifierKey], nodes: Nodes, size: int
) -> tuple[CosignedCheckpoint | None, list[VerifierKey]]:
    """The largest checkpoint that others signed with keys that are known, with all their signatures."""
    found: OrderedDict[str, Note] = OrderedDict()
    for note in notes:
        found[note.text] = found.pop(note.text).joined(note) if note.text in found else note
        if len(found) > _NEWEST:
            found.popitem(last=False)
    for note in sorted(found.values(), key=lambda one: Checkpoint.parse(one.text).size, reverse=True):
        others = sorted((one for one in known if one != key and one.cosigned(note) is not None), key=str)
        if others and key.signed(note) and Checkpoint.parse(note.text).size <= size:
            kept = {key.name, *(one.name for one in others)}
            note = Note(note.text, tuple(one for one in note.signatures if one[0] in kept))
            proof = consistency_proof(nodes, Checkpoint.parse(note.text).size, size)
            return CosignedCheckpoint(checkpoint=str(note), proof=_coded(proof)), others
    return None, []


def _tree(folder: Path) -> TreeFile:
    try:
        return TreeFile(folder / TREE, write=False)
    except OSError:
        raise LogError("the log's tree is missing: copy the whole audit folder, or let the site sign again") from None


def _coded(proof: list[bytes]) -> tuple[str, ...]:
    return tuple(base64.b64encode(node).decode() for node in proof)


def _decoded(proof: tuple[str, ...]) -> list[bytes]:
    try:
        return [base64.b64decode(node, validate=True) for node in proof]
    except (ValueError, binascii.Error):
        raise NoteError("a proof holds what is no hash") from None
