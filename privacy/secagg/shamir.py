"""Secret sharing: a threshold of members can rebuild a secret, and fewer learn nothing about it.

Source: A. Shamir, "How to share a secret", 1979; over the integers modulo the prime 2^255 - 19.
"""

import secrets
from collections.abc import Mapping

from privacy.secagg.errors import SecureAggregationError

PRIME = 2**255 - 19
ELEMENT_BYTES = 32


def new_secret() -> int:
    """A uniform secret that nobody else knows."""
    return secrets.randbelow(PRIME)


def split(secret: int, members: int, threshold: int) -> list[int]:
    """One share for each seat: the values at 1, 2, ... of a random polynomial whose value at 0 is the secret."""
    coefficients = [secret, *(new_secret() for _ in range(threshold - 1))]
    return [sum(c * x**power for power, c in enumerate(coefficients)) % PRIME for x in range(1, members + 1)]


def rebuild(shares: Mapping[int, int], threshold: int) -> int:
    """The secret, from shares by seat (0, 1, ...). Raises `SecureAggregationError` if there are too few."""
    if len(shares) < threshold:
        raise SecureAggregationError(f"{len(shares)} members answered where {threshold} are needed: nothing is opened")
    points = {seat + 1: share for seat, share in sorted(shares.items())[:threshold]}
    secret = 0
    for x, share in points.items():
        above, below = 1, 1
        for other in points.keys() - {x}:
            above, below = above * other % PRIME, below * (other - x) % PRIME
        secret += share * above * pow(below, -1, PRIME)
    return secret % PRIME


def to_bytes(element: int) -> bytes:
    """32 bytes, little-endian."""
    return element.to_bytes(ELEMENT_BYTES, "little")


def from_bytes(raw: bytes) -> int:
    """The inverse of `to_bytes`."""
    return int.from_bytes(raw, "little") % PRIME
