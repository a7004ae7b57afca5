"""`ingest`: a folder of DICOM files and a file of questions become a store."""

import fcntl
import hashlib
import json
import os
import platform
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.cohort_register import CohortCheck
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.ingestion_journal import IngestionJournal, Record, quarantine_lines
from medfedvqa.ingest.ledger_binding import BINDING, default_ledger
from medfedvqa.ingest.pseudonyms import Pseudonyms, load_pseudonyms
from medfedvqa.ingest.questions import IngestedQuestion, read_questions
from medfedvqa.ingest.refusal_reasons import PASSING, Reason
from medfedvqa.ingest.resolve import Resolver, Wanted
from medfedvqa.ingest.store import (
    FORMAT,
    JOURNAL,
    LOCK,
    MANIFEST,
    PICTURES,
    QUARANTINE,
    Manifest,
    read_manifest,
    write_store,
)
from medfedvqa.ingest.worker_pool import Task, WorkerProcess, handled
from medfedvqa.version import code_digest, code_version

TOOLS = (
    "pydicom", "numpy", "dicom-anonymizer", "rapidocr-onnxruntime", "onnxruntime", "opencv-python", "pylibjpeg",
    "pylibjpeg-openjpeg", "pylibjpeg-rle", "python-gdcm", "pillow",
)  # fmt: skip
CHUNK = 2**20
Watch = Callable[[str, int, int], None]
"""Called with what is going on, how many are done, and of how many (0: not known yet)."""


@dataclass(frozen=True)
class Survey:
    """What is in the folder."""

    paths: dict[str, list[str]]
    """Paths within the folder, by the keyed digest of their content."""
    sha256: dict[str, str]
    """The digest of the content itself, by the same."""
    refused: list[tuple[str, Reason]]
    """Paths that were not even read."""

    @property
    def files(self) -> int:
        """All of them."""
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
) -> Manifest:
    """Make or renew the store `out`: files that it knows already are not read again, others are forgotten.

    `ledger` is the folder of the ledger that the patients are charged to, by default beside the store; a store that an
    earlier version made, and that is bound to no ledger, is left to its sites unless a ledger is named. A killed call
    leaves the old store, if there was one, and what it got done is not done again. Raises `DataError` for the folder or
    the questions, `ConfigError` for the rest.
    """
    versions = tool_versions()
    asked = read_questions(questions)
    _check_places(folder, out, key, ledger or default_ledger(out))
    keys = load_pseudonyms(key)
    with _only_one(out):
        if (out / MANIFEST).exists() and read_manifest(out).key != keys.fingerprint():
            raise ConfigError("the store was made with another key: give that one by --key, or another --out")
        cohort = None
        if ledger or not _is_of_earlier_version(out):
            cohort = CohortCheck(out, ledger or default_ledger(out), keys.fingerprint())
        survey = _survey(folder, keys, options, watch)
        with IngestionJournal(out / JOURNAL) as journal:
            recipe = options.recipe(versions)
            wanted = Wanted.of(asked, keys)
            _settle_known(out, survey, journal, wanted, recipe, marked=cohort is not None)
            registers = cohort.mark_keys if cohort else []
            start = partial(WorkerProcess, options, keys, (out / PICTURES).resolve(), wanted.keyed, registers)
            _read_new(folder, survey, journal, wanted, recipe, start, workers, watch)
            journal.keep(survey.paths)
            if cohort:
                stored = [record for record in journal.records.values() if record.verdict == "stored"]
                files = {survey.sha256[record.source] for record in stored}
                cohort.admit(files, {mark for record in stored for mark in record.marks})
            return _publish(out, survey, journal, asked, keys, options, versions)


def tool_versions() -> dict[str, str]:
    """The versions of all that has a part in the result. Raises `ConfigError` if the extra is not installed."""
    try:
        tools = {name: version(name) for name in TOOLS}
    except PackageNotFoundError:
        raise ConfigError(
            "ingestion needs more packages: pip install 'medfedvqa[ingest]', under Python 3.11 or 3.12"
        ) from None
    return {"python": platform.python_version(), "medfedvqa": code_version(), **tools}


def _is_of_earlier_version(out: Path) -> bool:
    """Whether the store is whole and no ledger is noted in it: its sites may have one already."""
    return (out / MANIFEST).exists() and not (out / BINDING).exists()


def _check_places(folder: Path, out: Path, key: Path, ledger: Path) -> None:
    if not folder.is_dir():
        raise DataError("the DICOM folder does not exist: check its path")
    inner, outer = out.resolve(), folder.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise ConfigError("the store and the DICOM folder must not lie within each other: choose another --out")
    if key.resolve().is_relative_to(inner):
        raise ConfigError("the key must not lie in the store, which may be handed on: choose another --key")
    if ledger.resolve().is_relative_to(inner):
        raise ConfigError("the ledger must not lie in the store, which may be handed on: choose another --ledger")


