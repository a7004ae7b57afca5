"""Checkpoints: signed heads of a log's tree, and the files that hold them; and how a log gets a new key, by a statement
that the old key and the new one both sign.

Source: C2SP tlog-checkpoint. The text is the log's origin, its size and root, and extension lines: `format 1` and the
time.

Whoever knows the old key follows the statement to the new one, and still accepts the old key's signatures of earlier
entries. A thief of the old key could sign such a statement too, as well as checkpoints: a succession is for keys that
are replaced in time, not for stolen ones.
"""

import base64
import binascii
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from audits.bounded_files import open_plain
from audits.errors import NoteError
from audits.signed_note import DASH, MAX_NOTE, AuditKey, Note, VerifierKey
from audits.tree import HASH_BYTES

ORIGIN = "medfedvqa/audit/"
FORMAT = 1
"""The format number of the extension lines that this version writes."""
CHECKPOINTS = "checkpoints"
TAIL = 4 * MAX_NOTE  # bytes that are searched for the newest checkpoint
MAX_LINES = 1000
_END = re.compile(DASH.encode() + rb"[^\n]*\n\n")
_BODY = rb"[^\n]++\n(0|[1-9][0-9]{0,17})\n([A-Za-z0-9+/]{43}=)\n(?:[^\n]++\n)*+\n"
_SIGNATURE = rb"(?:%s[^\n]*+\n)" % DASH.encode()
_NOTE = re.compile(rb"(%s%s++)\n" % (_BODY, _SIGNATURE))
_COSIGNED = re.compile(rb"(?:%s%s\n)*+(?:%s)?+" % (re.sub(rb"\((?!\?)", b"(?:", _BODY), _SIGNATURE, _NOTE.pattern))
"""Skips runs of notes with one signature (most of them), five times as fast as matching them one by one."""
_SIZE = re.compile(r"0|[1-9][0-9]{0,17}")
_EXTENSION = re.compile(r"([a-z]+) (\S{1,40})")


def origin_of(site: str) -> str:
    """The name of a site's log, and of the key that signs it."""
    return ORIGIN + site


@dataclass(frozen=True)
class Checkpoint:
    """The state of a log: its number of entries and their root; `extension_lines` follow the root."""

    origin: str
    size: int
    root: bytes
    extension_lines: tuple[str, ...] = ()

    @property
    def extensions(self) -> dict[str, str]:
        """The extension lines by their first words; none unless they are of this version's format."""
        matches = [match for line in self.extension_lines if (match := _EXTENSION.fullmatch(line))]
        values = {match[1]: match[2] for match in matches}
        return values if values.get("format") == str(FORMAT) else {}

    @property
    def text(self) -> str:
        """The signed text; `parse` reads it back."""
        lines = self.origin, str(self.size), base64.b64encode(self.root).decode(), *self.extension_lines
        return "".join(f"{line}\n" for line in lines)

    @classmethod
    def parse(cls, text: str) -> "Checkpoint":
        """Reads a checkpoint. Raises `NoteError` unless the text is exactly what `text` would write."""
        try:
            origin, size, root, *extensions = text.removesuffix("\n").split("\n")
            note = cls(origin, int(size), base64.b64decode(root, validate=True), tuple(extensions))
        except (ValueError, binascii.Error):
            raise NoteError("this note is not a checkpoint") from None
        if (
            not _SIZE.fullmatch(size)
            or len(note.root) != HASH_BYTES
            or not all((origin, *extensions))
            or note.text != text
        ):
            raise NoteError("this note is not a checkpoint")
        return note


def time_text(time: datetime) -> str:
    """The time in the format of entries and checkpoints."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def signed_checkpoint(key: AuditKey, size: int, root: bytes) -> Note:
    """A checkpoint, with the present time, of the log that has the key's name."""
    now = time_text(datetime.now(UTC))
    return key.sign(Checkpoint(key.public.name, size, root, (f"format {FORMAT}", f"time {now}")).text)


