"""Makes a store from a folder of images and a file of questions."""

import hashlib
import json
import os
import platform
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from medfedvqa.atomic_files import PRIVATE, locked, write_whole
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.cohort_register import CohortCheck
from medfedvqa.ingest.find_list import keep_finds, make_folder_of_finds
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.ledger_binding import BINDING, default_ledger
from medfedvqa.ingest.organs import checked_organs
from medfedvqa.ingest.pseudonyms import Pseudonyms, load_pseudonyms
from medfedvqa.ingest.questions import QuestionsFile, read_questions
from medfedvqa.ingest.refusal_reasons import PASSING, Quarantined, Reason
from medfedvqa.ingest.resolve import (
    ImageNames,
    PatientSources,
    Resolver,
    SourceDigests,
    names_of_paths,
    read_persons,
    table_facts,
)
from medfedvqa.ingest.review import decisions_by_image, digest_of
from medfedvqa.ingest.store import (
    FORMAT,
    JOURNAL,
    LOCK,
    MANIFEST,
    PICTURES,
    QUARANTINE,
    IngestionJournal,
    Manifest,
    Record,
    counts_of_pictures,
    picture_id,
    quarantine_lines,
    read_manifest,
    withdrawn_patients,
    write_lists,
    write_manifest,
)
from medfedvqa.ingest.table_finds import TableOptions
from medfedvqa.ingest.worker_pool import FileTask, WorkerProcess, handled
from medfedvqa.version import code_digest, code_version

FINDER = (
    ("rapidocr-onnxruntime", "opencv-python") if sys.version_info < (3, 13) else ("rapidocr", "opencv-python-headless")
)
TOOLS = (
    "pydicom", "numpy", "dicom-anonymizer", *FINDER, "onnxruntime", "pylibjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle",
    "python-gdcm", "pillow",
)  # fmt: skip
Decisions = list[dict[str, Any]]
"""What persons decided about the finds in a picture."""
DecisionLookup = Callable[[str, int | None], Decisions]
"""The decisions about a frame of the file with this source."""
Watch = Callable[[str, int, int], None]
"""A function that receives the stage, the number of files or pictures done, and their total (0 while it is unknown)."""


@dataclass(frozen=True)
class Survey:
    """The files in the folder."""

    paths: dict[str, list[str]]
    """The paths within the folder of each content, by its keyed digest."""
    sha256: dict[str, str]
    """The SHA-256 of each content, by its keyed digest."""
    refused: list[tuple[str, Reason]]
    """Paths that are not read, and why."""

    @property
    def files(self) -> int:
        """The number of all files."""
        return len(self.refused) + sum(map(len, self.paths.values()))


