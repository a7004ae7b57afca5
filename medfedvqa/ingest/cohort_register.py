"""The register of ingested files and patients. It keeps a cohort from getting a second budget under another key.

Each ledger's file has a register of the files and patients of its stores. It holds HMAC-SHA256 digests under a key that
is derived from the ledger's key: only the holder of the ledger's folder can test a file or a patient ID against it.
Version 0.2.0 kept it in a file of its own, `ingested.json`, whose digests count until they are taken over.
"""

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from audits.bounded_files import read_bounded
from medfedvqa.errors import ConfigError
from medfedvqa.ingest.ledger_binding import bind_store, read_binding
from medfedvqa.ingest.pseudonyms import Pseudonyms
from medfedvqa.ingest.store import Keyed, StrictModel
from privacy import LedgerError
from privacy.ledger_accounts import LEDGER_NAME, LedgerFolder, make_folder, read_folder
from privacy.ledger_journal import LedgerJournal

REGISTER = "ingested.json"
"""The register of version 0.2.0, in the ledger's folder; also the register's name in a backup."""
SUFFIX = ".ledger"
"""The end of the names of ledgers' folders: other ledgers are looked for beside a store and beside its ledger."""
MAX_REGISTER = 1 << 28
_PURPOSE = "ingested files and patients"
_OTHER_KEY = f"'{REGISTER}' is of stores under another key: name this store's own ledger"


class Register(StrictModel):
    """The files and patients of all stores that a ledger is for. Nothing is ever removed from it."""

    format: Literal["medfedvqa-ingested/1"] = "medfedvqa-ingested/1"
    key: Keyed
    """The fingerprint of the key of the stores' pseudonyms."""
    files: list[Keyed]
    patients: list[Keyed]


@dataclass(frozen=True)
class Neighbour:
    """A ledger beside the store or beside the store's ledger, with the register in its folder."""

    folder: Path
    ledger: LedgerFolder

    @cached_property
    def marks(self) -> Pseudonyms:
        """Makes the keyed digests of this register."""
        return Pseudonyms(self.ledger.key.derived(_PURPOSE))

    @cached_property
    def register(self) -> Register | None:
        """The register; None before the first ingestion for this ledger. Raises `ConfigError`."""
        return read_register(self.folder)

    def knows(self, files: Collection[str], patients: Collection[str]) -> bool:
        """Whether the register has one of these files, by SHA-256, or one of these marks of patients."""
        register = self.register
        if register is None:
            return False
        marks = {file_mark(self.marks, file) for file in files}
        return not (marks.isdisjoint(register.files) and set(patients).isdisjoint(register.patients))


def file_mark(marks: Pseudonyms, sha256: str) -> str:
    """The digest that stands for a file in a register."""
    return marks.digest("file", sha256)


def read_register(folder: Path) -> Register | None:
    """The register in a ledger's folder, None if there is none. Raises `ConfigError`."""
    old, rows = _of_0_2_0(folder), list[tuple[str, str]]()
    if (folder / LEDGER_NAME).exists():
        with _open(folder) as journal, journal.reading() as connection:
            rows = connection.execute("SELECT kind, mark FROM register").fetchall()
    rows += _rows(old) if old else []
    kinds = {kind: sorted({mark for other, mark in rows if other == kind}) for kind in ("key", "file", "patient")}
    if len(kinds["key"]) > 1:
        raise ConfigError(_OTHER_KEY)
    return Register(key=kinds["key"][0], files=kinds["file"], patients=kinds["patient"]) if rows else None


def join_register(folder: Path, other: Path) -> None:
    """Add the files and patients of a register in another folder. Raises `ConfigError`."""
    before, added = read_register(folder), read_register(other)
    if before is None or added is None or before.key != added.key:
        raise ConfigError(_OTHER_KEY)
    _extend(folder, added)