class NoteFile:
    """An append-only file of notes, each followed by an empty line. Writers take turns by a lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The file's size and latest note when this object last read or wrote it.
        self._size = -1
        self._latest: Note | None = None

    def __iter__(self) -> Iterator[Note]:
        """The notes, without a last one that a crash left incomplete; none if there is no file. Raises `NoteError`."""
        lines: list[str] = []
        length = 0
        for line in self._lines():
            lines.append(line)
            length += len(line)
            if line == "\n" and len(lines) > 1 and lines[-2].startswith(DASH):
                yield Note.parse("".join(lines[:-1]))
                lines.clear()
                length = 0
            if len(lines) > MAX_LINES or length > MAX_NOTE + 1:
                raise NoteError("a note in the file of checkpoints exceeds the length limit")

    def heads(self) -> Iterator[tuple[int, bytes]]:
        """Size and root of each note. Raises `NoteError`."""
        for _, size, root in self._matches(_NOTE):
            yield int(size), binascii.a2b_base64(root)

    def cosigned(self) -> Iterator[tuple[int, bytes]]:
        """The size of each note with more than one signature, and its text. Raises `NoteError`."""
        for note, size, _ in self._matches(_COSIGNED):
            yield int(size), note

    def _matches(self, pattern: re.Pattern[bytes]) -> Iterator[tuple[bytes, ...]]:
        """The groups of each match of `pattern` whose first group is not empty."""
        rest = b""
        for block in self._blocks():
            rest, at = rest + block, 0
            while (match := pattern.match(rest, at)) and match.end() > at:
                at = match.end()
                if match[1]:
                    yield match.groups()
            rest = rest[at:]
            if len(rest) > MAX_NOTE:
                raise NoteError("the file of checkpoints contains something that is not a checkpoint")
        if _END.search(rest):
            raise NoteError("the file of checkpoints contains something that is not a checkpoint")

    def latest(self) -> Note | None:
        """The note of the largest tree among the last ones. Raises `NoteError`."""
        if self._changed():
            block, ends = self._tail()
            records = [block[start:end] for start, end in zip(ends, ends[1:], strict=False)]
            notes = [Note.parse(record[:-1].decode(errors="replace")) for record in records]
            self._latest = max(notes, key=_size_of, default=None)
            self._size = -1 if len(block) > ends[-1] else self._file_size()
        return self._latest

    def append(self, notes: Iterable[Note]) -> None:
        """Adds notes and returns once they are on disk; first cuts off a torn note. Raises `NoteError`, `OSError`."""
        new_notes = list(notes)
        latest = self.latest()
        with open(self.path, "ab") as file:
            if self._size < 0:
                block, ends = self._tail()
                file.truncate(file.tell() - (len(block) - ends[-1]))
            self._size = -1
            file.write("".join(f"{note}\n" for note in new_notes).encode())
            file.flush()
            os.fsync(file.fileno())
            self._size = file.tell()
        self._latest = max([latest, *new_notes] if latest else new_notes, key=_size_of)

    def _changed(self) -> bool:
        return self._size < 0 or self._file_size() != self._size

    def _file_size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _blocks(self) -> Iterator[bytes]:
        try:
            with open_plain(self.path) as file:
                while block := file.read(MAX_NOTE):
                    yield block
        except FileNotFoundError:
            return
        except OSError as error:
            raise NoteError(f"the checkpoints cannot be read ({error.strerror})") from None

    def _lines(self) -> Iterator[str]:
        try:
            with open_plain(self.path) as file:
                while line := file.readline(MAX_NOTE):
                    yield line.decode(errors="replace")
        except FileNotFoundError:
            return
        except OSError as error:
            raise NoteError(f"the checkpoints cannot be read ({error.strerror})") from None

    def _tail(self) -> tuple[bytes, list[int]]:
        """The end of the file and the offsets where notes begin or end in it; a torn note may follow the last."""
        try:
            with open_plain(self.path) as file:
                begin = max(0, file.seek(0, os.SEEK_END) - TAIL)
                file.seek(begin)
                block = file.read(2 * TAIL)
        except FileNotFoundError:
            return b"", [0]
        except OSError as error:
            raise NoteError(f"the checkpoints cannot be read ({error.strerror})") from None
        ends = [match.end() for match in _END.finditer(block)]
        if begin and not ends:
            raise NoteError("the file of checkpoints does not end with a note: have the log verified")
        return block, ends if begin else [0, *ends]


def _size_of(note: Note) -> int:
    return Checkpoint.parse(note.text).size


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
            raise NoteError("this note is not a change of keys")
        old, new = VerifierKey.parse(match[2]), VerifierKey.parse(match[3])
        if not (old.name == new.name == match[1] and old != new and old.signed(note) and new.signed(note)):
            raise NoteError("the change of keys is not signed by both keys")
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
    """The statements in a file; none if there is no file. Raises `NoteError` for an invalid one."""
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
