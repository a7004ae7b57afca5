"""The weights of `privacy.aggregation.reliability_weights` (clamped), computed on shares.

Every opened value is under a uniform mask. Numbers are in fixed point, with the bits that the constants name.

A secret z is opened once as z + r, where r is uniform and dealt. Then z is a combination of dealt numbers with public
factors. The same holds for z without its low bits, and for the bit that says whether z is below a limit. A product of
such combinations needs the products of their dealt numbers, which the dealer deals.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from privacy.aggregation import PARTS
from privacy.secagg.crypten_runtime import Party
from privacy.secagg.errors import SecureAggregationError
from privacy.secagg.ring import HEADROOM_BITS, Ring

MIDDLE = np.uint64(1 << 62)
"""Added before opening, so that one public bit shows if the sum wrapped, for a secret of magnitude below 2^62."""

_ONE, _TOP, _MINUS_ONE = np.uint64(1), np.uint64(63), np.uint64(2**64 - 1)


@dataclass(frozen=True)
class MaskedSecret:
    """`shown` plus, for each of `terms`, a public factor times the member's share of a dealt number.

    All have the shape of `shown`, or broadcast to it.
    """

    shown: Ring
    terms: tuple[tuple[Ring, Ring], ...]

    def __getitem__(self, index: Any) -> "MaskedSecret":
        """The elements at an index of numpy."""

        def chosen(values: Ring) -> Ring:
            elements: Ring = np.broadcast_to(values, self.shown.shape)[index]
            return elements

        return MaskedSecret(chosen(self.shown), tuple((chosen(factor), chosen(dealt)) for factor, dealt in self.terms))

    def subtracted_from(self, number: int) -> "MaskedSecret":
        """A public number minus the secret."""
        zero = np.uint64(0)
        return MaskedSecret(
            np.uint64(number) - self.shown, tuple((zero - factor, dealt) for factor, dealt in self.terms)
        )


@dataclass(frozen=True)
class MaskedOpening:
    """`value`, known to all members: a secret plus 2^62 plus the dealt `r`."""

    party: Party
    value: Ring
    r: Ring

    def whole(self) -> MaskedSecret:
        """The secret, exactly."""
        return MaskedSecret(self.value - MIDDLE, ((np.full_like(self.value, _MINUS_ONE), self.r),))

    def truncated(self, bits: int) -> MaskedSecret:
        """The secret / 2^bits, rounded up or down at random, for a secret of magnitude below 2^62.

        With y = secret + 2^62, which is below 2^63: y + r wrapped exactly if the top bit of r is set and that of
        y + r is not. So y / 2^bits is (y + r) / 2^bits - r / 2^bits + wrapped * 2^(64 - bits).
        """
        shift, tuples = np.uint64(bits), self.party.tuples
        high = tuples.dependent(lambda: self.r >> shift, self.r.shape)
        carry = tuples.dependent(lambda: (self.r >> _TOP) << (np.uint64(64) - shift), self.r.shape)
        unset = _ONE - (self.value >> _TOP)
        return MaskedSecret(
            (self.value >> shift) - (MIDDLE >> shift), ((np.full_like(unset, _MINUS_ONE), high), (unset, carry))
        )


def open_masked(party: Party, *secrets: Ring) -> list[MaskedOpening]:
    """Opens each secret under a mask of its own; one exchange for all."""
    masks = [party.tuples.random(shares.shape) for shares in secrets]
    values = party.open(*[s + party.public(np.full_like(s, MIDDLE)) + r for s, r in zip(secrets, masks, strict=True)])
    return [MaskedOpening(party, value, r) for value, r in zip(values, masks, strict=True)]


def truncate(party: Party, shares: Ring, bits: int) -> Ring:
    """Shares of the secret / 2^bits, rounded up or down at random, for secrets below 2^62; one exchange."""
    (opening,) = open_masked(party, shares)
    return product(party, opening.truncated(bits))


def product(party: Party, *factors: MaskedSecret) -> Ring:
    """Shares of the product, shapes broadcast; no exchange. Of one factor: its shares."""
    total: Ring = party.public(_multiplied([factor.shown for factor in factors]))
    choices = [[(factor.shown, None), *factor.terms] for factor in factors]
    for combination in itertools.product(*choices):
        dealt = [number for _, number in combination if number is not None]
        if dealt:
            shape = np.broadcast_shapes(*(number.shape for number in dealt))
            share = dealt[0] if len(dealt) == 1 else party.tuples.dependent(partial(_multiplied, dealt), shape)
            total = total + _multiplied([public for public, _ in combination]) * share
    return total


def _multiplied(numbers: Sequence[Ring]) -> Ring:
    return reduce(np.multiply, numbers)


# Compares secrets with public limits by dealt truth tables: one exchange after the secret is opened under a mask.
#
# For y = z + r, public, and a limit, z is below the limit if the top bit of (y - limit) - r is set. That is the
# exclusive or of the top bits of y - limit and of r, and of the borrow: whether the bits of y - limit under the top, as
# a number, are below those of r. Both are compared in chunks of 6 bits, the highest first: r is greater if it is
# greater in one chunk and equal in all higher ones.
#
# Step 1, local: for each chunk of r the dealer has dealt, as shares by exclusive or, two tables of 64 bits, [public
# chunk is below r's] and [is equal], at every public chunk. Looking up gives shares of the bits `less` and `equal`.
# Step 2, one exchange: these bits are opened, each under a dealt random bit. Step 3, local: for each chunk, [less here
# and equal in all higher chunks] is a product of bits opened under masks. The dealer has dealt shares of its table,
# which is a single one at the place that the masks decide. At most one of these products is one, so they are added.
#
# Source: Y. Ishai et al., "On the Power of Correlated Randomness in Secure Computation", 2013, section 3 (truth
# tables).

CHUNKS = 5
"""Chunks of 6 bits under the top bit. Lower bits are ignored: a secret within 2^33 of a limit may count as below or
above it."""


_SHIFTS = np.array([63 - 6 * (chunk + 1) for chunk in range(CHUNKS)], np.uint64)


def below(party: Party, *questions: tuple[MaskedOpening, Ring]) -> list[Ring]:
    """For each masked opening [...] and its limits [limits]: shares [..., limits] of 1 where secret < limit, else of 0.

    Correct where secret and limit differ by 2^33 to 2^63 - 2^33. All comparisons take one exchange of messages.
    """
    comparisons = [_Comparison(party, opening, limits) for opening, limits in questions]
    bits = party.open_bits(np.concatenate([each.hidden.reshape(-1) for each in comparisons]))
    parts = np.split(bits, np.cumsum([each.hidden.size for each in comparisons])[:-1])
    return [each.answer(part.reshape(each.hidden.shape)) for each, part in zip(comparisons, parts, strict=True)]


class _Comparison:
    """The state of one comparison of an opening with its limits, before and after bits are opened."""

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
        """Tables for a public chunk, [equal or less, chunks, ...]: bit v says whether v equals r's chunk, or is
        less.
        """
        digits = _ONE << _chunks(self._r)
        return np.stack([digits, digits - _ONE])

    def answer(self, word: Ring) -> Ring:
        """Shares of the results, from the opened bits: the exclusive or of borrow and both top bits."""
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
        """[places, ..., limits]: 1 - 2 r_top where place and mask differ in every bit (all bits are ones), else 0."""
        sign = (_ONE - np.uint64(2) * (self._r >> _TOP))[..., None]
        size = 1 << (chunk + 1)
        places = np.arange(size, dtype=np.uint64).reshape(-1, *[1] * self._masks.ndim)
        return np.where((places ^ _place(self._masks, chunk)) == size - 1, sign, np.uint64(0))


def _chunks(elements: Ring) -> Ring:
    """The chunks of the bits under the top bit, [chunks, ...], the highest first."""
    return (elements[None] >> _SHIFTS.reshape(-1, *[1] * elements.ndim)) & np.uint64(63)


def _place(words: Ring, chunk: int) -> Ring:
    """The place in a chunk's table: the bits `equal` of all higher chunks, and above them `less` of this one."""
    equal = words & np.uint64((1 << chunk) - 1)
    return equal | (((words >> np.uint64(CHUNKS + chunk)) & _ONE) << np.uint64(chunk))


