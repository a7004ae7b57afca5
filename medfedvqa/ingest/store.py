"""The store on disk: pictures, lists of images and questions, a manifest with their digests, the list of withdrawn
patients, and the journal from which a killed ingestion continues."""

import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from audits.bounded_files import read_bounded
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.bounds import OrganName
from medfedvqa.errors import DataError
from medfedvqa.ingest.refusal_reasons import Reason, RowReason

FORMAT = "medfedvqa-store/1"
MANIFEST, IMAGES, ROWS, JOURNAL, QUARANTINE, LOCK = (
    "manifest.json", "images.jsonl", "rows.jsonl", "journal.jsonl", "quarantine.jsonl", "lock",
)  # fmt: skip
Split = Literal["train", "validate", "test"]
PICTURES = "images"
"""Folder of the stored pictures, `ID.dcm`."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Keyed = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Count = Annotated[int, Field(ge=0)]
FILE_DIGITS = 24
"""The first digits of a picture's id, which all frames of one file share."""


def picture_id(file: str, frame: int | None) -> str:
    """The id of a picture, 32 hex digits. `file`: the keyed digest of its file, which is the id of the file's main
    frame. `frame`: the number of another frame, from 0; None for the main one."""
    return file if frame is None else f"{int(file, 16) ^ (frame + 1):032x}"


class StrictModel(BaseModel):
    """A frozen model that takes no unknown field and converts no value."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Image(StrictModel):
    """A stored picture. It names neither a file nor a patient."""

    id: Keyed
    sha256: Digest
    patient: Keyed = Field(repr=False)
    organ: OrganName
    frame: Count
    frames: Annotated[int, Field(ge=1)]
    boxes: list[Annotated[list[Count], Field(min_length=4, max_length=4)]]
    blanked: Annotated[float, Field(ge=0, le=1)]
    flags: Count = 0
    """The number of kept marks that wait for a person's decision."""
    reviewed: bool = False
    """Whether a person looked at the picture and accepted it with all that was found in it."""
    squared: bool = False
    """Whether it was resampled, since the original's pixels are not square."""


class StoredRow(StrictModel):
    """A question about a stored picture."""

    index: Count
    image: Keyed
    organ: OrganName
    split: Split
    question: Annotated[str, Field(min_length=1, repr=False)]
    answer: Annotated[str, Field(min_length=1, repr=False)]


class CodeEntry(StrictModel):
    """A code of DICOM's context group 7050."""

    value: Annotated[str, Field(pattern=r"^[0-9]{6}$")]
    meaning: str


class StoreOptions(StrictModel):
    """The options of the ingestion; see `medfedvqa.ingest.image_options.Options`."""

    side: int
    frames: str = Field(validation_alias=AliasChoices("frames", "frame"))
    """Earlier versions kept one frame, and called the option `frame`."""
    retain: list[str]
    max_pixels: int
    memory: int
    seconds: int
    identifiers: str = "leave-out"
    unread: str = "blank"
    masks: str = ""
    assume: list[str] = []


class Counts(StrictModel):
    """Counts of the files and rows, by outcome."""

    files: Count
    stored: Count
    pictures: Count = 0
    """Stored pictures: of a file with several frames as many as are kept."""
    unasked: Count
    quarantined: dict[Reason, Count]
    redacted: Count
    flagged: Count = 0
    reviewed: Count = 0
    nameless: Count = 0
    """Pictures for which neither header nor table holds a name of the patient."""
    rows: Count
    rows_replaced: Count = 0
    rows_left_out: dict[RowReason, Count]
    patients: Count


