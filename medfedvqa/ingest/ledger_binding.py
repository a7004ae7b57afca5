"""Binds a store to the ledger that its patients are charged to. Store and ledger each note the other.

The store notes the fingerprint of the ledger's key and the ledger's newest head. So every site of the store notices
another ledger, a copy that diverged, and an older copy that was restored. The store holds no path: a ledger may be
moved, and a store may be copied; every copy names the same ledger.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from audits.bounded_files import MAX_TEXT, read_bounded
from medfedvqa.atomic_files import PRIVATE, locked, write_whole
from medfedvqa.errors import DataError
from medfedvqa.ingest.store import MANIFEST, Digest, Keyed, StrictModel, read_manifest
from privacy import Ledger, LedgerError
from privacy.ledger_accounts import LedgerFolder, read_folder
from privacy.ledger_journal import Head

BINDING, BINDING_LOCK = "ledger.json", "ledger.lock"
FORMAT: Literal["medfedvqa-binding/1"] = "medfedvqa-binding/1"
ELSEWHERE = (
    "the patients of this store are charged to another ledger: write its folder under 'ledger' in site.yml, or give it "
    "by --ledger; if it is lost, restore it from the backup"
)


class Binding(StrictModel):
    """A store's record of its ledger."""

    format: Literal["medfedvqa-binding/1"]
    key: Keyed
    """The fingerprint of the key of the store's pseudonyms."""
    ledger: Keyed
    """The fingerprint of the ledger's key."""
    seq: Annotated[int, Field(ge=0)]
    """The number of the newest record that the store has noted; 0 before the first."""
    head: Digest
    """The hash of that record."""


def default_ledger(store: Path) -> Path:
    """The ledger's folder beside a store, which is used unless another is named."""
    place = store.resolve()
    return place.with_name(f"{place.name}.ledger")


def read_binding(store: Path) -> Binding | None:
    """The store's binding; None if it is bound to no ledger. Raises `LedgerError`."""
    path = store / BINDING
    if not path.exists():
        return None
    try:
        return Binding.model_validate_json(read_bounded(path, MAX_TEXT))
    except (OSError, ValidationError):
        raise LedgerError(f"the store's '{BINDING}' is damaged: restore it from the backup of the store") from None


def bind_store(store: Path, key: str, ledger: LedgerFolder) -> None:
    """Binds a store to a ledger. `key` is the fingerprint of the store's key. Raises `LedgerError`."""
    with _lock_of(store):
        _check(read_binding(store), key, ledger)
        _write(store, key, ledger.fingerprint, ledger.head)


def check_binding(store: Path, folder: Path) -> bool:
    """Whether the store is bound; changes nothing. Raises `LedgerError` if its ledger is not the one in `folder`."""
    binding = read_binding(store)
    if binding is not None:
        _check(binding, _key_of(store), read_folder(folder))
    return binding is not None


def open_ledger(store: Path, folder: Path, site: str) -> Ledger:
    """The ledger of a site of this store; store and ledger are bound to each other if neither is bound yet.

    The ledger is bound first: a crash in between leaves a store that the next use of the same ledger binds. Raises
    `LedgerError` if the store is bound to another ledger, or the ledger to another key.
    """
    with _lock_of(store):
        key, binding = _key_of(store), read_binding(store)
        if binding is not None:
            _check(binding, key, read_folder(folder))
        ledger = Ledger(folder, site, key)
        try:
            ledger.bind()
            _note(store, key, binding, ledger)
        except BaseException:
            ledger.close()
            raise
        return ledger


def look_into_ledger(store: Path | None, folder: Path, site: str) -> Ledger:
    """The ledger of a site, without binding anything. `store` is the store that the site trains on, or None.

    A site that has not used its store's ledger yet may look into it if the store can be read. Raises `LedgerError`.
    """
    readable = store is not None and (store / MANIFEST).is_file()
    return Ledger(folder, site, _key_of(store) if store is not None and readable else None)


def note_head(store: Path, ledger: Ledger) -> None:
    """Notes the ledger's newest record in the store. Raises `LedgerError` if the ledger lacks one that was noted."""
    with _lock_of(store):
        _note(store, _key_of(store), read_binding(store), ledger)


def _note(store: Path, key: str, binding: Binding | None, ledger: Ledger) -> None:
    if binding is not None and not (
        binding.ledger == ledger.fingerprint and ledger.contains(binding.seq, binding.head)
    ):
        raise LedgerError(_LACKS)
    head = Head(*ledger.head())
    if binding is None or head.seq > binding.seq:
        _write(store, key, ledger.fingerprint, head)


_LACKS = (
    "the ledger lacks a record that the store has noted: use the ledger itself and not a copy of it, or restore its "
    "newest copy"
)


def _check(binding: Binding | None, key: str, ledger: LedgerFolder | None) -> None:
    if ledger is not None and ledger.store not in (None, key):
        raise LedgerError("the ledger belongs to a store of another key: name this store's own ledger")
    if binding is None:
        return
    if binding.key != key:
        raise LedgerError("the store was bound to its ledger under another key: restore the store from its backup")
    if ledger is None or ledger.fingerprint != binding.ledger:
        raise LedgerError(ELSEWHERE)
    if ledger.head.seq < binding.seq:
        raise LedgerError(_LACKS)


def _key_of(store: Path) -> str:
    try:
        return read_manifest(store).key
    except DataError as error:
        raise LedgerError(str(error)) from None


def _write(store: Path, key: str, ledger: str, head: Head) -> None:
    binding = Binding(format=FORMAT, key=key, ledger=ledger, seq=head.seq, head=head.hash)
    try:
        write_whole(store / BINDING, binding.model_dump_json(indent=2).encode() + b"\n", PRIVATE)
    except OSError:
        raise LedgerError(_READ_ONLY) from None


_READ_ONLY = (
    "the store cannot note which ledger its patients are charged to: let the site's account write into its folder"
)


def _lock_of(store: Path) -> AbstractContextManager[None]:
    """The lock that lets one process at a time bind a store or note a head."""
    return locked(store / BINDING_LOCK, LedgerError(_READ_ONLY))
