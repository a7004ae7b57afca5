"""The meaning of an epsilon: the most participants that a test can find if it accuses few people wrongly.

If a mechanism is (epsilon, delta)-differentially private in both directions, then a test that accuses a share a of
those who did not take part finds at most min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a)) of those who did.
Source: Dong, Roth and Su, "Gaussian Differential Privacy", 2022, proposition 2.5. Each pair of a privacy curve gives
such a bound, and so the least over all of them is one: a coarser curve is never wrong, only less sharp. No central
limit approximation is used.
"""

import math
from collections.abc import Iterable

from privacy.accounting import privacy_curve
from privacy.errors import AccountingError
from privacy.mechanisms import DPEvent
from privacy.mechanisms.base import is_number


def most_found(events: Iterable[DPEvent], wrongly: float) -> float:
    """The largest share of participants, 0..1, that any test on all results of `events` can find.

    `wrongly`: the share of non-participants, 0..1, that the test accuses; guessing finds this share too. Raises
    `AccountingError` for a number that is no share.
    """
    if not (is_number(wrongly) and 0 <= wrongly <= 1):
        raise AccountingError("the people accused wrongly are a share of all: give a number from 0 to 1")
    return min((_bound(epsilon, delta, wrongly) for epsilon, delta in privacy_curve(events)), default=1.0)


def _bound(epsilon: float, delta: float, wrongly: float) -> float:
    # The logarithm keeps a large epsilon from overflowing.
    above = 1.0 if wrongly and epsilon + math.log(wrongly) > 0 else wrongly and math.exp(epsilon) * wrongly
    return min(1.0, above + delta, 1 - math.exp(-epsilon) * max(0.0, 1 - delta - wrongly))