COSINE_BITS = 52
NORM_BITS = 20
ACCURACY_BITS = 24
WEIGHT_BITS = 26
"""Fractional bits of inputs and of results."""

NEGLIGIBLE_LOG2 = -16
"""A sum of scores, or of accuracies, below 2^-16 counts as zero. In clear the limit is 1e-8. Between the two, sites
with nearly orthogonal prompts are weighted by accuracy here, and by similarity in clear."""
LARGEST_LOG2 = 9
"""The most owners are 2^9: up to then, comparisons of a sum with the smallest limit are right within 6%."""

_SCORE_BITS = 36
_FACTOR_BITS = 20
_SCALED_BITS = _SCORE_BITS + _FACTOR_BITS
_RATIO_BITS = 26
_SUM_BITS = 20
_INVERSE_BITS = 24
_LENGTH_BITS = 26
_STEPS = 4
"""Limits in each octave with which a sum is compared to find its size."""


def reliability_weights(
    party: Party, cosines: Ring, norms: MaskedSecret, accuracies: MaskedSecret, kept: int = PARTS
) -> Ring:
    """Shares of eta times the source's norm, [segments, targets, sources], zero on the diagonal.

    `cosines`: shares, [segments, owners, owners] in -1..1; `norms` [segments, owners] up to 1024; `accuracies` [owners]
    in 0..1. `kept` / `PARTS` of eta follows from these; the rest is equal for all sources. 9 exchanges, whatever the
    sizes: 3 for scores and their fallback, 3 for the ratios, 2 for dividing by their sum, 1 to truncate.
    """
    owners = len(accuracies.shown)
    octaves = (owners - 1).bit_length()
    if octaves > LARGEST_LOG2:
        raise SecureAggregationError(f"more than {2**LARGEST_LOG2} sites do not fit the ring: form smaller groups")
    others = np.uint64(1) - np.eye(owners, dtype=np.uint64)
    # The sum of a row of scores stays below 2^62.
    cosine_bits = min(30, HEADROOM_BITS - ACCURACY_BITS - octaves)
    scores, fallback = _scores(party, cosines, accuracies, cosine_bits, octaves)
    ratios = _ratios(party, scores * others, fallback * others, cosine_bits + ACCURACY_BITS, octaves)
    weights = _divided(party, ratios * others, norms, kept)
    equal = round((1 - kept / PARTS) / (owners - 1) * 2.0 ** (_INVERSE_BITS + _LENGTH_BITS - NORM_BITS))
    weights = weights + (product(party, norms) * np.uint64(equal))[:, None]
    # Truncation may leave a last bit on the diagonal, and a site's own prompt is not part of what it gets.
    return truncate(party, weights, _INVERSE_BITS + _LENGTH_BITS - WEIGHT_BITS) * others


