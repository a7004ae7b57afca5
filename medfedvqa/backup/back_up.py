"""Writes a backup of a site, also while the site runs. Names in a backup do not depend on where the site's folders are.

The log is copied under its own lock, before the ledger: the ledger then has every charge that the log names. SQLite
copies the site's database. All other files are ones that their writers replace as a whole.

A backup is an age file, encrypted and authenticated in chunks of 64 KiB; the program `age` opens it too.

With a key the file is encrypted to the recipient of an age identity. With a passphrase the identity is a fresh one,
which comes before the file, in text, encrypted with the passphrase. The recipient is not stored: whoever has neither
key nor passphrase can make no file that opens with them.

Source: https://age-encryption.org/v1
"""

import fcntl
import io
import os
import re
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import pyrage
from pydantic import BaseModel, ConfigDict, Field

from audits import Entry, Event, read, verify
from audits.bounded_files import open_plain
from audits.errors import LogError
from audits.log import GENESIS
from audits.log_files import LOG_NAME, held_still
from audits.verifier import Verdict
from medfedvqa.atomic_files import PRIVATE
from medfedvqa.errors import BackupError
from medfedvqa.federation.job_budget import require_ledger
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_database import SITE_DATABASE, copy_for_backup
from medfedvqa.ingest.cohort_register import REGISTER, read_register
from medfedvqa.version import code_version
from privacy.ledger_accounts import LEDGER_NAME
from privacy.ledger_journal import Head, JournalRow, LedgerJournal, export_lines
from privacy.ledger_replay import Book
from privacy.patient_keys import KEY_NAME

_BEGIN, _END = b"-----BEGIN AGE ENCRYPTED FILE-----\n", b"-----END AGE ENCRYPTED FILE-----\n"
_AGE = b"age-encryption.org/"
_MOST_HEAD = 4096  # bytes
_DAMAGED = "the backup is damaged, or the key or passphrase is not the one that it was made with"


@dataclass(frozen=True)
class BackupSecret:
    """The secret that encrypts a backup: an age identity, `AGE-SECRET-KEY-1...`, or a passphrase."""

    kind: Literal["key", "passphrase"]
    secret: str

    def __post_init__(self) -> None:
        if self.kind == "key":
            _identity(self.secret)


class _Target:
    """A file that remembers the error of a failed write: the library's errors have no `errno`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def sealed(file: BinaryIO, secret: BackupSecret) -> Iterator[BinaryIO]:
    """A stream that encrypts its content into `file`, which is complete when the context ends. Raises `OSError`."""
    receive, send = os.pipe()
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(_encrypt, receive, file, secret)
        with suppress(BrokenPipeError), open(send, "wb") as stream:  # the thread says why it stopped reading
            yield stream
        writing.result()


def _encrypt(receive: int, file: BinaryIO, secret: BackupSecret) -> None:
    target = _Target(file)
    with open(receive, "rb") as plain:
        if secret.kind == "key":
            identity = _identity(secret.secret)
        else:
            identity = pyrage.x25519.Identity.generate()
            file.write(pyrage.passphrase.encrypt(str(identity).encode(), secret.secret, armored=True))
        try:
            pyrage.encrypt_io(plain, target, [identity.to_public()])
        except (pyrage.EncryptError, OSError) as error:
            raise target.error or error from None


def unseal(file: BinaryIO, secret: BackupSecret, plain: BinaryIO) -> None:
    """Decrypts what `sealed` wrote into `plain`. Raises `BackupError` if it is not authentic, and `OSError`."""
    target, (head, end, _) = _Target(plain), file.read(_MOST_HEAD).partition(_END)
    kind = "passphrase" if head.startswith(_BEGIN) else "key"
    if kind == "key" and not head.startswith(_AGE):
        raise BackupError("this file is not a backup of a site")
    if kind != secret.kind:
        raise BackupError(f"the backup was made with a {kind}: give the same {kind}")
    try:
        text = secret.secret
        if kind == "passphrase":
            text = pyrage.passphrase.decrypt(head + end, text).decode()
        file.seek(len(head + end) if kind == "passphrase" else 0)
        pyrage.decrypt_io(file, target, [_identity(text)])
    except (pyrage.DecryptError, OSError, UnicodeDecodeError):
        raise target.error or BackupError(_DAMAGED) from None


def _identity(text: str) -> pyrage.x25519.Identity:
    """The first identity of a file as `age-keygen` writes it. Raises `BackupError`."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    try:
        return pyrage.x25519.Identity.from_str(next(lines, "").strip())
    except pyrage.IdentityError:
        raise BackupError("the key of the backup is not an age identity: give the file that it was made with") from None


