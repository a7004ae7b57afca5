"""Digests of patients under a key that only the site holds: the ledger tells patients apart without naming any."""

import hmac
from collections.abc import Iterable
from pathlib import Path

from audits import SecretError, make_secret, read_secret
from privacy.ledger_journal import BudgetRefused, LedgerError, disk_errors

KEY_NAME = "cohort.key"
DIGEST_BYTES = 16


class SiteKey:
    """Keyed digests, HMAC-SHA256 truncated to 128 bits, in hex; the input starts with a byte for its purpose."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def patients(self, keys: Iterable[str]) -> frozenset[str]:
        """The digests of these patients. Raises `BudgetRefused` if there is none, or one has an empty key."""
        digests = frozenset(self.patient(key) for key in keys)
        if not digests:
            raise BudgetRefused("there is no patient to train on, so no budget can be reserved")
        return digests

    def cohort(self, patients: Iterable[str]) -> str:
        """The id of the cohort that these patients' digests make up."""
        return self._digest(b"\1", ",".join(sorted(patients)).encode())

    def fingerprint(self) -> str:
        """The key's fingerprint, which is equal for ledgers under one key and reveals nothing else about the key."""
        return self._digest(b"\2", b"")

    def derived(self, purpose: str) -> bytes:
        """A key derived for another purpose. Its holder cannot make this key's digests."""
        return hmac.digest(self._secret, b"\3" + purpose.encode(), "sha256")

    def patient(self, key: str) -> str:
        """The digest of one patient. Raises `BudgetRefused` for an empty key."""
        if not isinstance(key, str) or not key.strip():
            raise BudgetRefused("a row has no patient: give every row the key of its patient, as text")
        return self._digest(b"\0", key.encode("utf-8", "surrogatepass"))

    def _digest(self, purpose: bytes, text: bytes) -> str:
        return hmac.digest(self._secret, purpose + text, "sha256")[:DIGEST_BYTES].hex()


def load_key(folder: Path, create: bool) -> SiteKey:
    """The key in `folder`. If there is none and `create` is true, makes a random one.

    Raises `LedgerError` if it is missing, damaged or unreadable, or if others may read it.
    """
    path = folder / KEY_NAME
    with disk_errors("used without its key"):
        if create and not path.exists():
            make_secret(path)
        if not path.exists():
            raise LedgerError(f"the ledger's key file is missing: restore '{KEY_NAME}' from the site's backup")
        try:
            return SiteKey(read_secret(path))
        except SecretError as error:
            raise LedgerError(f"the ledger's key, '{KEY_NAME}', {error}") from None