def _scores(party: Party, cosines: Ring, accuracies: MaskedSecret, cosine_bits: int, octaves: int) -> tuple[Ring, Ring]:
    """Scores [segments, targets, sources], with cosine_bits + ACCURACY_BITS: accuracy times the cosine's positive part.

    Also the fallback for rows of scores that sum to zero, [targets, sources], with _SCALED_BITS: accuracies, or ones if
    these sum to zero, scaled so that they sum to about one. 3 exchanges.
    """
    owners = cosines.shape[-1]
    rows, columns = np.triu_indices(owners, 1)
    shares = product(party, accuracies)
    masked_shares = shares.sum(dtype=np.uint64) - shares
    # Exchange 1: cosines, of each pair once, and sums of accuracies, scaled up to use the bits that are compared.
    room, spare = HEADROOM_BITS - 1 - COSINE_BITS, HEADROOM_BITS - ACCURACY_BITS - octaves
    cosine, total = open_masked(party, cosines[:, rows, columns] << np.uint64(room), masked_shares << np.uint64(spare))
    # Exchange 2: their signs and sizes.
    limits = _limits(octaves, ACCURACY_BITS + spare)
    dissimilar, small = below(party, (cosine, np.zeros(1, np.uint64)), (total, limits))
    # Exchange 3: both as factors of products.
    sign, factor = open_masked(party, dissimilar[..., 0], _inverse(party, small))
    pair = np.zeros((owners, owners), int)
    pair[rows, columns] = pair[columns, rows] = np.arange(len(rows))
    similar = sign.whole().subtracted_from(1)[:, pair]
    short = cosine.truncated(COSINE_BITS + room - cosine_bits)[:, pair]
    scores = product(party, similar, short, accuracies)
    by_accuracy = product(party, factor.whole()[:, None], accuracies)
    equal = np.uint64(round(2.0 ** (ACCURACY_BITS + _FACTOR_BITS) / (owners - 1)))
    fallback = (by_accuracy + small[:, :1] * equal) << np.uint64(_SCALED_BITS - ACCURACY_BITS - _FACTOR_BITS)
    return scores, fallback


