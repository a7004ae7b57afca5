"""An excerpt of a log for readers who do not have the log: entries with proofs under one signed checkpoint."""

import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from audits.checkpoint import CHECKPOINTS, Checkpoint, NoteFile, origin_of
from audits.entry import Entry, parse_any, parse_line
from audits.errors import LogError, NewerFormat, NoteError, OlderFormat
from audits.exchange import canonical
from audits.external_evidence import ExternalEvidence
from audits.log_files import Snapshot, lines_from
from audits.signed_note import Note, VerifierKey
from audits.signed_tree import TREE
from audits.tree import Nodes, TreeFile, consistency_proof, consistent, includes, inclusion_proof
from audits.witness import KEYS, read_keys

_NEWEST = 64
"""The number of checkpoints remembered while searching for the newest that others cosigned."""


_STRICT = {"extra": "forbid"}
"""The configuration for reading these classes from JSON with pydantic."""


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
    """Entries of a site's audit log with their proofs."""

    __pydantic_config__: ClassVar = _STRICT

    key: str
    """The site's verifier key, as `medfedvqa audit key` shows it."""
    others: tuple[str, ...]
    """The verifier keys of the cosigners, as the site knows them."""
    checkpoint: str
    """The newest signed note over the whole log."""
    cosigned: CosignedCheckpoint | None
    first: int
    """Number of the first entry that is still in the log; those before it have expired."""
    entries: tuple[QuotedEntry, ...]


@dataclass(frozen=True)
class ExcerptFacts:
    """The content of an excerpt whose proofs hold."""

    checkpoint: Checkpoint
    cosigned: int
    """Entries under the checkpoint that others cosigned; 0 if none did."""
    cosigners: tuple[str, ...]


def quote(
    folder: Path, site: str, matches: Callable[[Mapping[str, Any]], bool], others: ExternalEvidence | None = None
) -> Excerpt:
    """Quotes the log's entries under its newest checkpoint for whose record `matches` is true.

    `others`: other parties' evidence, which may have a newer cosigned checkpoint than the site's own folder. Raises
    `LogError` if there is no log, checkpoint or tree, and `NoteError` if a key or a note is malformed.
    """
    first = Snapshot(folder).first() or 0
    keys = read_keys(folder / KEYS)
    key, note = keys.get(origin_of(site)), NoteFile(folder / CHECKPOINTS).latest()
    if key is None or note is None:
        raise LogError("the audit log is not signed: let the site sign it first")
    size = Checkpoint.parse(note.text).size
    tree = _tree(folder)
    try:
        notes = [*NoteFile(folder / CHECKPOINTS), *(others.notes[key.name] if others else ())]
        cosigners = {entry_key for name in others.keys for entry_key in others.keys[name]} if others else set()
        cosigned, signers = _newest_cosigned(notes, key, {*keys.values(), *cosigners}, tree.node, size)
        quotes = []
        for seq, line in enumerate(lines_from(folder, first), first):
            if seq >= size:
                break
            if matches(record := parse_line(line)):
                quotes.append(QuotedEntry(record=record, proof=_encode_proof(inclusion_proof(tree.node, seq, size))))
    except (OSError, ValueError):
        raise LogError("the log or its tree cannot be read: have the log verified") from None
    finally:
        tree.close()
    return Excerpt(
        key=str(key),
        others=tuple(str(entry_key) for entry_key in signers),
        checkpoint=str(note),
        cosigned=cosigned,
        first=first,
        entries=tuple(quotes),
    )


def check_excerpt(excerpt: Excerpt, site: str) -> ExcerptFacts:
    """Checks an excerpt of the log of `site` for a reader who trusts its key.

    Raises `NoteError` if a signature or a proof does not hold, or an entry is not as it was written.
    """
    key, note = VerifierKey.parse(excerpt.key), Note.parse(excerpt.checkpoint)
    head = Checkpoint.parse(note.text)
    if key.name != origin_of(site) or head.origin != key.name or not key.signed(note):
        raise NoteError("the checkpoint is not signed by the site's key")
    if not 0 <= excerpt.first <= head.size:
        raise NoteError("the oldest entry in the excerpt is not in the log")
    before = excerpt.first - 1
    for entry in excerpt.entries:
        number = _check_entry(entry, site, head)
        if number <= before:
            raise NoteError("the entries are repeated, or not in the order of the log")
        before = number
    if excerpt.cosigned is None:
        if excerpt.others:
            raise NoteError("the excerpt has keys of parties that cosigned nothing")
        return ExcerptFacts(head, 0, ())
    return _check_cosigned(excerpt, excerpt.cosigned, key, head)