def _extend(folder: Path, added: Register) -> None:
    """Add marks to the register, and those of a file of version 0.2.0, which is then removed."""
    with _open(folder) as journal:
        with journal.writing() as connection:
            rows = [row for register in (added, _of_0_2_0(folder)) if register for row in _rows(register)]
            connection.executemany("INSERT OR IGNORE INTO register VALUES (?, ?)", rows)
            if connection.execute("SELECT count(*) FROM register WHERE kind = 'key'").fetchone() != (1,):
                raise ConfigError(_OTHER_KEY)
        (folder / REGISTER).unlink(missing_ok=True)


def _of_0_2_0(folder: Path) -> Register | None:
    try:
        return Register.model_validate_json(read_bounded(folder / REGISTER, MAX_REGISTER))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise ConfigError(f"'{REGISTER}' in the ledger's folder is damaged: restore it from the backup") from None


def _rows(register: Register) -> list[tuple[str, str]]:
    marks = [("key", [register.key]), ("file", register.files), ("patient", register.patients)]
    return [(kind, mark) for kind, of_kind in marks for mark in of_kind]


@contextmanager
def _open(folder: Path) -> Iterator[LedgerJournal]:
    with _as_config_error(), closing(LedgerJournal(folder / LEDGER_NAME)) as journal:
        yield journal


class CohortCheck:
    """Compares a store that is being made with the registers of its ledger and of the other ledgers in sight."""

    def __init__(self, store: Path, folder: Path, key: str) -> None:
        """Makes the ledger's key if there is none. `key` is the fingerprint of the key of the pseudonyms.

        Raises `ConfigError` if the ledger belongs to another key, or the store to another ledger.
        """
        self._store, self._key = store, key
        with _as_config_error():
            self._refuse_other_binding(read_folder(folder))
            self._ledger = Neighbour(folder, make_folder(folder))
            places = sorted({*_ledgers_beside(store), *_ledgers_beside(folder)} - {folder.resolve()})
            beside = ((place, read_folder(place)) for place in places)
            self._others = [Neighbour(place, ledger) for place, ledger in beside if ledger is not None]
        register = self._ledger.register
        if self._ledger.ledger.store not in (None, key) or (register is not None and register.key != key):
            raise ConfigError(
                "the ledger is for stores of another key: give that key by --key, so that the patients' budget "
                "continues, or, for other patients, another folder by --ledger"
            )

    @property
    def mark_keys(self) -> list[bytes]:
        """The keys of all registers in sight, that of this ledger first. A patient is marked under each of them."""
        return [ledger.marks.secret for ledger in (self._ledger, *self._others)]

    def admit(self, files: Collection[str], patients: Collection[str]) -> None:
        """Registers files, by SHA-256, and marks of patients, and binds the store to its ledger.

        The store's manifest is written later, so a crash in between leaves registered files without a store.
        Raises `ConfigError` if another ledger knows one of them.
        """
        if other := next((ledger for ledger in self._others if ledger.knows(files, patients)), None):
            raise ConfigError(
                f"files or patients of this store were ingested before, and their budget is in the ledger "
                f"'{other.folder.name}': give it by --ledger, and the key of its store by --key, so that it continues"
            )
        marks = sorted({file_mark(self._ledger.marks, file) for file in files})
        _extend(self._ledger.folder, Register(key=self._key, files=marks, patients=sorted(patients)))
        with _as_config_error():
            bind_store(self._store, self._key, make_folder(self._ledger.folder))

    def _refuse_other_binding(self, ledger: LedgerFolder | None) -> None:
        binding = read_binding(self._store)
        if binding is not None and (ledger is None or ledger.fingerprint != binding.ledger):
            raise ConfigError("the store's patients are charged to another ledger: give its folder by --ledger")


def _ledgers_beside(path: Path) -> Iterator[Path]:
    for folder in path.resolve().parent.glob(f"*{SUFFIX}"):
        if folder.is_dir():
            yield folder.resolve()


@contextmanager
def _as_config_error() -> Iterator[None]:
    try:
        yield
    except LedgerError as error:
        raise ConfigError(str(error)) from None
