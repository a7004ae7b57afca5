"""The public form of a log: the checkpoint, hash tiles and entry bundles that standard clients read.

Source: C2SP tlog-tiles. A tile at level L holds 256 nodes of the tree, 8 * L levels above its leaves; the last one of
a level may hold fewer, and has its width in its name. A bundle holds the 256 entries under a tile of level 0, each
after its length in two bytes. An entry there is the bytes that its `leaf_hash` covers: its line without that member and
without the line feed. An entry of more than 65,535 bytes fits in no bundle: the bundle that would hold it is left out.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path

from audits.bounded_files import read_bounded
from audits.checkpoint import Checkpoint
from audits.entry import hashed_bytes
from audits.errors import LogError, NoteError
from audits.log_files import first_entry, segments
from audits.signed_note import MAX_NOTE, Note
from audits.tree import HASH_BYTES, Frontier, Nodes, root_of

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
    """The first `width` nodes of a tile, also if the tile has become full since. Raises `OSError`."""
    content, wider = _read(home, level, index, width, WIDTH * HASH_BYTES)
    return content[: width * HASH_BYTES] if wider else content


def read_bundle(home: Path, index: int, width: int) -> list[bytes]:
    """The first `width` entries of a bundle, also if it has become full since; one more if it holds too many.

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
        raise NoteError("the published checkpoint is no signed checkpoint") from None
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
