"""Lookup tables (PS3.3 sections C.7.6.3.1.5 and C.11.2.1.1); what an entry needs counts, not what is declared."""

from collections.abc import Sequence

import numpy as np

DEPTHS = (8, 10, 12, 14, 16)
"""The depths in bits that equipment has."""


def depth_of(values: np.ndarray) -> int:
    """The least of `DEPTHS` that the values need; devices write 16 where entries have fewer, which would be black."""
    bits = int(values.max()).bit_length()
    return next((depth for depth in DEPTHS if depth >= bits), bits)


def looked_up(values: np.ndarray, descriptor: Sequence[int], data: bytes | Sequence[int]) -> tuple[np.ndarray, int]:
    """The entries for values of any shape, float64, and the table's depth; beyond its ends a table repeats them.

    A first value is written unsigned where values are signed, and signed where they are not: then no value would lie
    in the table.
    """
    count, first = int(descriptor[0]) % 2**16 or 2**16, int(descriptor[1])
    content = data if isinstance(data, bytes) else np.asarray(data, dtype=np.int64).astype("<u2").tobytes()
    entries = np.frombuffer(content, dtype="<u2" if len(content) >= 2 * count else "u1")[:count]
    if first >= 2**15 and values.max() < first:
        first -= 2**16
    elif first < 0 and values.min() >= first + len(entries):
        first += 2**16
    places = np.clip(np.rint(values) - first, 0, len(entries) - 1).astype(np.int64)
    return entries[places].astype(np.float64), depth_of(entries)