class Manifest(StrictModel):
    """Describes the store and how it was made."""

    format: Literal["medfedvqa-store/1"]
    made: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    """The time of the last ingestion, UTC."""
    key: Keyed
    """The fingerprint of the key of the pseudonyms."""
    options: StoreOptions
    deidentification: list[CodeEntry]
    versions: dict[str, str]
    code: Digest
    encoding: str = "utf-8"
    """The encoding in which the file of questions was read."""
    persons: bool = False
    """Whether a file of persons said which patients are one person."""
    counts: Counts
    images: Digest
    """The SHA-256 of the list of images, which holds the digest of every picture."""
    rows: Digest


def counts_of_pictures(images: Collection[Image]) -> dict[str, int]:
    """The counts of a manifest that follow from the stored pictures alone."""
    return {
        "pictures": len(images),
        "redacted": sum(bool(image.boxes) for image in images),
        "flagged": sum(bool(image.flags) for image in images),
        "reviewed": sum(image.reviewed for image in images),
        "patients": len({image.patient for image in images}),
    }


def write_lists(folder: Path, images: Iterable[Image], rows: Iterable[StoredRow]) -> dict[str, str]:
    """Write the lists entry by entry, and return their digests for the manifest."""
    return {"images": _write_list(folder / IMAGES, images), "rows": _write_list(folder / ROWS, rows)}


def write_manifest(folder: Path, manifest: dict[str, Any]) -> Manifest:
    """Check and write the manifest, after which the store is whole."""
    whole = Manifest.model_validate_json(json.dumps(manifest))
    write_whole(folder / MANIFEST, whole.model_dump_json(indent=2).encode() + b"\n", PRIVATE)
    return whole


def _write_list(path: Path, entries: Iterable[StrictModel]) -> str:
    digest = hashlib.sha256()

    def lines() -> Iterator[bytes]:
        for entry in entries:
            line = entry.model_dump_json().encode() + b"\n"
            digest.update(line)
            yield line

    write_whole(path, lines(), PRIVATE)
    return digest.hexdigest()


def read_store(folder: Path) -> tuple[Manifest, dict[str, Image], list[StoredRow]]:
    """The manifest, the images by id, and the rows, checked against schema and digests.

    Raises `DataError` if anything is missing, has another format, or has another digest than the manifest says.
    """
    manifest = read_manifest(folder)
    images = _entries(folder / IMAGES, manifest.images, TypeAdapter(Image))
    rows = _entries(folder / ROWS, manifest.rows, TypeAdapter(StoredRow))
    by_id = {image.id: image for image in images}
    if any(row.image not in by_id for row in rows):
        raise DataError("the store has rows without an image: run medfedvqa ingest again")
    return manifest, by_id, rows


