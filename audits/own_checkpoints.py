"""The checkpoints that lie beside a log."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from audits.checkpoint import CHECKPOINTS, Checkpoint, NoteFile
from audits.errors import NoteError
from audits.signed_note import Note

_COSIGNED = 64
"""The newest cosigned checkpoints that are looked at: each covers all before it."""
_OVER_EXPIRED = 16
"""The first cosigned checkpoints over expired entries that are looked at."""


class OwnCheckpoints:
    """The log's own checkpoints, read as the walk comes to their sizes; of their signatures the newest's is checked.

    An earlier one whose root is that of the log adds nothing that a signature could make truer.
    """

    def __init__(self, folder: Path, first: int = 0) -> None:
        """`first`: the first entry that is still in the log; those before it have expired."""
        self._file, self._first = NoteFile(folder / CHECKPOINTS), first
        self.over_expired: list[Note] = []
        """The first cosigned checkpoints that cover all entries that have expired."""
        self.newest, self.cosigned, self.unreadable = self._gather()
        self._heads = iter(()) if self.unreadable else self._file.heads()
        self.next_size, self._next_root = self._advance(0)
        """How many entries the next checkpoint covers that is not asked for yet; -1 after the last."""

    def _gather(self) -> tuple[Note | None, list[Note], str]:
        cosigned: deque[bytes] = deque(maxlen=_COSIGNED)
        over_expired: list[bytes] = []
        try:
            for size, note_text in self._file.cosigned():
                cosigned.append(note_text)
                if 0 < self._first <= size and len(over_expired) < _OVER_EXPIRED:
                    over_expired.append(note_text)
            self.over_expired = list(map(_parse_note, over_expired))
            return self._file.latest(), list(map(_parse_note, cosigned)), ""
        except NoteError as error:
            return None, [], str(error)

    def roots_at(self, size: int) -> list[bytes]:
        """The roots of the checkpoints of this size."""
        roots: list[bytes] = []
        while self.next_size == size:
            roots.append(self._next_root)
            self.next_size, self._next_root = self._advance(size)
        return roots

    def _advance(self, size: int) -> tuple[int, bytes]:
        """The next one in the file that is not smaller: those that were stored again, with cosignatures, come later."""
        for head in self._heads:
            if head[0] >= size:
                return head
        return -1, b""

    @property
    def size(self) -> int:
        """How many entries the newest covers."""
        return Checkpoint.parse(self.newest.text).size if self.newest else 0

    def dated(self) -> Iterator[Checkpoint]:
        """Those whose own times count: the newest, and those that others have cosigned."""
        for note in [*self.cosigned, *([self.newest] if self.newest else [])]:
            yield Checkpoint.parse(note.text)


def _parse_note(note_text: bytes) -> Note:
    return Note.parse(note_text.decode(errors="replace"))
