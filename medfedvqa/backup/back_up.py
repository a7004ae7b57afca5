"""Writes a backup of a site, also while the site runs.

The log is copied under its own lock, before the ledger: the ledger then has every charge that the log names. SQLite
copies the site's database. All other files are ones that their writers replace as a whole.
"""

import fcntl
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from audits import verify
from audits.bounded_files import open_plain
from audits.errors import LogError
from audits.log import GENESIS
from audits.log_files import held_still
from audits.verifier import Verdict
from medfedvqa.atomic_files import PRIVATE
from medfedvqa.backup.age_file import BackupSecret, sealed
from medfedvqa.backup.contents import (
    EXPORT,
    FORMAT,
    LEDGER,
    MANIFEST,
    STATE,
    BackupManifest,
    kit_of,
    log_files,
    site_files,
)
from medfedvqa.errors import BackupError
from medfedvqa.federation.job_budget import require_ledger
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_database import SITE_DATABASE, copy_for_backup
from medfedvqa.ingest.cohort_register import REGISTER, read_register
from medfedvqa.version import code_version
from privacy.ledger_folder import LEDGER_NAME
from privacy.ledger_journal import Head, JournalRow, LedgerJournal, export_lines
from privacy.ledger_replay import Book

SUFFIX = ".medfedvqa-backup"
_BUSY = "another backup of this site is being written into this folder: wait for it"


def back_up(config: SiteConfig, site_file: Path, folder: Path, secret: BackupSecret) -> tuple[Path, BackupManifest]:
    """Writes a new backup, named by site and time, into `folder`; returns its path and its manifest.

    The file is whole or absent. Raises `BackupError`, `LogError` for a log that fails verification, `LedgerError` also
    for a ledger that is lost.
    """
    require_ledger(config)
    now = datetime.now(UTC)
    target = folder / f"{config.name}-{now:%Y%m%dT%H%M%S%fZ}{SUFFIX}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _draft(folder / f".{config.name}{SUFFIX}.partial") as (draft, file):
            with sealed(file, secret) as stream:
                manifest = _write(stream, config, site_file, f"{now:%Y-%m-%dT%H:%M:%SZ}")
            file.flush()
            os.fsync(file.fileno())
            os.link(draft, target)  # unlike a rename, never replaces a file
    except OSError as error:
        raise BackupError(f"the backup cannot be written ({error.strerror}): there is none of this time") from None
    return target, manifest


@contextmanager
def _draft(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A temporary empty file, locked so that one backup runs at a time; a killed process's leftover is reused."""
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, PRIVATE)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(_BUSY) from None
        if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise BackupError(_BUSY)  # the file has just become another process's whole backup
        file.truncate(0)
        try:
            yield path, file
        finally:
            path.unlink(missing_ok=True)


def _write(stream: BinaryIO, config: SiteConfig, site_file: Path, time: str) -> BackupManifest:
    with tarfile.open(fileobj=stream, mode="w|", bufsize=1 << 20) as archive:
        log = _add_log(archive, config.audit)
        rows = _ledger_rows(config.ledger)
        _add(archive, EXPORT, b"".join(export_lines(rows)))
        if register := read_register(config.ledger):
            _add(archive, f"{LEDGER}{REGISTER}", register.model_dump_json().encode())
        if database := copy_for_backup(config.state):
            _add(archive, f"{STATE}{SITE_DATABASE}", database)
        for name, path in site_files(config, site_file).items():
            with open_plain(path) as file:
                _add_file(archive, name, file)
        manifest = BackupManifest(
            format=FORMAT,
            site=config.name,
            time=time,
            version=code_version(),
            in_kit=kit_of(site_file) != site_file.resolve().parent,
            entries=log.entries,
            head=log.head,
            records=len(rows),
        )
        _add(archive, MANIFEST, manifest.model_dump_json(indent=2).encode())
    return manifest


def _add_log(archive: tarfile.TarFile, folder: Path) -> Verdict:
    """Adds a consistent copy of the log, and returns its verdict. Raises `LogError` if it does not hold."""
    if not log_files(folder):
        return Verdict(0, GENESIS)
    with held_still(folder):
        verdict = verify(folder)
        if not verdict.ok:
            raise LogError(f"the log breaks at entry {verdict.first_bad}: have it verified; there is no backup of it")
        for name, path in log_files(folder).items():
            with open_plain(path) as file:
                _add_file(archive, name, file)
    return verdict


def _ledger_rows(folder: Path) -> list[JournalRow]:
    """The ledger's records as they are at one moment, replayed. Raises `LedgerError`."""
    if not (folder / LEDGER_NAME).exists():
        return []
    with closing(LedgerJournal(folder / LEDGER_NAME)) as journal:
        rows = journal.rows(Head())
    Book().apply(rows)
    return rows


def _add_file(archive: tarfile.TarFile, name: str, file: BinaryIO) -> None:
    status = os.fstat(file.fileno())
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = status.st_size, status.st_mode & 0o777, int(status.st_mtime)
    archive.addfile(info, file)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), PRIVATE
    archive.addfile(info, io.BytesIO(content))
