"""Compares the public form of a log with the log itself, while the log is read."""

from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path

from audits.checkpoint import Checkpoint, origin_of
from audits.errors import LogError, NoteError
from audits.judgement import BROKEN, NOT_SHOWN, SHOWN, VerdictPart
from audits.log_files import lines_from
from audits.signed_note import Note, VerifierKey
from audits.tiles import (
    ENTRIES,
    HEIGHT,
    MAX_ENTRY,
    PUBLIC,
    WIDTH,
    entry_of,
    first_bundle,
    published_note,
    read_bundle,
    read_tile,
    tile_path,
)
from audits.tree import Frontier

PART = "tiles"
_ANEW = "make the public form anew with 'medfedvqa audit publish --anew'"


class TileVerifier(Frontier):
    """Builds a log's tree while the log is read. It compares each full tile, and each last tile of the published
    checkpoint, as soon as the tree reaches the tile's end. Memory does not grow with the log.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._home = folder, folder / PUBLIC
        self._note: Note | None = None
        self._root, self._published = b"", 0
        self._rows: list[list[bytes]] = [[]]
        """The nodes of the tile that is not full yet, for each level."""
        self._entries: list[bytes | None] = []
        """Entries under the nodes of level 0; None for one that has expired, or is too long for a bundle."""
        self._fault: VerdictPart | None = None
        try:
            self._note = published_note(self._home)
        except NoteError as error:
            self._set_fault(f"{error}: {_ANEW}")
        if self._note:
            checkpoint = Checkpoint.parse(self._note.text)
            self._published, self._root = checkpoint.size, checkpoint.root

    def append(self, leaf: bytes, entry: bytes | None = None) -> list[bytes]:
        """Like `Frontier.append`, and also compares the tiles that this leaf completes."""
        complete = super().append(leaf)
        if self.size <= self._published and self._fault is None:
            self._rows[0].append(leaf)
            self._entries.append(entry if entry and len(entry) <= MAX_ENTRY else None)
            if len(self._rows[0]) == WIDTH:
                self._compare_full(complete)
            if self.size == self._published:
                self._compare_last()
        return complete

    def parts(self, site: str, key: VerifierKey | None, broken: bool) -> Iterator[VerdictPart]:
        """Yields the verdict after the log was read; nothing if there is no public form.

        `broken`: the log could not be read to its end. `key`: the site's key, if it is known.
        """
        if self._note and self._fault is None:
            self._check_note(self._note, site, key)
        if self._fault:
            yield self._fault
        elif self._note and self.size < self._published and broken:
            yield VerdictPart(PART, NOT_SHOWN, "the chain breaks before the published checkpoint")
        elif self._note and self.size < self._published:
            yield VerdictPart(PART, BROKEN, "the published checkpoint is of more entries than the log has", self.size)
        elif self._note:
            text = f"the published checkpoint, of {self._published} entries, and its tiles are of these entries"
            yield VerdictPart(PART, SHOWN, text)

    def _check_note(self, note: Note, site: str, key: VerifierKey | None) -> None:
        if Checkpoint.parse(note.text).origin != origin_of(site) or (key and not key.signed(note)):
            self._set_fault("the published checkpoint is not signed by the site's key")

    def _compare_full(self, complete: list[bytes]) -> None:
        """Compares the tiles that end with the last leaf. `complete`: the nodes that this leaf completed, by level."""
        level = 0
        while len(self._rows[level]) == WIDTH:
            self._compare(level)
            self._rows[level].clear()
            level += 1
            if level == len(self._rows):
                self._rows.append([])
            self._rows[level].append(complete[HEIGHT * level])

    def _compare_last(self) -> None:
        """Compares the root, and the tiles that are not full yet."""
        if self.root() != self._root:
            self._set_fault("the published checkpoint is of other entries than the log has", self.size - 1)
        for level in (level for level, row in enumerate(self._rows) if row):
            self._compare(level)

    def _compare(self, level: int) -> None:
        row = self._rows[level]
        index = (self.size >> HEIGHT * level) // WIDTH - (len(row) == WIDTH)
        try:
            same = read_tile(self._home, level, index, len(row)) == b"".join(row)
        except OSError:
            same = False
        if not same:
            self._set_tile_fault(level, index, len(row), index * WIDTH << HEIGHT * level)
        if level == 0:
            self._compare_bundle(index, row)
            self._entries.clear()

    def _compare_bundle(self, index: int, leaves: list[bytes]) -> None:
        try:
            entries = read_bundle(self._home, index, len(leaves))
            if entries == self._entries:
                return
            digests = [sha256(b"\0" + entry).digest() for entry in entries]
        except FileNotFoundError:
            digests = leaves if self._may_lack(index, leaves) else []
        except (OSError, ValueError):
            digests = []
        if digests != leaves:
            pairs = zip(digests, leaves, strict=False)
            same = next((number for number, (digest, leaf) in enumerate(pairs) if digest != leaf), len(digests))
            self._set_tile_fault(ENTRIES, index, len(leaves), index * WIDTH + min(same, len(leaves) - 1))

    def _may_lack(self, index: int, leaves: list[bytes]) -> bool:
        """Whether lines of the bundle have expired, or one is too long for a bundle."""
        try:
            if index < first_bundle(self._folder):
                return True
            lines = islice(lines_from(self._folder, index * WIDTH), len(leaves))
            entries = (entry_of(line, leaf) for line, leaf in zip(lines, leaves, strict=False))
            return any(entry is not None and len(entry) > MAX_ENTRY for entry in entries)
        except (LogError, OSError):
            return False

    def _set_tile_fault(self, level: int | str, index: int, width: int, entry: int) -> None:
        path = f"{PUBLIC}/{tile_path(level, index, width)}"
        self._set_fault(f"'{path}' is missing, cut or altered: {_ANEW}", entry)

    def _set_fault(self, text: str, entry: int | None = None) -> None:
        self._fault = self._fault or VerdictPart(PART, BROKEN, text, entry)
