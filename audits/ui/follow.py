"""Reads a log as it grows, over all its segments, and finds an entry again by where it stands."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from audits.entry import Entry, parse_line
from audits.errors import LogError
from audits.log import GENESIS
from audits.log_files import LOG_NAME, MAX_LINE, closed_segments, first_entry, lines_of, segments


class Follower:
    """One log, read as far as its chain holds. `first` is the number of the first entry that is there (those before it
    are expired), `entries` that of the next to come, `broken` what stands in its place if that is no entry.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first = self.entries = 0
        self.broken: str | None = None
        self._head: str | None = None
        self._begun = self._inode = 0  # of the first segment, and of the one that was read last
        self._seen = (0, 0)  # size and time of that one
        self._segment = self._offset = 0

    def stale(self) -> bool:
        """Whether it has to be read from its beginning: first of all, and when it no longer is what was read.

        Raises `OSError`, and `LogError` if there is no log.
        """
        files = [(found.st_ino, found) for found in map(os.stat, self._files())]
        now = dict(files).get(self._inode)
        if now is None or files[0][0] != self._begun:
            return True
        size, time = self._seen
        return now.st_size < size or (now.st_size == size and now.st_mtime_ns != time)

    def grown(self) -> Iterator[tuple[int, int, Entry]]:
        """Entries that came since the last time: the segment's first entry, the offset in it, and what stands there.

        Raises `OSError`, and `LogError` if there is no log.
        """
        files = [(path, os.stat(path)) for path in self._files()]
        if not self._inode:
            self._begin(*files[0])
        inodes = [found.st_ino for _, found in files]
        for path, found in files[inodes.index(self._inode) :]:
            if found.st_ino != self._inode:
                self._inode, self._segment, self._offset = found.st_ino, self.entries, 0
            if not self.broken:
                yield from self._fitting(lines_of(path, offset=self._offset))
            self._seen = found.st_size, found.st_mtime_ns

    def entry(self, seq: int, segment: int, offset: int) -> Entry:
        """The entry that stands there, read again. Raises `LogError` if it is another one, or damaged; `OSError`."""
        path = closed_segments(self.folder).get(segment, self.folder / LOG_NAME)
        try:
            entry = Entry.from_record(parse_line(next(lines_of(path, offset=offset), b"")))
        except LogError:
            entry = None
        if entry is None or entry.seq != seq:
            raise LogError(f"entry {seq} is no longer what it was when it was read: have the log verified")
        return entry

    def _files(self) -> list[Path]:
        files = segments(self.folder)
        if not files:
            raise LogError("there is no audit log in its folder any more")
        return files

    def _begin(self, path: Path, found: os.stat_result) -> None:
        self._begun = self._inode = found.st_ino
        try:
            self.first = self.entries = self._segment = first_entry(path) or 0
        except LogError as error:
            self.broken = f"entry 0: {error}"
        self._head = None if self.first else GENESIS

    def _fitting(self, lines: Iterable[bytes]) -> Iterator[tuple[int, int, Entry]]:
        for line in lines:
            if not line.endswith(b"\n") and len(line) <= MAX_LINE:
                return
            try:
                record = parse_line(line)
                if record["seq"] != self.entries or self._head not in (None, record["prev_hash"]):
                    raise LogError("it does not follow the entry before it")
                entry = Entry.from_record(record)
            except LogError as error:
                self.broken = f"entry {self.entries}: {error}"
                return
            place = self._segment, self._offset
            self._offset, self.entries, self._head = self._offset + len(line), self.entries + 1, entry.leaf_hash
            yield *place, entry