def quoted_entries(excerpt: Excerpt) -> tuple[Entry, ...]:
    """The entries, in order. Raises `LogError`, and `NewerFormat` if one has members unknown to this version."""
    for entry in excerpt.entries:
        if parse_any(canonical(entry.record) + b"\n")[1]:
            raise NewerFormat("an entry of the audit log")
    return tuple(Entry.from_record(entry.record) for entry in excerpt.entries)


def _check_entry(entry: QuotedEntry, site: str, head: Checkpoint) -> int:
    """The number of an entry, after checking that it is unchanged and under the checkpoint."""
    try:
        record, _ = parse_any(canonical(entry.record) + b"\n")
    except OlderFormat:
        raise
    except (LogError, ValueError, TypeError):
        raise NoteError("an entry was changed: its hash does not match") from None
    number: int = record["seq"]
    if record["site"] != site:
        raise NoteError(f"entry {number} belongs to another site's log")
    if not includes(bytes.fromhex(record["leaf_hash"]), number, head.size, _decode_proof(entry.proof), head.root):
        raise NoteError(f"the proof of entry {number} does not show that the signed log contains it")
    return number


def _check_cosigned(excerpt: Excerpt, newest: CosignedCheckpoint, key: VerifierKey, head: Checkpoint) -> ExcerptFacts:
    note = Note.parse(newest.checkpoint)
    old = Checkpoint.parse(note.text)
    if old.origin != key.name or not key.signed(note):
        raise NoteError("the checkpoint that others cosigned is not signed by the site's key")
    if not consistent(old.size, head.size, old.root, head.root, _decode_proof(newest.proof)):
        raise NoteError("nothing shows that the log continues the checkpoint that others cosigned")
    others = [VerifierKey.parse(cosigner) for cosigner in excerpt.others]
    if not others or not all(cosigner != key and cosigner.cosigned(note) is not None for cosigner in others):
        raise NoteError("a cosignature that is listed is missing from the checkpoint")
    return ExcerptFacts(head, old.size, tuple(cosigner.name for cosigner in others))


def _newest_cosigned(
    notes: Iterable[Note], key: VerifierKey, keys: Collection[VerifierKey], nodes: Nodes, size: int
) -> tuple[CosignedCheckpoint | None, list[VerifierKey]]:
    """The largest checkpoint that others cosigned with known keys, with all their signatures."""
    joined_notes: OrderedDict[str, Note] = OrderedDict()
    for note in notes:
        joined_notes[note.text] = joined_notes.pop(note.text).joined(note) if note.text in joined_notes else note
        if len(joined_notes) > _NEWEST:
            joined_notes.popitem(last=False)
    for note in sorted(joined_notes.values(), key=lambda other: Checkpoint.parse(other.text).size, reverse=True):
        others = sorted((other for other in keys if other != key and other.cosigned(note) is not None), key=str)
        if others and key.signed(note) and Checkpoint.parse(note.text).size <= size:
            signers = {key.name, *(other.name for other in others)}
            note = Note(note.text, tuple(other for other in note.signatures if other[0] in signers))
            proof = consistency_proof(nodes, Checkpoint.parse(note.text).size, size)
            return CosignedCheckpoint(checkpoint=str(note), proof=_encode_proof(proof)), others
    return None, []


def _tree(folder: Path) -> TreeFile:
    try:
        return TreeFile(folder / TREE, write=False)
    except OSError:
        raise LogError("the log's tree is missing: copy the whole audit folder, or let the site sign again") from None


def _encode_proof(proof: list[bytes]) -> tuple[str, ...]:
    return tuple(base64.b64encode(node).decode() for node in proof)


def _decode_proof(proof: tuple[str, ...]) -> list[bytes]:
    try:
        return [base64.b64decode(node, validate=True) for node in proof]
    except (ValueError, binascii.Error):
        raise NoteError("a proof contains something that is not a hash") from None
