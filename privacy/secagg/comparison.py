"""Which secrets are below public limits, by dealt truth tables: one exchange after the secret is opened under a mask.

For y = z + r, public, and a limit, z is below the limit if the top bit of (y - limit) - r is set. That is the
exclusive or of the top bits of y - limit and of r, and of the borrow: whether the bits of y - limit under the top, as a
number, are below those of r. Both are compared in chunks of 6 bits, the highest first: r is greater if it is greater
in one chunk and equal in all higher ones.

Step 1, local: for each chunk of r the dealer has dealt, as shares by exclusive or, two tables of 64 bits, [public chunk
is below r's] and [is equal], at every public chunk. Looking up gives shares of the bits `less` and `equal`.
Step 2, one exchange: these bits are opened, each under a dealt random bit.
Step 3, local: for each chunk, [less here and equal in all higher chunks] is a product of bits opened under masks. The
dealer has dealt shares of its table, which is a single one at the place that the masks decide. At most one of these
products is one, so they are added.

Source: Y. Ishai et al., "On the Power of Correlated Randomness in Secure Computation", 2013, section 3 (truth tables).
"""

from functools import partial

import numpy as np

from privacy.secagg.crypten_runtime import Party
from privacy.secagg.masked_opening import MIDDLE, MaskedOpening
from privacy.secagg.ring import Ring

CHUNKS = 5
COMPARED_BITS = 6 * CHUNKS
"""Under the top bit; what is below them is not looked at: a secret within 2^33 of a limit counts as either."""

_ONE, _TOP = np.uint64(1), np.uint64(63)
_SHIFTS = np.array([63 - 6 * (chunk + 1) for chunk in range(CHUNKS)], np.uint64)


def below(party: Party, *questions: tuple[MaskedOpening, Ring]) -> list[Ring]:
    """For each opening [...] and its limits [limits], shares of 1 or 0, [..., limits]; one exchange for all.

    Right where secret and limit differ by 2^33 to 2^63 - 2^33.
    """
    comparisons = [_Comparison(party, opening, limits) for opening, limits in questions]
    bits = party.open_bits(np.concatenate([each.hidden.reshape(-1) for each in comparisons]))
    parts = np.split(bits, np.cumsum([each.hidden.size for each in comparisons])[:-1])
    return [each.answer(part.reshape(each.hidden.shape)) for each, part in zip(comparisons, parts, strict=True)]


class _Comparison:
    """One question between its steps 1 and 3."""

    def __init__(self, party: Party, opening: MaskedOpening, limits: Ring) -> None:
        self._party, self._r = party, opening.r
        self._public = (opening.value - MIDDLE)[..., None] - limits
        tables = party.tuples.dependent(self._tables, (2, CHUNKS, *self._r.shape), binary=True)
        chunks = _chunks(self._public)
        bits = (tables[..., None] >> chunks) & _ONE
        # Chunk's `equal` at the chunk's place in a word, `less` CHUNKS places higher; the word's other bits are noise.
        places = np.arange(2 * CHUNKS, dtype=np.uint64).reshape(2, CHUNKS, *[1] * self._public.ndim)
        word: Ring = np.bitwise_xor.reduce(bits << places, axis=(0, 1))
        self._masks = party.tuples.random(word.shape, binary=True)
        self.hidden = word ^ self._masks

    def _tables(self) -> Ring:
        """[equal or less, chunks, ...]: bit v says what a public chunk of value v is to r's chunk."""
        digits = _ONE << _chunks(self._r)
        return np.stack([digits, digits - _ONE])

    def answer(self, word: Ring) -> Ring:
        """Shares of the exclusive or of borrow and both top bits."""
        tuples, party = self._party.tuples, self._party
        r_top = tuples.dependent(lambda: self._r >> _TOP, self._r.shape)
        # A borrow changes 0 to 1 or 1 to 0: it is dealt times 1 - 2 r_top, and added to r_top.
        answer = np.broadcast_to(r_top[..., None], word.shape).copy()
        for chunk in range(CHUNKS):
            size = 1 << (chunk + 1)
            hot = tuples.dependent(partial(self._hot, chunk), (size, *word.shape))
            answer += np.take_along_axis(hot, _place(word, chunk).astype(np.int64)[None], axis=0)[0]
        top = self._public >> _TOP
        return party.public(top) + (_ONE - np.uint64(2) * top) * answer

    def _hot(self, chunk: int) -> Ring:
        """[places, ..., limits]: 1 - 2 r_top where place and mask differ in every bit, so that all bits are ones."""
        sign = (_ONE - np.uint64(2) * (self._r >> _TOP))[..., None]
        size = 1 << (chunk + 1)
        places = np.arange(size, dtype=np.uint64).reshape(-1, *[1] * self._masks.ndim)
        return np.where((places ^ _place(self._masks, chunk)) == size - 1, sign, np.uint64(0))


def _chunks(elements: Ring) -> Ring:
    """[chunks, ...]: the chunks under the top bit, the highest first."""
    return (elements[None] >> _SHIFTS.reshape(-1, *[1] * elements.ndim)) & np.uint64(63)


def _place(words: Ring, chunk: int) -> Ring:
    """The bits `equal` of all higher chunks, and over them `less` of this one."""
    equal = words & np.uint64((1 << chunk) - 1)
    return equal | (((words >> np.uint64(CHUNKS + chunk)) & _ONE) << np.uint64(chunk))
