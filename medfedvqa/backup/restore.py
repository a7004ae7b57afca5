"""Checks and unpacks a backup, and restores it, without undoing what the site's patients have spent since.

Files at the site stay, and missing ones are placed; a log that is older than the backup's is replaced. Everything is
prepared first, and then takes effect at once: see `medfedvqa.atomic_files`. The ledger is joined and never replaced,
so that no charge of either is lost.
"""

import os
import shutil
import tarfile
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import dataclass, field
from filecmp import cmp
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, BinaryIO

from pydantic import ValidationError

from audits import AuditKey, AuditLog, Event, LogError, VerdictState, examine, origin_of, verify
from audits.bounded_files import MAX_TEXT, open_plain, read_bounded
from audits.entry import parse_line
from audits.log import GENESIS
from audits.log_files import LOG_NAME, lines_from
from audits.verifier import Verdict
from medfedvqa.atomic_files import decide, finish, locked, prepare
from medfedvqa.backup.back_up import (
    AUDIT,
    AUDIT_KEY,
    EXPORT,
    FORMAT,
    IDENTITY,
    KIT,
    LEDGER,
    MANIFEST,
    SITE_FILE,
    STATE,
    BackupManifest,
    BackupSecret,
    is_name,
    open_jobs,
    unseal,
)
from medfedvqa.errors import BackupError
from medfedvqa.federation.job_budget import check_ledger
from medfedvqa.federation.live_processes import live_processes
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_database import SITE_DATABASE, add_lost_rows
from medfedvqa.ingest.cohort_register import REGISTER, join_register, read_register
from privacy import Ledger
from privacy.ledger_accounts import LEDGER_NAME, read_folder
from privacy.ledger_journal import JournalRow, read_export
from privacy.ledger_replay import Book
from privacy.patient_keys import KEY_NAME

MAX_FILES = 1_000_000
_DAMAGED = "the backup is not one that this software writes: restore an older one"


@dataclass(frozen=True)
class Unpacked:
    """A verified backup, unpacked into `folder`."""

    folder: Path
    manifest: BackupManifest
    rows: list[JournalRow]
    """The ledger's records."""
    book: Book

    @property
    def audit(self) -> Path:
        """The folder of the log."""
        return self.folder / AUDIT

    def files(self, part: str) -> dict[str, Path]:
        """The files of a part, such as `state/`, by their paths in it."""
        paths = (path for path in (self.folder / part).rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder / part)): path for path in sorted(paths)}

    def make_ledger(self) -> None:
        """Makes a ledger in the unpacked folder from the backup's records, unchanged. Raises `LedgerError`."""
        assert self.book.origin is not None
        with closing(Ledger(self.folder / LEDGER, self.book.origin[0], self.book.store)) as ledger:
            ledger.import_(self.folder / EXPORT)


def unpack(backup: Path, secret: BackupSecret, folder: Path) -> Unpacked:
    """Unpacks into the new folder `folder`, for this account only.

    Raises `BackupError` if the file is damaged, of a newer version, or no backup; `LogError`, `LedgerError`.
    """
    folder.mkdir(mode=0o700)
    try:
        with open_plain(backup) as file:
            _extract(file, secret, folder)
    except OSError as error:
        raise BackupError(f"the backup cannot be read, or unpacked ({error.strerror})") from None
    manifest = _manifest(folder)
    (folder / AUDIT).mkdir(mode=0o700, exist_ok=True)
    (folder / LEDGER).mkdir(mode=0o700, exist_ok=True)
    _check_log(folder / AUDIT, manifest)
    rows, book = read_export(folder / EXPORT), Book()
    book.apply(rows)
    if len(rows) != manifest.records or bool(rows) != (book.origin is not None):
        raise BackupError(_DAMAGED)
    if rows and not (folder / LEDGER / KEY_NAME).is_file():
        raise BackupError("the backup holds a ledger without its key: restore an older backup")
    return Unpacked(folder, manifest, rows, book)