def ingest(
    folder: Path,
    questions: Path,
    out: Path,
    key: Path,
    options: Options,
    workers: int,
    watch: Watch,
    ledger: Path | None = None,
    organs: Collection[str] = (),
    patients: Path | None = None,
    table_options: TableOptions | None = None,
    notes: list[str] | None = None,
) -> Manifest:
    """Make or renew the store `out`. Files that the store knows are not read again; files that are gone are forgotten.

    `ledger` is the folder of the ledger that the patients are charged to, by default beside the store. A store of an
    earlier version that is bound to no ledger stays so unless a ledger is named. `organs`: the hospital's own, which
    the questions may name. `patients`: the file of persons who have several numbers. `notes` receives what a person
    should know about the table. A call that is killed leaves the old store, if there was one, and the next call
    continues its work. Raises `DataError` for the folder, the questions or the persons, `ConfigError` for anything
    else.
    """
    versions = tool_versions()
    table = read_questions(questions, checked_organs(organs), table_options)
    if notes is not None:
        notes += table.notes
    rows = table.rows
    _check_places(folder, out, key, ledger or default_ledger(out))
    keys = load_pseudonyms(key)
    with _exclusive(out):
        check_continuation(out, keys, patients)
        persons = read_persons(patients) if patients else ()
        sources = PatientSources(table_facts(rows, keys), persons, withdrawn_patients(out))
        cohort = None
        if ledger or not _is_of_earlier_version(out):
            cohort = CohortCheck(out, ledger or default_ledger(out), keys.fingerprint())
        survey = _survey(folder, keys, options, watch)
        with IngestionJournal(out / JOURNAL) as journal:
            recipe = options.recipe(versions)
            names = ImageNames.of(rows, keys)
            finds = make_folder_of_finds(out)
            decisions = decisions_by_image(finds, options.side, keys.fingerprint())

            def decisions_of(source: str, frame: int | None) -> Decisions:
                return decisions.get(picture_id(keys.digest("image", source), frame), [])

            digests = SourceDigests(sources, keys)
            _drop_reviewed(journal, decisions_of)
            _drop_renamed(journal, survey, digests, keys)
            _drop_outdated(out, survey, journal, names, recipe, marked=cohort is not None)
            registers = cohort.mark_keys if cohort else []
            start = partial(
                WorkerProcess, options, keys, (out / PICTURES).resolve(), finds, names.keyed, registers, sources
            )
            tasks = _Tasks(folder.resolve(), survey, journal, names, decisions_of, options, keys)
            for done, (task, answer) in enumerate(handled(tasks.next, start, max(1, workers)), 1):
                facts = {"source": task.source, "frame": task.frame, "recipe": recipe}
                facts["review"] = digest_of(decisions_of(task.source, task.frame))
                facts["sources"] = digests.about([*task.names, *answer["found"]], answer.get("number", ""))
                journal.add(Record.model_validate_json(json.dumps(answer | facts)))
                if task.frame is None:
                    tasks.add_frames(task.source)
                watch("reading images", done, tasks.total)
            journal.keep(survey.paths)
            if cohort:
                stored = [record for record in journal.pictures() if record.verdict == "stored"]
                files = {survey.sha256[record.source] for record in stored}
                cohort.admit(files, {mark for record in stored for mark in record.marks})
            return _publish(out, survey, journal, table, keys, options, versions, patients is not None)


def tool_versions() -> dict[str, str]:
    """The versions of everything that shapes the result. Raises `ConfigError` if the extra is not installed."""
    try:
        tools = {name: version(name) for name in TOOLS}
    except PackageNotFoundError:
        raise ConfigError("ingestion needs more packages: pip install 'medfedvqa[ingest]'") from None
    return {"python": platform.python_version(), "medfedvqa": code_version(), **tools}


def _is_of_earlier_version(out: Path) -> bool:
    """Whether the store is whole and notes no ledger: then its sites may have one already."""
    return (out / MANIFEST).exists() and not (out / BINDING).exists()


def check_continuation(out: Path, keys: Pseudonyms, patients: Path | None) -> None:
    """Raises `ConfigError` if an existing store was made with another key, or with a file of patients and now none."""
    before = read_manifest(out) if (out / MANIFEST).exists() else None
    if before and before.key != keys.fingerprint():
        raise ConfigError("the store was made with another key: give that one by --key, or another --out")
    if before and before.persons and not patients:
        raise ConfigError(
            "the store was made with a table of patients, without which a person may count twice: give --patients"
        )


def _check_places(folder: Path, out: Path, key: Path, ledger: Path) -> None:
    if not folder.is_dir():
        raise DataError("the folder of images does not exist: check its path")
    inner, outer = out.resolve(), folder.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise ConfigError("the store and the folder of images must not lie within each other: choose another --out")
    if key.resolve().is_relative_to(inner):
        raise ConfigError("the key must not lie in the store, which may be handed on: choose another --key")
    if ledger.resolve().is_relative_to(inner):
        raise ConfigError("the ledger must not lie in the store, which may be handed on: choose another --ledger")


