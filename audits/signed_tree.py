"""The Merkle tree over a log's entries, and the checkpoints of it that the site signs."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from audits.checkpoint import CHECKPOINTS, Checkpoint, NoteFile, signed_checkpoint
from audits.errors import LogError
from audits.signed_note import AuditKey, Note, VerifierKey
from audits.tiles import Lines, TileWriter
from audits.tree import TreeFile, consistency_proof, root_of

TREE = "tree"
Link = tuple[bytes, bytes]
"""An entry's `prev_hash` and `leaf_hash`."""
_REWRITTEN = "the audit log is not the one that was signed before: it was rewritten, have it verified"
_RECENT = 256
"""The number of recent checkpoints for which stored cosignatures are remembered, so that none is stored twice."""


class Anchor:
    """Tree and checkpoints of the log in `folder`. Callers must hold the log's lock."""

    def __init__(self, folder: Path, key: AuditKey) -> None:
        """Raises `OSError`."""
        self.key = key
        self._tree = TreeFile(folder / TREE)
        self._file = NoteFile(folder / CHECKPOINTS)
        self._tiles = TileWriter(folder)
        self._last: Note | None = None
        self._sound = False
        self._cosigned: OrderedDict[str, set[str]] = OrderedDict()

    def close(self) -> None:
        """Closes the files."""
        self._tree.close()

    def last(self) -> Checkpoint | None:
        """The newest checkpoint. Raises `NoteError`."""
        self._last = self._file.latest()
        return Checkpoint.parse(self._last.text) if self._last else None

    def sign(self, size: int, head: bytes, links: Callable[[int], Iterable[Link]]) -> Note:
        """Signs a checkpoint of the present log, with `size` entries and the last leaf hash `head`, if any are new.

        `links(i)` gives the hashes from entry i on. Raises `LogError` unless they continue the signed entries.
        """
        last = self.last()
        before = last.size if last else 0
        if not self._sound and not (last is None or self._tree.holds(before, last.root)):
            self._tree.extend(0, self._checked_leaves(0, links))  # the rebuilt tree must have the signed root
        if self._tree.extend(before, self._checked_leaves(before, links)) != size or self._leaf_before(size) != head:
            raise LogError(_REWRITTEN)
        if last and not (self._sound or self._tree.holds(before, last.root)):
            raise LogError(_REWRITTEN)
        self._sound = True
        if last and self._last and before == size:
            return self._last
        note = signed_checkpoint(self.key, size, root_of(self._tree.node, size))
        self._file.append([note])
        self._last = note
        return note

    def publish(self, note: Note, lines: Lines, lag: int = 1, anew: bool = False) -> bool:
        """Updates the log's public form to a checkpoint of at least `lag` more entries; returns whether it did.

        `anew`: rebuilds all of it. `lines(begin)`: the log's lines from entry `begin` on. Raises `LogError`, `OSError`.
        """
        if anew:
            self._tiles.remove()
        return self._tiles.publish(note, self._tree, lines, lag)

    def drop_expired(self) -> None:
        """Removes expired lines from the public form. Raises `LogError`, `OSError`."""
        self._tiles.drop_expired()

    def _leaf_before(self, index: int) -> bytes:
        return self._tree.node(0, index - 1) if index else bytes(32)

    def _checked_leaves(self, begin: int, links: Callable[[int], Iterable[Link]]) -> Iterator[bytes]:
        before = self._leaf_before(begin)
        for prev, leaf in links(begin):
            if prev != before:
                raise LogError(_REWRITTEN)
            yield leaf
            before = leaf

    def sync(self) -> None:
        """Writes the tree to disk; afterwards lines may be deleted."""
        self._tree.sync()

    def proof(self, old: int, new: int) -> list[bytes]:
        """The proof that the log of `new` entries, which has a checkpoint, begins with the log of `old` entries."""
        return consistency_proof(self._tree.node, old, new)

    def contradicts(self, other: Checkpoint, size: int) -> bool:
        """Whether a checkpoint of this log contradicts its `size` signed entries."""
        return other.size > size or not (other.size == 0 or self._tree.holds(other.size, other.root))

    def cosigned(self, notes: Iterable[Note], keys: Iterable[VerifierKey]) -> int:
        """Stores cosignatures of this log's checkpoints, each witness's once; returns how many were new."""
        keys_by_name = {key.name: key for key in keys if key.name != self.key.public.name}
        new_notes = [new_note for note in notes if (new_note := self._new(note, keys_by_name))]
        if new_notes:
            self._file.append(new_notes)
            for note in new_notes:
                self._tiles.cosigned(note)
        return len(new_notes)

    def _new(self, note: Note, keys: dict[str, VerifierKey]) -> Note | None:
        if not self.key.public.signed(note):
            return None
        earlier = self._cosigned.setdefault(note.text, set())
        names = {name for name, _ in note.signatures} - earlier
        valid = {name for name in names if name in keys and keys[name].cosigned(note) is not None}
        earlier |= valid
        while len(self._cosigned) > _RECENT:
            self._cosigned.popitem(last=False)
        valid_signatures = tuple(
            item for item in note.signatures if item[0] in valid or item[0] == self.key.public.name
        )
        return Note(note.text, valid_signatures) if valid else None


def signed_size(folder: Path) -> int:
    """The number of entries under the newest checkpoint in the folder; 0 without one. Raises `NoteError`."""
    note = NoteFile(folder / CHECKPOINTS).latest()
    return Checkpoint.parse(note.text).size if note else 0


def expired_leaves(folder: Path, count: int) -> Iterator[bytes]:
    """The leaf hashes of the first `count` entries, which have no lines any more. Raises `LogError`."""
    with _open_tree(folder) as tree:
        for index in range(count):
            yield tree.node(0, index)


@contextmanager
def _open_tree(folder: Path) -> Iterator[TreeFile]:
    try:
        tree = TreeFile(folder / TREE, write=False)
        try:
            yield tree
        finally:
            tree.close()
    except (OSError, ValueError):
        raise LogError("hashes of expired entries are missing: restore the log's file 'tree' from a backup") from None