def _extract(file: BinaryIO, secret: BackupSecret, folder: Path) -> None:
    """Decrypts a backup and extracts its files into a folder. Every byte is authenticated before any is used."""
    with TemporaryFile(dir=folder) as plain:
        unseal(file, secret, plain)
        plain.seek(0)
        try:
            with tarfile.open(fileobj=plain, mode="r:") as archive:
                for number, member in enumerate(archive):
                    if number > MAX_FILES or not member.isreg() or not is_name(member.name):
                        raise BackupError(_DAMAGED)
                    content = archive.extractfile(member)
                    assert content is not None
                    _write(folder / member.name, member.mode & 0o777, content)
        except tarfile.TarError:
            raise BackupError(_DAMAGED) from None


def _write(path: Path, mode: int, content: IO[bytes]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        while block := content.read(1 << 20):
            file.write(block)
    path.chmod(mode)


def _manifest(folder: Path) -> BackupManifest:
    try:
        manifest = BackupManifest.model_validate_json(read_bounded(folder / MANIFEST, MAX_TEXT))
    except (OSError, ValidationError):
        raise BackupError(_DAMAGED) from None
    if manifest.format > FORMAT:
        raise BackupError("the backup was written by a newer version of this software: restore it with that one")
    return manifest


def _check_log(folder: Path, manifest: BackupManifest) -> None:
    if not (folder / LOG_NAME).exists():
        held = (0, GENESIS)
    else:
        verdict = verify(folder)
        held = (verdict.entries, verdict.head) if verdict.ok else (-1, "")
    if held != (manifest.entries, manifest.head):
        raise BackupError("the log in the backup is broken, or is not the one that its manifest names")


UNPACKED, _LOCK = ".restore", ".restore.lock"
CLOSED = "a backup was restored: what the job released after it is not known here, and its charges stay"
"""The reason in a restored log for closing the jobs that were open when the backup was made."""


@dataclass
class Restored:
    """The result of a restore, by names of a backup's parts."""

    time: str
    """When the backup was made, UTC."""
    entries: int
    """The number of entries of the backup's log."""
    placed: list[str] = field(default_factory=list)
    """Parts that were missing, or older than in the backup."""
    kept: list[str] = field(default_factory=list)
    """Parts that stay as they are at the site, though they differ from the backup."""
    closed: list[str] = field(default_factory=list)
    """Jobs that the restored log closes."""
    joined: int = 0
    """The number of records that the site's ledger took from the backup's."""


def restore(backup: Path, kit: Path, secret: BackupSecret, against: Collection[Path] = ()) -> Restored:
    """Restores a backup into a startup kit, or the folder of a `site.yml`, which is made if it is missing.

    `against`: others' evidence on the log, as for `audits.examination`; a backup is refused if they hold a later state.
    First finishes a restore that was interrupted. Raises `BackupError`, `ConfigError`, `AuditError`, `LedgerError`;
    nothing at the site has changed then, except that its ledger may have more charges.
    """
    kit = kit.resolve()
    unwritable = BackupError("the kit's folder cannot be written: restore as the site's own account")
    try:
        kit.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        raise unwritable from None
    with locked(kit / _LOCK, unwritable, BackupError("another restore into this folder runs: wait for it")):
        for folder in (kit, kit / "local"):
            finish(folder)
        shutil.rmtree(kit / UNPACKED, ignore_errors=True)
        try:
            return _Restore(kit, unpack(backup, secret, kit / UNPACKED), against).run()
        finally:
            shutil.rmtree(kit / UNPACKED, ignore_errors=True)


class _Restore:
    """One restore: every check comes before the first change."""

    def __init__(self, kit: Path, backup: Unpacked, against: Collection[Path]) -> None:
        self._kit, self._backup, self._against = kit, backup, against
        manifest = backup.manifest
        if kit.name != manifest.site:
            raise BackupError(
                f"the backup is of the site '{manifest.site}': restore it into a folder of that name, and no other"
            )
        self._settings = kit / "local" if manifest.in_kit else kit
        self._config = self._site_config()
        self._done = Restored(manifest.time, manifest.entries)
        self._places: dict[Path, Path] = {}
        """The files and folders to be placed, by their places."""

    def run(self) -> Restored:
        """Check everything, then prepare the files and put them in place; returns what was done."""
        processes = live_processes(self._config.audit, self._kit)
        if processes.site or processes.jobs:
            raise BackupError("the site is running: stop it before you restore")
        log_is_new = self._take_log()
        self._take_keys(log_is_new)
        self._take_ledger(log_is_new)
        for name, path in self._backup.files(STATE).items():
            if name == SITE_DATABASE and (self._config.state / name).exists():
                add_lost_rows(self._config.state, path)
            else:
                _refuse_parts(self._config.state / SITE_DATABASE, "database")
                self._take(f"{STATE}{name}", path, self._config.state / name)
        for name, path in self._backup.files(KIT).items():
            self._take(f"{KIT}{name}", path, self._kit / name)
        for place, source in self._places.items():
            prepare(place, source)
        if self._places:
            self._settings.mkdir(mode=0o700, parents=True, exist_ok=True)
            decide(self._settings, list(self._places), "before-restore")
            finish(self._settings)
        return self._done

    def _site_config(self) -> SiteConfig:
        """The settings at the site, or else those of the backup with the paths that they have at the site."""
        present = self._settings / SITE_FILE
        if present.exists():
            return load_site_config(present, self._backup.manifest.site)
        saved = self._backup.folder / KIT / self._settings.relative_to(self._kit) / SITE_FILE
        if not saved.is_file():
            raise BackupError(f"the backup has no '{SITE_FILE}': restore it into a folder that has one")
        # Paths in it are relative to its folder, so it is read where it will be.
        self._settings.mkdir(mode=0o700, parents=True, exist_ok=True)
        trial = self._settings / f".{SITE_FILE}.trial"
        try:
            shutil.copyfile(saved, trial)
            return load_site_config(trial, self._backup.manifest.site)
        finally:
            trial.unlink(missing_ok=True)

    def _take_log(self) -> bool:
        """Whether the backup's log replaces the site's. Raises `BackupError` if neither log continues the other."""
        ours, theirs, backup = self._config.audit, self._backup.audit, self._backup.manifest
        present = verify(ours) if (ours / LOG_NAME).is_file() else Verdict(0, GENESIS)
        if not present.ok:
            raise BackupError("the site's own log is damaged: move its folder aside, keep it, and restore again")
        if present.entries >= backup.entries and _head_at(ours, present, backup.entries) == backup.head:
            return False
        own = Verdict(backup.entries, backup.head)
        if not (present.entries < backup.entries and _head_at(theirs, own, present.entries) == present.head):
            raise BackupError(
                "the site's log and the backup's continue each other in neither direction: one is of another site, or "
                "went on after an older copy was restored; have both verified"
            )
        if self._against:
            judged = examine(theirs, backup.site, self._against).consistency
            if judged.state is VerdictState.BROKEN:
                text = next(part.said for part in judged.parts if part.state is VerdictState.BROKEN)
                raise BackupError(f"others hold more of this log than the backup: {text}")
        self._places[ours] = theirs
        self._done.placed.append("audit")
        return True

    def _take_keys(self, log_is_new: bool) -> None:
        saved_key, saved_identity = self._backup.folder / AUDIT_KEY, self._backup.folder / IDENTITY
        if log_is_new and _differ(self._config.audit_key, saved_key):
            raise BackupError("the audit keys of the site and of the backup's log differ: the backup is another site's")
        for name, path, place in (
            (AUDIT_KEY, saved_key, self._config.audit_key),
            (IDENTITY, saved_identity, self._config.identity),
        ):
            if path.is_file():
                self._take(name, path, place)

    def _take_ledger(self, log_is_new: bool) -> None:
        """Prepares the ledger, or joins it with the site's own. The result has every charge that the log names."""
        ours, saved = self._config.ledger, self._backup.folder / LEDGER
        audit = self._backup.audit if log_is_new else self._config.audit
        if log_is_new:
            self._close_jobs()
        if _differ(ours / KEY_NAME, saved / KEY_NAME):
            raise BackupError("the ledgers of site and backup have different keys, so they are on different patients")
        if (ours / LEDGER_NAME).exists():
            self._join_ledger(audit)
        elif self._backup.rows:
            self._place_ledger(audit)
        else:
            check_ledger(None, audit)
        for name, path in self._backup.files(LEDGER).items():
            if name == REGISTER and read_register(ours) is not None:
                join_register(ours, path.parent)
            elif f"{LEDGER}{name}" != EXPORT and name != LEDGER_NAME:
                self._take(f"{LEDGER}{name}", path, ours / name)

    def _join_ledger(self, audit: Path) -> None:
        present = read_folder(self._config.ledger)
        assert present is not None
        with closing(Ledger(self._config.ledger, self._config.name, present.store)) as ledger:
            if self._backup.rows:
                self._done.joined = ledger.import_(self._backup.folder / EXPORT)
            self._check_and_free(ledger, audit)

    def _place_ledger(self, audit: Path) -> None:
        ours, saved = self._config.ledger, self._backup.folder / LEDGER
        _refuse_parts(ours / LEDGER_NAME, "ledger")
        self._backup.make_ledger()
        with closing(Ledger(saved, self._config.name, self._backup.book.store)) as ledger:
            self._check_and_free(ledger, audit)
        self._places[ours / LEDGER_NAME] = saved / LEDGER_NAME
        self._done.placed.append("ledger")

    def _check_and_free(self, ledger: Ledger, audit: Path) -> None:
        check_ledger(ledger, audit)
        for job in self._done.closed:
            ledger.free(job)

    def _close_jobs(self) -> None:
        """Closes in the restored log the jobs that it leaves open. Else the site would close them when it starts, find
        no release of theirs in this older log, and give their charges back."""
        jobs = open_jobs(self._backup.audit)
        if jobs:
            key = AuditKey.at(self._backup.folder / AUDIT_KEY, origin_of(self._config.name))
            with closing(AuditLog(self._backup.audit, self._config.name, key)) as log:
                for job, entry in jobs.items():
                    log.append(Event.CLOSE, job=job, method=entry.method, reason=CLOSED)
        self._done.closed = list(jobs)

    def _take(self, name: str, source: Path, place: Path) -> None:
        """Places a file that is missing; one that is there stays."""
        if not place.exists():
            self._places[place] = source
            self._done.placed.append(name)
        elif _differ(place, source):
            self._done.kept.append(name)


def _refuse_parts(place: Path, what: str) -> None:
    """Raises `BackupError` if SQLite's side files of a lost file remain: it would apply them to the restored file."""
    if not place.exists() and list(place.parent.glob(f"{place.name}-*")):
        raise BackupError(f"the site's {what} is gone, but parts of it are there: move its folder aside, and keep it")


def _differ(first: Path, second: Path) -> bool:
    """Whether both files exist and differ in content."""
    return first.is_file() and second.is_file() and not cmp(first, second, shallow=False)


def _head_at(folder: Path, verdict: Verdict, entries: int) -> str | None:
    """The hash of the last of a log's first `entries` entries; None if the log does not have it."""
    if entries in (0, verdict.entries):
        return verdict.head if entries else GENESIS
    with suppress(LogError):
        for line in lines_from(folder, entries - 1):
            return str(parse_line(line)["leaf_hash"])
    return None