def _exclusive(out: Path) -> AbstractContextManager[None]:
    """Make the store's folders, and keep other ingestions out of them. Raises `ConfigError`."""
    unwritable = ConfigError("the store cannot be written: check --out and its permissions")
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        (out / PICTURES).mkdir(mode=0o700, exist_ok=True)
    except OSError:
        raise unwritable from None
    return locked(out / LOCK, unwritable, ConfigError("another ingestion is writing this store: wait for it"))


def _survey(folder: Path, keys: Pseudonyms, options: Options, watch: Watch) -> Survey:
    """The digest of every file. Links are not followed. Raises `DataError` for an empty folder."""
    paths: dict[str, list[str]] = {}
    digests: dict[str, str] = {}
    refused: list[tuple[str, Reason]] = []
    for number, path in enumerate(_files(folder), 1):
        name = path.relative_to(folder).as_posix()
        try:
            content = _digest(path, options)
            source = keys.digest("source", content)
        except Quarantined as error:
            refused.append((name, error.reason))
        else:
            paths.setdefault(source, []).append(name)
            digests[source] = content
        watch("looking through the folder", number, 0)
    if not paths and not refused:
        raise DataError("the folder of images is empty (unmounted share?): the store was not changed")
    return Survey(paths, digests, refused)


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names))


