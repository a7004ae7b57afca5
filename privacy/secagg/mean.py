"""A weighted mean as a sum: what each site puts in, and what is read from the sum over all."""

import numpy as np

from audits import Tensors
from privacy.secagg.errors import RangeError, SecureAggregationError
from privacy.secagg.layout import Layout
from privacy.secagg.ring import FixedPoint, Ring

SUM_BITS = 24
"""A sum is exact to sites * 2^-25; one site's tensors times its weight stay below 2^38 / sites."""


def summand(tensors: Tensors, weight: float, layout: Layout, sites: int) -> Ring:
    """The tensors times the weight, the weight, and a one, [layout.size + 2], to be masked before it leaves.

    Raises `RangeError` if a value is not finite or too large, or if the weight is negative.
    """
    if not weight >= 0:
        raise RangeError("a weight must be a number that is not negative: nothing was shared; check the row counts")
    with np.errstate(invalid="ignore", over="ignore"):
        values = np.append(layout.flatten(tensors) * weight, weight)
    return np.append(FixedPoint(SUM_BITS, sites).encode(values), np.uint64(1))


def mean_of_sum(total: Ring, sites: int, layout: Layout) -> Tensors:
    """The weighted mean, from the sum over so many sites.

    Raises `SecureAggregationError` if it is not that, or if the weights are all zero.
    """
    # Every site adds a one: any other sum means that the masks did not cancel.
    if total.shape != (layout.size + 2,) or int(total[-1]) != sites:
        raise SecureAggregationError("the masks of the uploads do not cancel: a site or a member sent something else")
    sums = FixedPoint(SUM_BITS).decode(total[:-1])
    if sums[-1] <= 0:
        raise SecureAggregationError("the weights of all sites are zero: there is no mean")
    return layout.restore(sums[:-1] / sums[-1])
