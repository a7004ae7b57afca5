"""Unpacks a backup into a folder, and checks everything in it before any of it is used."""

import os
import tarfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, BinaryIO

from pydantic import ValidationError

from audits import verify
from audits.bounded_files import MAX_TEXT, open_plain, read_bounded
from audits.log import GENESIS
from audits.log_files import LOG_NAME
from medfedvqa.backup.age_file import BackupSecret, unseal
from medfedvqa.backup.contents import AUDIT, EXPORT, FORMAT, LEDGER, MANIFEST, BackupManifest, is_name
from medfedvqa.errors import BackupError
from privacy import Ledger
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
        raise BackupError("the backup holds a ledger without its key: restore an older one")
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
        raise BackupError("the log in the backup does not hold, or is not the one that its manifest names")