@contextmanager
def _only_one(out: Path) -> Iterator[None]:
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        (out / PICTURES).mkdir(mode=0o700, exist_ok=True)
        lock = os.open(out / LOCK, os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError:
        raise ConfigError("the store cannot be written: check --out and its permissions") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError("another ingestion is writing this store: wait for it") from None
        yield
    finally:
        os.close(lock)


def _survey(folder: Path, keys: Pseudonyms, options: Options, watch: Watch) -> Survey:
    """Every file's digest; links are not followed. Raises `DataError` for an empty folder."""
    paths: dict[str, list[str]] = {}
    digests: dict[str, str] = {}
    refused: list[tuple[str, Reason]] = []
    for number, path in enumerate(_files(folder), 1):
        name = path.relative_to(folder).as_posix()
        try:
            content = _digest(path, options)
            source = keys.digest("source", content)
        except _Refused as error:
            refused.append((name, error.reason))
        else:
            paths.setdefault(source, []).append(name)
            digests[source] = content
        watch("looking through the folder", number, 0)
    if not paths and not refused:
        raise DataError("the DICOM folder is empty: nothing is taken out of the store on such evidence")
    return Survey(paths, digests, refused)


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names))


class _Refused(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


def _digest(path: Path, options: Options) -> str:
    """SHA-256 of a regular file, hex."""
    digest = hashlib.sha256()
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise _Refused(Reason.NOT_REGULAR)
        if status.st_size > options.max_bytes:
            raise _Refused(Reason.TOO_LARGE)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    except OSError:
        raise _Refused(Reason.UNOPENED) from None
    return digest.hexdigest()


def _settle_known(
    out: Path, survey: Survey, journal: IngestionJournal, wanted: Wanted, recipe: str, marked: bool
) -> None:
    """Forget what has to be read again, and pictures that nobody asks for any more; `marked`: as well as patients
    without a mark."""
    for source, record in list(journal.records.items()):
        asked = wanted.asks(survey.paths.get(source, ()), record)
        again = record.recipe != recipe or record.reason in PASSING
        if record.verdict == "stored":
            again |= asked and (not _intact(out, record) or (marked and not record.marks))
            if not asked:
                journal.records[source] = record.model_copy(
                    update={"verdict": "unasked", "image": None, "secrets": [], "marks": []}
                )
        if record.verdict == "unasked":
            again |= asked
        if again:
            del journal.records[source]


def _intact(out: Path, record: Record) -> bool:
    assert record.image is not None
    try:
        content = (out / PICTURES / f"{record.image.id}.dcm").read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content).hexdigest() == record.image.sha256


def _read_new(
    folder: Path,
    survey: Survey,
    journal: IngestionJournal,
    wanted: Wanted,
    recipe: str,
    start: Callable[[], WorkerProcess],
    workers: int,
    watch: Watch,
) -> None:
    """Every file whose verdict is not known, in worker processes."""
    base = folder.resolve()
    new = [source for source in survey.paths if source not in journal.records]
    tasks = (Task(base / survey.paths[source][0], source, wanted.by_name(survey.paths[source])) for source in new)
    if new:
        for done, (task, answer) in enumerate(handled(tasks, start, min(workers, len(new))), 1):
            journal.add(Record.model_validate_json(json.dumps(answer | {"source": task.source, "recipe": recipe})))
            watch("reading images", done, len(new))


def _publish(
    out: Path,
    survey: Survey,
    journal: IngestionJournal,
    asked: list[IngestedQuestion],
    keys: Pseudonyms,
    options: Options,
    versions: dict[str, str],
) -> Manifest:
    """Write the lists and the manifest, then remove pictures that are no longer in them."""
    records = journal.records
    rows, left_out = Resolver(survey.paths, records, keys).rows(asked)
    images = [record.image for record in records.values() if record.image is not None]
    reasons = {source: record.reason for source, record in records.items() if record.reason}
    lost = [(name, reason) for source, reason in reasons.items() for name in survey.paths[source]]
    quarantined = sorted([*survey.refused, *lost])
    write_whole(out / QUARANTINE, quarantine_lines(quarantined, left_out), PRIVATE)
    counts = {
        "files": survey.files,
        "stored": sum(len(survey.paths[source]) for source, record in records.items() if record.verdict == "stored"),
        "unasked": sum(len(survey.paths[source]) for source, record in records.items() if record.verdict == "unasked"),
        "quarantined": dict(Counter(reason.value for _, reason in quarantined)),
        "redacted": sum(bool(image.boxes) for image in images),
        "rows": len(rows),
        "rows_left_out": dict(Counter(reason.value for _, reason in left_out)),
        "patients": len({image.patient for image in images}),
    }
    manifest = {
        "format": FORMAT,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "key": keys.fingerprint(),
        "options": asdict(options),
        "deidentification": [{"value": value, "meaning": meaning} for value, meaning in options.codes],
        "versions": versions,
        "code": code_digest(),
        "counts": counts,
    }
    whole = write_store(out, manifest, sorted(images, key=lambda image: image.id), rows)
    kept = {f"{image.id}.dcm" for image in images}
    for path in (out / PICTURES).iterdir():
        if path.name not in kept:
            path.unlink()
    return whole
