"""Words for people who compare a key's fingerprint by phone.

Eight words of 256 hold 64 bits. They come from a slow hash, so that somebody who wants a key with the words of another
has to compute it 2^63 times on average, each time for a tenth of a second and 32 MiB.
"""

from hashlib import scrypt
from importlib.resources import files

_LENGTH = 8
_COST = {"n": 1 << 15, "r": 8, "p": 1, "maxmem": 1 << 26}
_SALT = b"medfedvqa spoken words 1"

WORDS = tuple(files(__package__).joinpath("spoken_words.txt").read_text("ascii").split())
"""One word for each value of a byte."""


def words_of(fingerprint: str) -> str:
    """Eight words, joined by hyphens, for a fingerprint of 64 hex digits."""
    digest = scrypt(bytes.fromhex(fingerprint), salt=_SALT, dklen=_LENGTH, **_COST)
    return "-".join(WORDS[value] for value in digest)
