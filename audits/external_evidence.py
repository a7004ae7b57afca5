"""Other parties' evidence about a site's log: cosigned checkpoints, known keys, and the server's receipts."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from audits.bounded_files import MAX_NOTES
from audits.checkpoint import (
    CHECKPOINTS,
    SUCCESSIONS,
    Checkpoint,
    NoteFile,
    SucceededKey,
    Succession,
    origin_of,
    read_successions,
)
from audits.entry import Event, LogLine, Outcome
from audits.errors import LogError, NoteError
from audits.log_files import RECEIPTS, segments
from audits.signed_note import Note, VerifierKey
from audits.verifier import Walk
from audits.witness import EVIDENCE, KEYS, WITNESSED, read_keys


@dataclass
class ExternalEvidence:
    """Notes and keys from folders and files of others; nothing here is trusted before its signature is checked."""

    keys: defaultdict[str, set[VerifierKey]] = field(default_factory=lambda: defaultdict(set))
    """Keys by the name of their log, from all parties."""
    notes: defaultdict[str, list[Note]] = field(default_factory=lambda: defaultdict(list))
    """Checkpoints by origin."""
    receipts: list[Path] = field(default_factory=list)
    """Folders of servers' logs of received messages."""
    successions: list[Succession] = field(default_factory=list)
    """Successions of keys, of any log."""

    @classmethod
    def gather(cls, places: Iterable[Path], but: Path) -> "ExternalEvidence":
        """Collects evidence from these files and all files below these folders, except the checked log in `but`.

        Raises `LogError` if a place does not exist, or a file is not what its name says.
        """
        evidence, taken = cls(), set()
        for place in places:
            if not place.exists():
                raise LogError("a place of --against does not exist: give a file of notes, or a folder")
            if not (place.is_file() or place.is_dir()):
                raise LogError("a place of --against is neither a plain file nor a folder")
            files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
            for path in files:
                if path.resolve() not in taken and path.resolve().parent != but.resolve():
                    evidence._take(path, place.is_file())
                    taken.add(path.resolve())
        return evidence

    def _take(self, path: Path, is_given: bool) -> None:
        if path.name == KEYS:
            for key in read_keys(path).values():
                self.keys[key.name].add(key)
        elif (
            is_given
            or path.name in (WITNESSED, CHECKPOINTS)
            or path.name.startswith(EVIDENCE)
            or path.suffix == ".note"
        ):
            if path.stat().st_size > MAX_NOTES:
                raise LogError(f"a file of notes has more than {MAX_NOTES} bytes: give the newest of them")
            for note in NoteFile(path):
                self.notes[Checkpoint.parse(note.text).origin].append(note)
        if path.name == SUCCESSIONS:
            self.successions += read_successions(path)
        if path.parent.name == RECEIPTS and path in segments(path.parent) and path.parent not in self.receipts:
            self.receipts.append(path.parent)


@dataclass(frozen=True)
class Claims:
    """The evidence about one site's log, with the signatures checked by the keys that are known for it."""

    sizes: dict[int, bytes]
    """Roots by size that the log's own key signed and others hold, without the sizes in `forks`."""
    forks: tuple[int, ...]
    """Sizes for which two roots are signed with the log's own key."""
    key: SucceededKey | None
    """The log's own key, as far as it is known."""
    other_keys: bool
    """Whether others know the log by another key, or hold checkpoints signed by another key."""
    parties: tuple[str, ...]
    """Who cosigned, by keys that others vouch for."""

    @property
    def covered(self) -> int:
        """The number of entries under the largest checkpoint that others hold; 0 without one."""
        return max(self.sizes, default=0)


def claims_on(site: str, key: SucceededKey | None, own_notes: Iterable[Note], evidence: ExternalEvidence) -> Claims:
    """Checks others' evidence about the log of `site` with `key`. Without a key, only `other_keys` can be found.

    `own_notes`: the log's own checkpoints, whose cosignatures count if others vouch for the cosigner's key.
    """
    origin, own_notes = origin_of(site), list(own_notes)
    roots: defaultdict[int, set[bytes]] = defaultdict(set)
    parties: set[str] = set()
    for note in evidence.notes[origin] if key else ():
        if key and key.signed(note):
            checkpoint = Checkpoint.parse(note.text)
            roots[checkpoint.size].add(checkpoint.root)
            parties |= _cosigners(note, evidence)
    for note in own_notes:
        names = _cosigners(note, evidence)
        if names and key and key.signed(note):
            checkpoint = Checkpoint.parse(note.text)
            roots[checkpoint.size].add(checkpoint.root)
            parties |= names
    return Claims(
        sizes={size: next(iter(checkpoint)) for size, checkpoint in roots.items() if len(checkpoint) == 1},
        forks=tuple(sorted(size for size, checkpoint in roots.items() if len(checkpoint) > 1)),
        key=key,
        other_keys=_other_keys(origin, key, own_notes, evidence),
        parties=tuple(sorted(parties)),
    )


def _other_keys(origin: str, key: SucceededKey | None, own_notes: Iterable[Note], evidence: ExternalEvidence) -> bool:
    """Whether others know the log by another key, or hold a note signed by another key, or by a retired key beyond its
    last valid size.

    Where no key is known, "another key" is any key that did not sign the log's own notes.
    """
    retired = key.retired if key else ()
    if key and any(s.old.signed(note) and not key.signed(note) for s in retired for note in evidence.notes[origin]):
        return True
    ids = key.ids if key else _ids(origin, own_notes)
    others = _ids(origin, evidence.notes[origin])
    strangers = key is not None and not all(map(key.knows, evidence.keys[origin]))
    return strangers or bool(ids and others - ids)


def _ids(origin: str, notes: Iterable[Note]) -> frozenset[bytes]:
    """The ids of the keys that signed these notes under the log's own name."""
    return frozenset(key_id for note in notes for key_id in note.ids_of(origin))


def _cosigners(note: Note, evidence: ExternalEvidence) -> set[str]:
    names = {name for name, _ in note.signatures}
    return {name for name in names if any(key.cosigned(note) for key in evidence.keys.get(name, ()))}


def receipts_of(site: str, folder: Path) -> dict[bytes, int]:
    """The digest of each message that a server's log says it received from a site, with the receipt's number.

    Raises `NoteError` if the receipts' own chain does not hold.
    """
    digests: dict[bytes, int] = {}
    walk = Walk(folder)
    for line in walk:
        if line.event == Event.RECEIVE and line.outcome == Outcome.ACCEPTED and line.peer == site:
            digests[matching(line)] = line.seq
    if walk.bad:
        raise NoteError("the chain of the server's receipts is broken: ask for another copy")
    return digests


def matching(line: LogLine) -> bytes:
    """A digest that is equal for a release in a site's log and its receipt in the server's log."""
    members = line.job, line.round, line.task, line.tensors
    return hashlib.sha256(msgspec.json.encode(members)).digest()[:16]