def _digest(path: Path, options: Options) -> str:
    """The SHA-256 of a regular file, hex. Raises `Quarantined`."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise Quarantined(Reason.NOT_REGULAR)
        if status.st_size > options.max_bytes:
            raise Quarantined(Reason.TOO_LARGE)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        raise Quarantined(Reason.UNOPENED) from None


def _drop_outdated(
    out: Path, survey: Survey, journal: IngestionJournal, names: ImageNames, recipe: str, marked: bool
) -> None:
    """Drop the records of files that must be read again, and mark pictures that no question names now as unasked.

    `marked`: a patient needs a mark, so files of patients without one are read again.
    """
    for record in journal.pictures():
        named = names.match(survey.paths.get(record.source, ()), record)
        again = record.recipe != recipe or record.reason in PASSING
        if record.verdict == "stored":
            again |= named and (not _intact(out, record) or (marked and not record.marks))
        if record.verdict == "unasked":
            again |= named
        if again:
            journal.drop(record)
        elif record.verdict == "stored" and not named:
            unasked = {"verdict": "unasked", "image": None, "sources": "", "number": "", "nameless": False}
            journal.put(record.model_copy(update={**unasked, "secrets": [], "marks": []}))


def _intact(out: Path, record: Record) -> bool:
    """Whether the stored picture still has the digest that its record names."""
    assert record.image is not None
    try:
        content = (out / PICTURES / f"{record.image.id}.dcm").read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content).hexdigest() == record.image.sha256


def _drop_reviewed(journal: IngestionJournal, decisions_of: DecisionLookup) -> None:
    """Drop the records of pictures about which persons have decided since."""
    for record in journal.pictures():
        if record.review != digest_of(decisions_of(record.source, record.frame)):
            journal.drop(record)


def _drop_renamed(journal: IngestionJournal, survey: Survey, digests: SourceDigests, keys: Pseudonyms) -> None:
    """Drop the records of files whose patients the table or the file of patients now names differently."""
    for record in journal.pictures():
        names = [*_keyed_names(survey.paths.get(record.source, ()), keys), *record.found]
        if record.sources != digests.about(names, record.number):
            journal.drop(record)


def _keyed_names(paths: Sequence[str], keys: Pseudonyms) -> list[str]:
    return [keys.digest("name", name) for name in sorted(names_of_paths(paths))]


class _Tasks:
    """The pictures that have no verdict yet. A file's main frame comes first, since it says how many others there are;
    they follow at once, while a worker still has the file."""

    def __init__(
        self,
        folder: Path,
        survey: Survey,
        journal: IngestionJournal,
        names: ImageNames,
        decisions_of: DecisionLookup,
        options: Options,
        keys: Pseudonyms,
    ) -> None:
        self._folder, self._paths, self._journal, self._names = folder, survey.paths, journal, names
        self._decisions_of, self._options, self._keys = decisions_of, options, keys
        known = {source for source, frames in journal.records.items() if None in frames}
        new = [source for source in survey.paths if source not in known]
        self.total = len(new)
        """The number of pictures, as far as it is known."""
        self._waiting: list[Iterator[FileTask]] = [(self._task(source, None) for source in new)]
        for source in survey.paths:
            if source in known:
                self.add_frames(source)

    def next(self) -> FileTask | None:
        """The next task; None if there is none until further answers are in the journal."""
        while self._waiting:
            if task := next(self._waiting[-1], None):
                return task
            self._waiting.pop()
        return None

    def add_frames(self, source: str) -> None:
        """Add the other frames of a file whose main frame is in the journal."""
        frames = self._journal.records[source]
        main = frames[None].image
        if main and len(kept := self._options.kept(main.frames)) > 1:
            missing = len(kept) - len(frames)
            self.total += missing
            others = (frame for frame in kept if frame not in frames and frame != main.frame)
            self._waiting.append(self._others(source, others, missing))

    def _others(self, source: str, frames: Iterator[int], missing: int) -> Iterator[FileTask]:
        """Tasks for these frames, until one puts the file into quarantine."""
        while self._journal.records[source][None].image:
            if (frame := next(frames, None)) is None:
                return
            missing -= 1
            yield self._task(source, frame)
        self.total -= missing

    def _task(self, source: str, frame: int | None) -> FileTask:
        paths = self._paths[source]
        named, decisions = self._names.by_name(paths), self._decisions_of(source, frame)
        return FileTask(self._folder / paths[0], source, named, _keyed_names(paths, self._keys), decisions, frame)


def _publish(
    out: Path,
    survey: Survey,
    journal: IngestionJournal,
    questions: QuestionsFile,
    keys: Pseudonyms,
    options: Options,
    versions: dict[str, str],
    has_persons: bool,
) -> Manifest:
    """Write the lists and the manifest, then remove pictures that are no longer in them."""
    records = journal.records
    resolver = Resolver(survey.paths, records, keys, options.identifiers == "replace")
    images = [record.image for record in journal.pictures() if record.image is not None]
    lists = write_lists(out, sorted(images, key=lambda image: image.id), resolver.rows(questions.rows))
    omitted = resolver.left_out
    verdicts = Counter(frames[None].verdict for source, frames in records.items() for _ in survey.paths[source])
    reasons = {source: reason for source, frames in records.items() if (reason := frames[None].reason)}
    lost = [(name, reason) for source, reason in reasons.items() for name in survey.paths[source]]
    quarantined = sorted([*survey.refused, *lost])
    write_whole(out / QUARANTINE, quarantine_lines(quarantined, omitted), PRIVATE)
    counts = {
        "files": survey.files,
        "stored": verdicts["stored"],
        "unasked": verdicts["unasked"],
        "quarantined": dict(Counter(reason.value for _, reason in quarantined)),
        "nameless": sum(record.nameless for record in journal.pictures() if record.image is not None),
        "rows": len(questions.rows) - len(omitted),
        "rows_replaced": len(resolver.replaced),
        "rows_left_out": dict(Counter(reason.value for _, reason in omitted)),
    } | counts_of_pictures(images)
    codes = options.codes(is_clean=not counts["flagged"])
    manifest = {
        "format": FORMAT,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "key": keys.fingerprint(),
        "options": options.recorded(),
        "deidentification": [{"value": value, "meaning": meaning} for value, meaning in codes],
        "versions": versions,
        "code": code_digest(),
        "encoding": questions.encoding,
        "persons": has_persons,
        "counts": counts,
    }
    whole = write_manifest(out, manifest | lists)
    keep_finds(make_folder_of_finds(out), {image.id for image in images})
    names = {f"{image.id}.dcm" for image in images}
    for path in (out / PICTURES).iterdir():
        if path.name not in names:
            path.unlink()
    return whole
