"""How a log gets a new key: the old key and the new one both sign that the second succeeds the first.

Whoever knows the old key follows the statement to the new one, and still accepts the old key's signatures of earlier
entries. A thief of the old key could sign such a statement too, as well as checkpoints: a succession is for keys that
are replaced in time, not for stolen ones.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from audits.checkpoint import Checkpoint, NoteFile, time_text
from audits.errors import NoteError
from audits.signed_note import AuditKey, Note, VerifierKey

SUCCESSIONS = "successions"
"""The file of these statements beside a log, and in the folder of a witness."""
MAX_SUCCESSIONS = 64
"""Statements about one log that are read: a key a year outlasts every log."""
_TEXT = re.compile(r"(\S+)\nkey succession\nfrom (\S+)\nto (\S+)\nsize (0|[1-9][0-9]{0,17})\ntime (\S+)\n")


@dataclass(frozen=True)
class Succession:
    """A log's old key, the new key that succeeds it, and the largest number of entries whose checkpoints the old key
    may sign."""

    old: VerifierKey
    new: VerifierKey
    size: int
    note: Note

    @classmethod
    def parse(cls, note: Note) -> "Succession":
        """Reads a succession. Raises `NoteError` unless the note is one that both keys have signed."""
        match = _TEXT.fullmatch(note.text)
        if match is None:
            raise NoteError("this note is no succession of keys")
        old, new = VerifierKey.parse(match[2]), VerifierKey.parse(match[3])
        if not (old.name == new.name == match[1] and old != new and old.signed(note) and new.signed(note)):
            raise NoteError("a succession of keys is not signed by both of them")
        return cls(old, new, int(match[4]), note)


@dataclass(frozen=True)
class SucceededKey(VerifierKey):
    """A log's newest key. It also accepts its predecessors' signatures from the time when they were valid."""

    retired: tuple[Succession, ...] = ()

    def signed(self, note: Note) -> bool:
        """Whether the newest key signed the note, or a predecessor did while it was valid, by the checkpoint's size."""
        return super().signed(note) or any(
            each.old.signed(note) and Checkpoint.parse(note.text).size <= each.size for each in self.retired
        )

    @property
    def ids(self) -> frozenset[bytes]:
        """The ids of the newest key and all its predecessors."""
        return super().ids.union(*(each.old.ids for each in self.retired))

    def knows(self, key: VerifierKey) -> bool:
        """Whether this is the newest key or one of its predecessors."""
        return key.raw in {self.raw, *(each.old.raw for each in self.retired)}


def signed_succession(old: AuditKey, new: AuditKey, size: int) -> Note:
    """The statement, signed by both keys, for a log that has `size` entries now."""
    now = time_text(datetime.now(UTC))
    text = f"{old.public.name}\nkey succession\nfrom {old.public}\nto {new.public}\nsize {size}\ntime {now}\n"
    return old.sign(text).joined(new.sign(text))


def read_successions(path: Path) -> list[Succession]:
    """The statements in a file; none if there is no file. Raises `NoteError` for one that does not hold."""
    return [Succession.parse(note) for note in NoteFile(path)]


def text_of(successions: Iterable[Succession]) -> str:
    """The text of a file with these statements."""
    return "".join(f"{each.note}\n" for each in successions)


def succeeded(key: VerifierKey, successions: Iterable[Succession]) -> SucceededKey:
    """The newest key that these statements lead to from `key`, with all its predecessors."""
    statements = list(successions)[-MAX_SUCCESSIONS:]
    newest = VerifierKey(key.name, key.raw)
    for _ in statements:
        newest = next((each.new for each in statements if each.old == newest), newest)
    retired: list[Succession] = []
    oldest = newest
    while before := next((each for each in statements if each.new == oldest and each not in retired), None):
        retired.append(before)
        oldest = before.old
    return SucceededKey(newest.name, newest.raw, tuple(retired))