FORMAT: Literal[1] = 1
"""The format number of the manifest that this version writes."""
MANIFEST, EXPORT = "manifest.json", "ledger/export.jsonl"
IDENTITY, AUDIT_KEY = "keys/identity", "keys/audit"
AUDIT, STATE, KIT, LEDGER = "audit/", "state/", "kit/", "ledger/"
LEDGER_FILES = (KEY_NAME, REGISTER, "withdrawn.json")
"""Files in a backup besides the export of the ledger's journal; the site keeps the register in the ledger's file."""
SITE_FILE = "site.yml"
_KIT_FOLDERS = ("local", "startup")
_DERIVED = ("tlog", "wire", "running")
"""Folders of the log that are not in a backup: its public form, which is made from the lines, and the journals of the
processes that run."""
_NAME = re.compile(r"(?:(?:audit|state)/[^/\x00]{1,200}|kit(?:/[^/\x00]{1,200}){1,8}|keys/(?:identity|audit))")

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class BackupManifest(BaseModel):
    """A backup's description of itself. It is encrypted like the rest."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: int
    site: str
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    """When the backup was begun, UTC."""
    version: str
    """The version of this software that wrote it."""
    in_kit: bool
    """Whether `site.yml` is in the folder `local` of a startup kit."""
    entries: Annotated[int, Field(ge=0)]
    """The number of entries of the log."""
    head: Hash
    """The hash of the log's last entry."""
    records: Annotated[int, Field(ge=0)]
    """The number of records of the ledger."""


def kit_of(site_file: Path) -> Path:
    """The startup kit of a site, or the folder of a `site.yml` that is in none."""
    folder = site_file.resolve().parent
    return folder.parent if folder.name == "local" else folder


def site_files(config: SiteConfig, site_file: Path) -> dict[str, Path]:
    """The site's files outside of its log and its ledger's journal, by their names in a backup.

    Of `state`, only the files of ended jobs: an older state of a job that continues could open shares twice.
    """
    kit, over = kit_of(site_file), jobs_that_are_over(config.audit)
    files = {IDENTITY: config.identity, AUDIT_KEY: config.audit_key}
    files |= {f"{LEDGER}{name}": config.ledger / name for name in LEDGER_FILES if name != REGISTER}
    if config.state.is_dir():
        kept = [path for path in config.state.iterdir() if any(path.name.startswith(f"{job}.") for job in over)]
        files |= {f"{STATE}{path.name}": path for path in kept if not path.name.endswith(".partial")}
    placed = {path.resolve() for path in files.values()}
    folders = (config.state, config.audit, config.ledger)
    for path in _kit_files(site_file):
        elsewhere = path.resolve() in placed or any(path.resolve().is_relative_to(place) for place in folders)
        if not elsewhere:
            files[f"{KIT}{path.relative_to(kit)}"] = path
    return {name: path for name, path in sorted(files.items()) if path.is_file()}


def log_files(folder: Path) -> dict[str, Path]:
    """The files of a log by their names in a backup. Empty if the site has no log yet."""
    if not (folder / LOG_NAME).is_file():
        return {}
    paths = [path for path in folder.iterdir() if path.name not in _DERIVED and not path.name.endswith(".partial")]
    return {f"{AUDIT}{path.name}": path for path in sorted(paths) if path.is_file()}


def is_name(name: str) -> bool:
    """Whether a member of a backup may have this name, which must not lead out of its folder."""
    parts = name.split("/")
    listed = {MANIFEST, EXPORT, *(f"{LEDGER}{file}" for file in LEDGER_FILES)}
    return name in listed or (_NAME.fullmatch(name) is not None and not {"", ".", ".."} & set(parts))


def jobs_that_are_over(audit: Path) -> set[str]:
    """The ids of the jobs that the log has closed and not opened again. Raises `LogError`."""
    return {job for job, entry in _last_turns(audit).items() if entry.event is Event.CLOSE}


def open_jobs(audit: Path) -> dict[str, Entry]:
    """The jobs that the log opens and does not close, each with the entry. Raises `LogError`."""
    return {job: entry for job, entry in _last_turns(audit).items() if entry.event is not Event.CLOSE}


def _last_turns(audit: Path) -> dict[str, Entry]:
    turns = (Event.ADMITTED, Event.OPEN, Event.CLOSE)
    entries = read(audit) if (audit / LOG_NAME).is_file() else iter(())
    return {str(entry.job): entry for entry in entries if entry.event in turns}


def _kit_files(site_file: Path) -> list[Path]:
    kit = kit_of(site_file)
    if kit == site_file.resolve().parent:
        return [site_file.resolve()]
    paths = [path for folder in _KIT_FOLDERS for path in (kit / folder).rglob("*")]
    return [path for path in paths if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts]


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
        raise BackupError(f"the backup cannot be written ({error.strerror}), so no backup was made") from None
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
            raise LogError(f"the log breaks at entry {verdict.first_bad}, so no backup was made: have it verified")
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
