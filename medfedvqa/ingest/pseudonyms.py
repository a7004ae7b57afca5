"""Pseudonyms under a key that only the site holds."""

import hmac
from pathlib import Path

from audits import SecretError, make_secret, read_secret
from medfedvqa.errors import ConfigError

UID_ROOT = "2.25."
"""UIDs that are numbers of 128 bits (PS3.5 annex B.2)."""
MOST_DAYS = 3650


class Pseudonyms:
    """HMAC-SHA256 under the site's key, each purpose apart from the others; 128 bits of it, but for shifts."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @property
    def secret(self) -> bytes:
        """For the site's own worker processes."""
        return self._secret

    def patient(self, patient_id: str) -> str:
        """The pseudonym of a patient, 32 hex digits; case and white space of the ID do not count."""
        return self.digest("patient", "".join(patient_id.split()).casefold())

    def mark(self, patient_id: str) -> str:
        """A patient in a register, under that register's key."""
        return self.digest("marked patient", "".join(patient_id.split()).casefold())

    def uid(self, uid: str) -> str:
        """The UID that takes the place of `uid`, the same wherever it occurs."""
        return UID_ROOT + str(int(self.digest("uid", uid), 16))

    def days(self, patient_id: str) -> int:
        """How many days earlier all dates of a patient are told, 1 to 3650."""
        return 1 + int(self.digest("days", self.patient(patient_id)), 16) % MOST_DAYS

    def fingerprint(self) -> str:
        """What tells two keys apart, and nothing else about them."""
        return self.digest("key", "")

    def digest(self, purpose: str, text: str) -> str:
        """A keyed digest, 32 hex digits."""
        message = f"{purpose}\0{text}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._secret, message, "sha256")[:16].hex()


def load_pseudonyms(path: Path) -> Pseudonyms:
    """The key in that file, made from the system's randomness with mode 0600 if there is none.

    Raises `ConfigError` if it cannot be made or read, is not whole, or others may read it.
    """
    try:
        if not path.exists():
            make_secret(path)
        return Pseudonyms(read_secret(path))
    except SecretError as error:
        raise ConfigError(f"the key of the pseudonyms {error}") from None
    except OSError:
        raise ConfigError("the key file of the pseudonyms cannot be used: check --key and its folder") from None
