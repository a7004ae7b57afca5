"""Opens secrets under dealt masks, after which functions of them need no further message.

A secret z is opened once as z + r, where r is uniform and dealt. Then z is a combination of dealt numbers with public
factors; so are z without its low bits, and whether z is below a limit (`privacy.secagg.reliability`). A product of such
combinations needs the products of their dealt numbers, which the dealer deals.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from privacy.secagg.crypten_runtime import Party
from privacy.secagg.ring import Ring

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
