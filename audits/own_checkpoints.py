"""The checkpoints that lie beside a log."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from audits.checkpoint import CHECKPOINTS, Checkpoint, NoteFile
from audits.errors import NoteError
from audits.note import Note

_COSIGNED = 64
"""The newest cosigned checkpoints that are looked at: each covers all before it."""


class OwnCheckpoints:
    """The log's own checkpoints, read as the walk comes to their sizes; of their signatures the newest's is checked.

    An earlier one whose root is that of the log adds nothing that a signature could make truer.
    """

    def __init__(self, folder: Path) -> None:
        self._file = NoteFile(folder / CHECKPOINTS)
        self.newest, self.cosigned, self.unreadable = self._gathered()
        self._heads = iter(()) if self.unreadable else self._file.heads()
        self._next = self._advance(0)

    def _gathered(self) -> tuple[Note | None, list[Note], str]:
        cosigned: deque[bytes] = deque(maxlen=_COSIGNED)
        try:
            for _, _, signatures, written in self._file.heads():
                if signatures > 1:
                    cosigned.append(written)
            return self._file.latest(), [Note.parse(written.decode(errors="replace")) for written in cosigned], ""
        except NoteError as error:
            return None, [], str(error)

    def due(self, size: int) -> list[bytes]:
        """The roots of the checkpoints of this size."""
        roots: list[bytes] = []
        while self._next[0] == size:
            roots.append(self._next[1])
            self._next = self._advance(size)
        return roots

    def _advance(self, size: int) -> tuple[int, bytes]:
        """The next one in the file that is not smaller: those that were stored again, with cosignatures, come later."""
        for found, root, _, _ in self._heads:
            if found >= size:
                return found, root
        return -1, b""

    @property
    def size(self) -> int:
        """How many entries the newest covers."""
        return Checkpoint.parse(self.newest.text).size if self.newest else 0

    def dated(self) -> Iterator[Checkpoint]:
        """Those whose own times count: the newest, and those that others have cosigned."""
        for note in [*self.cosigned, *([self.newest] if self.newest else [])]:
            yield Checkpoint.parse(note.text)
