"""A weighted mean by a sum: the summand of each site, and the mean from the sum over all."""

import numpy as np

from audits import Tensors
from audits.exchange import joint_norm
from privacy.secagg.errors import RangeError, SecureAggregationError
from privacy.secagg.layout import TensorLayout, with_error
from privacy.secagg.ring import FixedPoint, Ring

SUM_BITS = 24
"""Fractional bits: a sum is exact to sites * 2^-25, and one site's tensors times its weight stay below 2^38 / sites."""


def summand(tensors: Tensors, weight: float, layout: TensorLayout, sites: int) -> Ring:
    """The tensors times the weight, the weight, and a one, [layout.size + 2], to be masked before it leaves.

    Raises `RangeError` if a value is not finite or too large, or if the weight is negative.
    """
    if not weight >= 0:
        raise RangeError("a weight must be a number that is not negative: nothing was shared; check the row counts")
    with np.errstate(invalid="ignore", over="ignore"):
        values = np.append(layout.flatten(tensors) * weight, weight)
    return np.append(FixedPoint(SUM_BITS, sites).encode(values), np.uint64(1))


def mean_of_sum(total: Ring, sites: int, layout: TensorLayout, weights: tuple[float, float] | None = None) -> Tensors:
    """The weighted mean, from the sum over `sites` sites; `weights`: the bounds of one site's weight.

    Raises `SecureAggregationError` if the sum does not count `sites` sites, if the weights are all zero, or if their
    sum is impossible within the bounds.
    """
    # Every site adds a one: any other sum means that the masks did not cancel.
    if total.shape != (layout.size + 2,) or int(total[-1]) != sites:
        raise SecureAggregationError("the sum does not count each site once: a site or a member sent something else")
    sums = FixedPoint(SUM_BITS).decode(total[:-1])
    if sums[-1] <= 0:
        raise SecureAggregationError("the weights of all sites are zero: there is no mean")
    if weights is not None and not sites * weights[0] <= sums[-1] <= sites * weights[1]:
        raise SecureAggregationError("the sites' weights do not add up to what the job allows: one of them sent more")
    return layout.restore(sums[:-1] / sums[-1])


def weight_of_sum(total: Ring) -> float:
    """The sum of the weights of the sites in a sum."""
    return float(FixedPoint(SUM_BITS).decode(total[-2:-1])[0])


def check_mean(mean: Tensors, most_norm: float | None) -> None:
    """Raises `SecureAggregationError` if the mean is longer than any of its uploads may be."""
    if most_norm is not None and not joint_norm(mean) <= with_error(most_norm):
        raise SecureAggregationError("the mean is longer than any upload may be: a site sent more than the job allows")
