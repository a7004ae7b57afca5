"""Pseudonyms under a key that only the site holds."""

import hmac
import re
from pathlib import Path

from audits import SecretError, make_secret, read_secret
from medfedvqa.errors import ConfigError
from medfedvqa.public_answers import plain

UID_ROOT = "2.25."
"""UIDs that are numbers of 128 bits (PS3.5 annex B.2)."""
MAX_SHIFT = 3650
"""The largest shift of a patient's dates, in days."""


def plain_number(patient_id: str) -> str:
    """A patient's number in the form in which numbers are compared: without white space, in lower case."""
    return "".join(patient_id.split()).casefold()


_LOST_DIGITS = re.compile(r"\d+[.,]0+|\d+([.,]\d+)?[eE]\+\d+")
"""A number that a program took for a fraction or wrote with a power of ten: `12.0`, `1.2E+05`."""
_LOOK_ALIKE = str.maketrans("АВЕКМНОРСТУХІЈЅΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEKMHOPCTYXIJSABEZHIKMNOPTYX")
"""Cyrillic and Greek capitals, and the Latin ones that look the same."""


def lost_digits(number: str) -> bool:
    """Whether a program changed how a number is written, as to `12.0` or `1.2E+05`."""
    return _LOST_DIGITS.fullmatch(number) is not None


class NumberSpellings:
    """Patient numbers of one table. Two spellings of one number would split a patient, or join two."""

    def __init__(self) -> None:
        self._spellings: dict[str, str] = {}

    def fault(self, number: str, person: str = "") -> str:
        """Why a number is refused, as the end of a sentence; empty if it is not.

        `person`: the owner of the number, if known: one person may have several spellings.
        """
        if lost_digits(number):
            return "is a number that lost its form, such as 12.0 or 1.2E+05: format the column as text"
        if number != plain(number) and "".join(number.split()) != "".join(plain(number).split()):
            return "has letters that nobody sees or that look like others: type the number again"
        looks = "".join(number.upper().translate(_LOOK_ALIKE).split()).lstrip("0")
        if self._spellings.setdefault(looks, person or number) != (person or number):
            return (
                "differs from a number above by case, blanks, look-alike letters or zeros in front alone: write each "
                "patient's number in one way"
            )
        return ""


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
        """The digest that stands for a patient in the register that has this key."""
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
