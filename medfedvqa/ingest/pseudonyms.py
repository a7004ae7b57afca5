"""Pseudonyms under a key that only the site holds."""

import hmac
from pathlib import Path

from audits import SecretError, make_secret, read_secret
from medfedvqa.errors import ConfigError

UID_ROOT = "2.25."
"""UIDs that are numbers of 128 bits (PS3.5 annex B.2)."""
MAX_SHIFT = 3650
"""The largest shift of a patient's dates, in days."""


def plain_number(patient_id: str) -> str:
    """A patient's number as numbers are compared: case and white space do not count."""
    return "".join(patient_id.split()).casefold()


class Pseudonyms:
    """Keyed digests: the first 128 bits of HMAC-SHA256 under the site's key, of a purpose and a text."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @property
    def secret(self) -> bytes:
        """The key, for the site's own worker processes."""
        return self._secret

    def patient(self, patient_id: str) -> str:
        """The pseudonym of a patient, 32 hex digits; case and white space of the ID do not count."""
        return self.digest("patient", plain_number(patient_id))

    def mark(self, patient_id: str) -> str:
        """The digest that stands for a patient in a register, whose key this is."""
        return self.digest("marked patient", plain_number(patient_id))

    def uid(self, uid: str) -> str:
        """The UID that takes the place of `uid`, the same wherever it occurs."""
        return UID_ROOT + str(int(self.digest("uid", uid), 16))

    def days(self, patient_id: str) -> int:
        """By how many days all dates of a patient are moved back, 1 to 3650."""
        return 1 + int(self.digest("days", self.patient(patient_id)), 16) % MAX_SHIFT

    def fingerprint(self) -> str:
        """A digest that differs between two keys and reveals nothing else about them."""
        return self.digest("key", "")

    def digest(self, purpose: str, text: str) -> str:
        """A keyed digest, 32 hex digits."""
        message = f"{purpose}\0{text}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._secret, message, "sha256")[:16].hex()


def load_pseudonyms(path: Path) -> Pseudonyms:
    """The key in this file. Without a file, makes one from the system's randomness, with mode 0600.

    Raises `ConfigError` if the key cannot be made or read, is not whole, or is readable for others.
    """
    try:
        if not path.exists():
            make_secret(path)
        return Pseudonyms(read_secret(path))
    except SecretError as error:
        raise ConfigError(f"the key of the pseudonyms {error}") from None
    except OSError:
        raise ConfigError("the key file of the pseudonyms cannot be used: check --key and its folder") from None
