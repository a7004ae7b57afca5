"""The public form of a log, and its writer: the checkpoint, hash tiles and entry bundles that standard clients read.

Source: C2SP tlog-tiles. A tile at level L holds 256 nodes of the tree, 8 * L levels above its leaves; the last one of
a level may hold fewer, and has its width in its name. A bundle holds the 256 entries under a tile of level 0, each
after its length in two bytes. An entry there is the bytes that its `leaf_hash` covers: its line without that member and
without the line feed. An entry of more than 65,535 bytes fits in no bundle: the bundle that would hold it is left out.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path

from audits.bounded_files import read_bounded
from audits.checkpoint import Checkpoint
from audits.entry import hashed_bytes
from audits.errors import LogError, NoteError
from audits.log_files import first_entry, segments, sync_folder
from audits.signed_note import MAX_NOTE, Note
from audits.tree import HASH_BYTES, Frontier, Nodes, TreeFile, root_of
from audits.witness import replace_durably

PUBLIC = "tlog"
"""The folder of the public form, next to the log."""
PUBLISHED = "checkpoint"
ENTRIES = "entries"
HEIGHT = 8
WIDTH = 1 << HEIGHT
MAX_ENTRY = (1 << 16) - 1
"""The most bytes of an entry in a bundle."""
MAX_BUNDLE = WIDTH * (2 + MAX_ENTRY)
_DAMAGED = "the log's tree is damaged: remove its file 'tree', which is made anew as long as no line has expired"


def tile_path(level: int | str, index: int, width: int = WIDTH) -> str:
    """The path of a tile, or of a bundle at level `ENTRIES`: `tile/0/x001/x234/067`, `tile/0/067.p/8`."""
    name = f"{index % 1000:03d}"
    while index := index // 1000:
        name = f"x{index % 1000:03d}/{name}"
    partial = "" if width == WIDTH else f".p/{width}"
    return f"tile/{level}/{name}{partial}"


def rows(size: int) -> Iterator[tuple[int, int]]:
    """Each level of tiles in a tree of `size` leaves, and the number of nodes in that level's tiles."""
    level = 0
    while size:
        yield level, size
        level, size = level + 1, size >> HEIGHT


def tile_of(nodes: Nodes, level: int, index: int, width: int) -> bytes:
    """The nodes of a tile. Raises `LogError` if the tree's file lacks them or contradicts itself."""
    first, height = index * WIDTH, HEIGHT * level
    try:
        hashes = [nodes(height, first + number) for number in range(width)]
        above = root_of(lambda up, number: nodes(height + up, (first >> up) + number), width)
    except ValueError:
        raise LogError(_DAMAGED) from None
    tree = Frontier()
    for node in hashes:
        tree.append(node)
    if tree.root() != above:
        raise LogError(_DAMAGED)
    return b"".join(hashes)


def entry_of(line: bytes, leaf: bytes) -> bytes | None:
    """The bytes of a line that its leaf hash covers; None if `leaf` is not the hash of this line."""
    entry = hashed_bytes(line, leaf.hex())
    return entry if sha256(b"\0" + entry).digest() == leaf else None


def bundle_of(entries: Iterable[bytes]) -> bytes:
    """The bundle of these entries, none longer than `MAX_ENTRY`."""
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def entries_in(bundle: bytes) -> Iterator[bytes]:
    """The entries of a bundle. Raises `ValueError` if it ends within one."""
    at, size = 0, len(bundle)
    while at < size:
        begin = at + 2
        at = begin + int.from_bytes(bundle[at:begin])
        if at > size:
            raise ValueError("the bundle ends within an entry")
        yield bundle[begin:at]


def read_tile(home: Path, level: int, index: int, width: int) -> bytes:
    """The first `width` nodes of a tile, from the full tile if that has replaced the partial one. Raises `OSError`."""
    content, wider = _read(home, level, index, width, WIDTH * HASH_BYTES)
    return content[: width * HASH_BYTES] if wider else content


