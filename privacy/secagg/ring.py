"""Real numbers as elements of the ring of integers modulo 2^64, in two's complement with a fixed point."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.secagg.errors import RangeError

Ring = NDArray[np.uint64]
"""Elements of the ring; numpy's unsigned arithmetic wraps as the ring's does."""
Floats = NDArray[np.float64]

HEADROOM_BITS = 62
"""Sums stay below 2^62 in magnitude, because truncation needs one bit besides the sign."""


@dataclass(frozen=True)
class FixedPoint:
    """Numbers in steps of 2^-bits; a sum of `terms` numbers, each up to `limit` in magnitude, cannot overflow."""

    bits: int
    terms: int = 1

    @property
    def limit(self) -> float:
        """The largest magnitude of one number."""
        return 2.0 ** (HEADROOM_BITS - self.bits) / self.terms

    def encode(self, values: NDArray[np.floating] | float) -> Ring:
        """The nearest elements, [the same shape]. Raises `RangeError` for a value that is not finite or too large."""
        exact = np.asarray(values, dtype=np.float64)
        if not np.isfinite(exact).all():
            raise RangeError("a value to share is not a finite number: nothing was shared; check the training")
        if (np.abs(exact) > self.limit).any():
            raise RangeError(f"a value to share exceeds {self.limit:g} in magnitude: nothing was shared; scale it down")
        return np.rint(np.ldexp(exact, self.bits)).astype(np.int64).view(np.uint64)

    def decode(self, elements: Ring) -> Floats:
        """The numbers that the elements stand for, [the same shape]."""
        return np.ldexp(elements.view(np.int64).astype(np.float64), -self.bits)