def _ratios(party: Party, scores: Ring, fallback: Ring, bits: int, octaves: int) -> Ring:
    """Scores [segments, targets, sources], or the fallback where a row of them sums to zero, with _SCALED_BITS. A row
    sums to 1 within 10%. 3 exchanges."""
    # Exchange 4: the sums' size is asked for while the scores are shortened.
    spare = HEADROOM_BITS - bits - octaves
    total, score = open_masked(party, scores.sum(-1, dtype=np.uint64) << np.uint64(spare), scores)
    short = product(party, score.truncated(bits - _SCORE_BITS))
    # Exchange 5.
    (small,) = below(party, (total, _limits(octaves, bits + spare)))
    # Exchange 6: scores times factor plus fall-back times whether there is no score.
    factors = np.stack([_inverse(party, small), small[..., 0]])[..., None]
    terms = party.multiply(factors, np.stack([short, np.broadcast_to(fallback, short.shape)]))
    ratios: Ring = terms.sum(0, dtype=np.uint64)
    return ratios


def _divided(party: Party, ratios: Ring, norms: MaskedSecret, kept: int) -> Ring:
    """Ratios [segments, targets, sources] divided by their row's sum, times `kept` / `PARTS` and the source's norm.

    The result has _INVERSE_BITS + _LENGTH_BITS fractional bits. 2 exchanges.

    For d = 1 - sum, 1 / sum is 1 + d + d^2 + d^3 within d^4, which is below 1e-4.
    """
    # Exchange 7.
    ratio, total = open_masked(party, ratios, ratios.sum(-1, dtype=np.uint64))
    # Below 2^62: a ratio is at most 1.1 with 26 bits, a norm 2^10 with 20, and there are 5 bits more.
    lengths = product(party, ratio.truncated(_SCALED_BITS - _RATIO_BITS), norms[:, None]) * np.uint64(kept)
    d = total.truncated(_SCALED_BITS - _SUM_BITS).subtracted_from(1 << _SUM_BITS)
    step = np.uint64(_SUM_BITS)
    powers = [product(party, *[d] * power) for power in (1, 2, 3)]
    unit = party.public(np.full_like(powers[0], 1 << (3 * _SUM_BITS)))
    inverse = unit + (powers[0] << (step + step)) + (powers[1] << step) + powers[2]
    # Exchange 8.
    length, quotient = open_masked(party, lengths, inverse)
    return product(
        party,
        quotient.truncated(3 * _SUM_BITS - _INVERSE_BITS)[..., None],
        length.truncated(_RATIO_BITS + NORM_BITS + PARTS.bit_length() - 1 - _LENGTH_BITS),
    )


def _sizes(octaves: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Powers of 2^(1 / _STEPS) from the smallest sum that counts up to 2^octaves."""
    return np.asarray(2.0 ** (np.arange(NEGLIGIBLE_LOG2 * _STEPS, octaves * _STEPS + 1) / _STEPS))


def _limits(octaves: int, bits: int) -> Ring:
    return np.rint(np.ldexp(_sizes(octaves), bits)).astype(np.uint64)


def _inverse(party: Party, small: Ring) -> Ring:
    """Shares of the approximate inverse of a sum, with _FACTOR_BITS, from its comparisons [..., limits].

    It is a step function: between two limits, the inverse of their geometric mean. A negligible sum gives zero.
    """
    octaves = ((small.shape[-1] - 1) // _STEPS) + NEGLIGIBLE_LOG2
    heights = np.rint(np.ldexp(2.0 ** (-0.5 / _STEPS) / _sizes(octaves), _FACTOR_BITS)).astype(np.int64)
    rises = np.diff(heights, prepend=0).view(np.uint64)
    below = party.public(np.ones_like(small)) - small
    shares: Ring = (below * rises).sum(-1, dtype=np.uint64)
    return shares
