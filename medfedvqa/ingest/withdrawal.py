"""Withdraws a patient from a store: pictures, questions and finds are removed, and later ingestions leave them out."""

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfedvqa.atomic_files import locked
from medfedvqa.errors import ConfigError
from medfedvqa.ingest.find_list import folder_of_finds, keep_finds
from medfedvqa.ingest.ingest import check_continuation
from medfedvqa.ingest.pseudonyms import load_pseudonyms
from medfedvqa.ingest.refusal_reasons import Reason
from medfedvqa.ingest.resolve import PatientSources, read_persons
from medfedvqa.ingest.review import SHEET, keep_decisions, write_sheet
from medfedvqa.ingest.store import (
    FILE_DIGITS,
    JOURNAL,
    LOCK,
    PICTURES,
    Image,
    IngestionJournal,
    Manifest,
    StoredRow,
    add_withdrawals,
    counts_of_pictures,
    read_store,
    write_lists,
    write_manifest,
)


@dataclass(frozen=True)
class Withdrawn:
    """The result of a withdrawal."""

    patients: frozenset[str]
    """The pseudonyms of all numbers of the person."""
    pictures: int
    questions: int
    organs: frozenset[str]
    """The organs of the questions, and so the sites that held them."""


def withdraw(store: Path, number: str, key: Path, persons: Path | None = None) -> Withdrawn:
    """Remove the patient with this number, and all other numbers of the person, from a store.

    `persons` is the file of persons, which a store that was made with one needs. The list of withdrawn patients is
    written first, so that a call that is killed is completed by the next call or the next ingestion. Raises
    `ConfigError` or `DataError`; neither repeats the number.
    """
    if not number.strip():
        raise ConfigError("the number is empty: give the patient's number as in the images' headers or the table")
    if not key.is_file():
        raise ConfigError(
            "the key of the store's pseudonyms is missing, and without it no patient is recognised: give --key"
        )
    keys = load_pseudonyms(key)
    with _exclusive(store):
        check_continuation(store, keys, persons)
        numbers = PatientSources(persons=read_persons(persons) if persons else ()).numbers(number)
        patients = frozenset(map(keys.patient, numbers))
        manifest, images, rows = read_store(store)
        add_withdrawals(store, patients)
        kept = {name: image for name, image in images.items() if image.patient not in patients}
        gone = [row for row in rows if row.image not in kept]
        if len(kept) < len(images):
            _rewrite(store, manifest, images, kept, [row for row in rows if row.image in kept])
    return Withdrawn(patients, len(images) - len(kept), len(gone), frozenset(row.organ for row in gone))


def _exclusive(store: Path) -> AbstractContextManager[None]:
    return locked(
        store / LOCK,
        ConfigError("the store cannot be written: check its path and its permissions"),
        ConfigError("an ingestion is writing this store: wait for it"),
    )


def _rewrite(
    store: Path, manifest: Manifest, images: Mapping[str, Image], kept: Mapping[str, Image], rows: list[StoredRow]
) -> None:
    """Write the store anew with these pictures and rows alone."""
    with IngestionJournal(store / JOURNAL) as journal:
        records = {
            source: frames
            for source, frames in journal.records.items()
            if all(record.image is None or record.image.id in kept for record in frames.values())
        }
        files = {name[:FILE_DIGITS] for name in images.keys() - kept.keys()}
        counts = _counts(manifest, len(files), kept.values(), len(rows))
        pictures = (record for frames in records.values() for record in frames.values())
        counts["nameless"] = sum(record.nameless for record in pictures if record.image)
        lists = write_lists(
            store, kept.values(), (row.model_copy(update={"index": index}) for index, row in enumerate(rows))
        )
        write_manifest(store, manifest.model_dump(mode="json") | lists | {"counts": counts})
        journal.keep(records)
    for path in (store / PICTURES).iterdir():
        if path.stem not in kept:
            path.unlink()
    finds = folder_of_finds(store)
    keep_finds(finds, kept)
    keep_decisions(finds, kept)
    if (finds / SHEET).exists():
        write_sheet(store)


def _counts(manifest: Manifest, removed: int, images: Collection[Image], rows: int) -> dict[str, Any]:
    counts = manifest.counts.model_dump(mode="json")
    quarantined = Counter(counts["quarantined"])
    quarantined[Reason.WITHDRAWN.value] += removed
    changed = {"stored": counts["stored"] - removed, "quarantined": dict(quarantined), "rows": rows}
    return counts | counts_of_pictures(images) | changed