def read_manifest(folder: Path) -> Manifest:
    """The manifest alone. Raises `DataError`."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except OSError:
        raise DataError("the store has no manifest: run medfedvqa ingest to its end") from None
    except ValidationError:
        raise DataError("the store's manifest is damaged or of another version: run medfedvqa ingest again") from None


def _entries(path: Path, digest: str, adapter: TypeAdapter[Any]) -> list[Any]:
    try:
        content = path.read_bytes()
    except OSError:
        raise DataError(f"the store's '{path.name}' is missing: run medfedvqa ingest again") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"the store's '{path.name}' does not match its manifest: run medfedvqa ingest again")
    try:
        return [adapter.validate_json(line) for line in content.splitlines()]
    except ValidationError:
        raise DataError(f"the store's '{path.name}' is of another version: run medfedvqa ingest again") from None


WITHDRAWN, MAX_LIST = "withdrawn-patients.json", 1 << 26
"""The list of patients who were withdrawn from a store, and its most bytes. Ingestion leaves these patients out."""


class WithdrawnNumber(StrictModel):
    """A number of a patient who was withdrawn."""

    patient: Keyed = Field(repr=False)
    """The pseudonym of the number."""
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class WithdrawalList(StrictModel):
    """The list of patients who have withdrawn from the store."""

    format: Literal["medfedvqa-withdrawn/1"] = "medfedvqa-withdrawn/1"
    withdrawn: list[WithdrawnNumber] = []


def read_withdrawals(store: Path) -> WithdrawalList:
    """The list, empty if nobody was withdrawn. Raises `DataError`."""
    path = store / WITHDRAWN
    if not path.exists():
        return WithdrawalList()
    try:
        return WithdrawalList.model_validate_json(read_bounded(path, MAX_LIST))
    except (OSError, ValidationError):
        raise DataError(f"the store's '{WITHDRAWN}' is damaged: restore it, or withdrawn patients come back") from None


def withdrawn_patients(store: Path) -> frozenset[str]:
    """The pseudonyms of all numbers of patients who were withdrawn."""
    return frozenset(entry.patient for entry in read_withdrawals(store).withdrawn)


def add_withdrawals(store: Path, patients: Collection[str]) -> None:
    """Adds the pseudonyms of all numbers of a patient."""
    before = read_withdrawals(store).withdrawn
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    new = sorted(set(patients) - {entry.patient for entry in before})
    whole = WithdrawalList(withdrawn=[*before, *(WithdrawnNumber(patient=patient, time=moment) for patient in new)])
    write_whole(store / WITHDRAWN, whole.model_dump_json(indent=2).encode() + b"\n", PRIVATE)


class Record(StrictModel):
    """The verdict on one picture. Names are keyed digests, which reveal neither file nor patient."""

    source: Keyed
    """The digest of the file's SHA-256."""
    frame: Count | None = None
    """The number of the frame, from 0; None for the file's main frame."""
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
    """The digest of the facts about the patient from outside of the file; see `medfedvqa.ingest.resolve`."""
    number: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$", repr=False)] = ""
    """The pseudonym of the patient's own number; another than the image's where a person has several numbers."""
    nameless: bool = False
    """Whether neither header nor table holds a name of the patient to compare with."""
    marks: list[Keyed] = []
    """Digests of the patient's ID, under the key of each register in sight; none in a store of an earlier version."""


class IngestionJournal:
    """Records by source and frame, each on disk as soon as it is added.

    The main frame's record, under None, is the verdict on the file. A picture that is not stored is a verdict on the
    whole file: its record takes the place of all others.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file, and drops a last line that a crash cut."""
        self._path = path
        self.records: dict[str, dict[int | None, Record]] = {}
        for record in _records(path):
            self.put(record)
        self._file = _appending(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, record: Record) -> None:
        """Add a record, which survives the end of this process from then on."""
        self._file.write(record.model_dump_json().encode() + b"\n")
        self._file.flush()
        self.put(record)

    def put(self, record: Record) -> None:
        """Take over a record without writing it; one of another frame does not undo a verdict on the whole file."""
        frames = self.records.setdefault(record.source, {})
        is_left_out = None in frames and frames[None].verdict != "stored"
        if record.verdict == "stored" and record.frame is not None:
            if not is_left_out:
                frames[record.frame] = record
            return
        if is_left_out or record.verdict != "stored":
            frames.clear()
        frames[None] = record

    def drop(self, record: Record) -> None:
        """Forget a record, so that its picture is read again."""
        self.records[record.source].pop(record.frame if record.verdict == "stored" else None, None)

    def pictures(self) -> list[Record]:
        """All records."""
        return [record for frames in self.records.values() for record in frames.values()]

    def keep(self, sources: Iterable[str]) -> None:
        """Forget the records of all sources but these."""
        self.records = {source: self.records[source] for source in sources}
        self._file.close()
        lines = (record.model_dump_json().encode() + b"\n" for record in self.pictures())
        write_whole(self._path, lines, PRIVATE)
        self._file = _appending(self._path)


def _appending(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def _records(path: Path) -> list[Record]:
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
    """The list of quarantined files. It names files, so it stays on the site."""
    entries: list[dict[str, object]] = [{"file": name, "reason": reason.value} for name, reason in files]
    entries += [{"row": index, "reason": reason} for index, reason in rows]
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
