"""What became of each file, line by line as it happens: an ingestion that was killed goes on from here."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Annotated, BinaryIO, Literal

from pydantic import Field, ValidationError

from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.ingest.refusal_reasons import Reason
from medfedvqa.ingest.store import Image, Keyed, _Strict


class Record(_Strict):
    """The verdict on one file's content. Names are keyed digests: nothing here tells a file or a patient."""

    source: Keyed
    """Of the file's SHA-256."""
    recipe: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    verdict: Literal["stored", "unasked", "quarantined"]
    reason: Reason | None = None
    found: list[Keyed]
    """Of SOP instance UID and accession number."""
    image: Image | None = None
    secrets: list[Keyed] = []
    """Of the texts that name the patient, for looking them up in questions."""
    marks: list[Keyed] = []
    """Of the patient's ID, under the key of each register that was in sight; none in a store of an earlier version."""


class IngestionJournal:
    """Records by source, on disk as soon as they are added."""

    def __init__(self, path: Path) -> None:
        """Reads what is there; a last line that was cut by a crash is dropped."""
        self._path = path
        self.records = {record.source: record for record in _read(path)}
        self._file = _appending(path)

    def __enter__(self) -> "IngestionJournal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, record: Record) -> None:
        """Durable against the death of this process when it returns."""
        self._file.write(record.model_dump_json().encode() + b"\n")
        self._file.flush()
        self.records[record.source] = record

    def keep(self, sources: Iterable[str]) -> None:
        """Forget all records but these."""
        self.records = {source: self.records[source] for source in sources}
        self._file.close()
        lines = (record.model_dump_json().encode() + b"\n" for record in self.records.values())
        write_whole(self._path, b"".join(lines), PRIVATE)
        self._file = _appending(self._path)


def _appending(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def _read(path: Path) -> list[Record]:
    if not path.exists():
        return []
    content = path.read_bytes()
    whole, end = content.rpartition(b"\n")[0], content.rfind(b"\n") + 1
    if end != len(content):
        os.truncate(path, end)
    records = []
    for line in whole.splitlines():
        try:
            records.append(Record.model_validate_json(line))
        except ValidationError:
            continue  # of another version: the file is read anew
    return records


def quarantine_lines(files: Iterable[tuple[str, Reason]], rows: Iterable[tuple[int, str]]) -> bytes:
    """The site's own list: it names files, so it stays on the site."""
    entries: list[dict[str, object]] = [{"file": name, "reason": reason.value} for name, reason in files]
    entries += [{"row": index, "reason": reason} for index, reason in rows]
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
