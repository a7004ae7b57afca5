"""The journal of an ingestion: the verdict on each file, on disk at once. A killed ingestion continues from it."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, Self

from pydantic import Field, ValidationError

from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.ingest.refusal_reasons import Reason
from medfedvqa.ingest.store import Image, Keyed, StrictModel


class Record(StrictModel):
    """The verdict on one file's content. Names are keyed digests, which reveal neither file nor patient."""

    source: Keyed
    """The digest of the file's SHA-256."""
    recipe: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    verdict: Literal["stored", "unasked", "quarantined"]
    reason: Reason | None = None
    found: list[Keyed]
    """Digests of the SOP instance UID and the accession number."""
    image: Image | None = None
    review: Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")] = ""
    """The digest of the persons' decisions that were applied; empty without any."""
    secrets: list[Keyed] = []
    """Digests of the texts that identify the patient, which are looked up in questions."""
    sources: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""
    """The digest of what was said of the patient outside of the file; see `medfedvqa.ingest.patient_sources`."""
    number: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$", repr=False)] = ""
    """The pseudonym of the patient's own number; another than the image's where a person has several numbers."""
    nameless: bool = False
    """Whether neither header nor table holds a name of the patient to compare with."""
    marks: list[Keyed] = []
    """Digests of the patient's ID, under the key of each register in sight; none in a store of an earlier version."""


class IngestionJournal:
    """Records by source, each on disk as soon as it is added."""

    def __init__(self, path: Path) -> None:
        """Reads the file, and drops a last line that a crash cut."""
        self._path = path
        self.records = {record.source: record for record in _read(path)}
        self._file = _appending(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, record: Record) -> None:
        """Add a record, which survives the end of this process from then on."""
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
            continue  # a record of another version: the image is read anew
    return records


def quarantine_lines(files: Iterable[tuple[str, Reason]], rows: Iterable[tuple[int, str]]) -> bytes:
    """The list of what was set aside. It names files, so it stays on the site."""
    entries: list[dict[str, object]] = [{"file": name, "reason": reason.value} for name, reason in files]
    entries += [{"row": index, "reason": reason} for index, reason in rows]
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