def read_bundle(home: Path, index: int, width: int) -> list[bytes]:
    """The first `width` entries of a bundle, from the full bundle if that has replaced the partial one.

    If a partial bundle holds more entries than `width`, the result has `width` + 1, so that the caller sees the fault.

    Raises `OSError`, `ValueError`.
    """
    content, wider = _read(home, ENTRIES, index, width, MAX_BUNDLE)
    return list(islice(entries_in(content), width if wider else width + 1))


def published_note(home: Path) -> Note | None:
    """The checkpoint of the public form; None if there is none. Raises `NoteError` if the file holds something else."""
    try:
        note = Note.parse(read_bounded(home / PUBLISHED, MAX_NOTE).decode())
        Checkpoint.parse(note.text)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise NoteError("the published checkpoint is not a signed checkpoint") from None
    return note


def first_bundle(folder: Path) -> int:
    """The number of the first bundle whose lines have not expired. Raises `LogError`, `OSError`."""
    files = segments(folder)
    first = first_entry(files[0]) if files else None
    return -(-(first or 0) // WIDTH)


def _read(home: Path, level: int | str, index: int, width: int, limit: int) -> tuple[bytes, bool]:
    """The content of a tile or bundle, and whether it is the full one, which has replaced the partial one."""
    try:
        return read_bounded(home / tile_path(level, index, width), limit), False
    except FileNotFoundError:
        if width == WIDTH:
            raise
        # A partial tile goes when the full one is there.
        return read_bounded(home / tile_path(level, index), limit), True


Lines = Callable[[int], Iterable[bytes]]
"""Maps the number of an entry to the log's lines from that entry on."""


class TileWriter:
    """Writes the public form of the log in `folder`. Callers must hold the log's lock.

    Full tiles are written once. Partial ones are kept until the full tile is published, because a client may hold a
    checkpoint that was published meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._home = folder, folder / PUBLIC
        self._files: set[Path] = set()
        self._folders: set[Path] = set()
        # What was written since the last sync; below, how many entries were published when this object last looked.
        self._size = 0

    def publish(self, note: Note, tree: TreeFile, lines: Lines, lag: int = 1) -> bool:
        """Publishes a checkpoint if it covers `lag` entries more than the published one; returns whether it did.

        `tree` and `lines` belong to the signed log. A bundle is left out if a line of it has expired, is not the signed
        one, or is too long; the verifier finds out which. Raises `LogError`, `OSError`.
        """
        size = Checkpoint.parse(note.text).size
        if size - self._size < lag:
            return False
        before = self._size = self._published(tree)
        if size - before < lag:
            return False
        self._write_tiles(before, size, tree.node)
        self._write_bundles(before, size, tree.node, lines)
        self._sync()
        replace_durably(self._home / PUBLISHED, str(note))
        self._size = size
        self._drop_partials(before, size)
        return True

    def cosigned(self, note: Note) -> None:
        """Adds the note's signatures to the published checkpoint, if it has the same text. Raises `OSError`."""
        try:
            published = published_note(self._home)
        except NoteError:
            return  # The next checkpoint takes its place.
        if published and published.text == note.text:
            names = {name for name, _ in published.signatures}
            new = Note(note.text, tuple(item for item in note.signatures if item[0] not in names))
            if new.signatures:
                replace_durably(self._home / PUBLISHED, str(published.joined(new)))

    def remove(self) -> None:
        """Removes the public form, so that the next checkpoint rebuilds it. Raises `OSError`."""
        if self._home.exists():
            shutil.rmtree(self._home)
        self._size = 0

    def drop_expired(self) -> None:
        """Removes the bundles with lines that the log no longer has. Raises `LogError`, `OSError`."""
        if not self._home.exists():
            return
        for index in range(first_bundle(self._folder)):
            path = self._home / tile_path(ENTRIES, index)
            path.unlink(missing_ok=True)
            _remove_partials(path)
            if path.parent.exists():
                self._folders.add(path.parent)
        self._sync()

    def _published(self, tree: TreeFile) -> int:
        """The size of the published checkpoint; 0 if there is none of this log."""
        try:
            note = published_note(self._home)
        except NoteError:
            return 0
        published = Checkpoint.parse(note.text) if note else None
        return published.size if published and tree.holds(published.size, published.root) else 0

    def _write_tiles(self, before: int, size: int, nodes: Nodes) -> None:
        for level, count in rows(size):
            for index in range((before >> HEIGHT * level) // WIDTH, -(-count // WIDTH)):
                width = min(count - index * WIDTH, WIDTH)
                self._put(tile_path(level, index, width), tile_of(nodes, level, index, width))

    def _write_bundles(self, before: int, size: int, nodes: Nodes, lines: Lines) -> None:
        first = max(before // WIDTH, first_bundle(self._folder))
        earlier = self._published_entries(first, before - first * WIDTH, nodes)
        begin = first * WIDTH + len(earlier)
        numbered_lines = enumerate(islice(lines(begin), size - begin), begin) if begin < size else ()
        entries = chain(earlier, (entry_of(line, nodes(0, number)) for number, line in numbered_lines))
        for index in range(first, -(-size // WIDTH)):
            width = min(size - index * WIDTH, WIDTH)
            if (bundle := _bundle(islice(entries, WIDTH), width)) is not None:
                self._put(tile_path(ENTRIES, index, width), bundle)

    def _published_entries(self, index: int, width: int, nodes: Nodes) -> list[bytes]:
        """The entries of the partial bundle that is published, so that their lines need not be read again."""
        try:
            entries = read_bundle(self._home, index, width) if width > 0 else []
        except (OSError, ValueError):
            return []
        leaves = [nodes(0, index * WIDTH + number) for number in range(max(width, 0))]
        return entries if [sha256(b"\0" + entry).digest() for entry in entries] == leaves else []

    def _put(self, path: str, content: bytes) -> None:
        """Puts a file in its place, whole or not at all; it is on disk after the next `_sync`."""
        target = self._home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not _holds(target, content):  # else a process that died before it published has written it
            partial = self._home / ".partial"
            with open(partial, "wb", opener=_open_like_log) as file:
                file.write(content)
            partial.replace(target)
        self._files.add(target)
        self._folders.update(folder for folder in target.parents if folder.is_relative_to(self._folder))

    def _sync(self) -> None:
        for path in self._files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        for folder in self._folders:
            sync_folder(folder)
        self._files.clear()
        self._folders.clear()

    def _drop_partials(self, before: int, size: int) -> None:
        """Removes partial tiles if the full tile is published, also those that a crash left behind."""
        for level, count in rows(size):
            for index in range(max((before >> HEIGHT * level) // WIDTH - 1, 0), count // WIDTH):
                for name in (level, ENTRIES) if level == 0 else (level,):
                    path = self._home / tile_path(name, index)
                    if path.exists():
                        _remove_partials(path)


def _bundle(entries: Iterable[bytes | None], width: int) -> bytes | None:
    """The bundle of this many entries; None if one is missing or too long."""
    complete: list[bytes] = []
    for entry in entries:
        if entry is not None and len(entry) <= MAX_ENTRY:
            complete.append(entry)
    return bundle_of(complete) if len(complete) == width else None


def _open_like_log(path: str, flags: int) -> int:
    """Opens with the log's mode: only accounts that may read the lines may read a bundle."""
    return os.open(path, flags | os.O_CLOEXEC, 0o640)


def _holds(path: Path, content: bytes) -> bool:
    try:
        return read_bounded(path, len(content)) == content
    except OSError:
        return False


def _remove_partials(path: Path) -> None:
    partials = path.with_name(f"{path.name}.p")
    if partials.exists():
        shutil.rmtree(partials)
