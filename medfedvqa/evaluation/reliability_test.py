"""Tests whether the weights of a mixture by reliability differ from equal ones by more than chance.

All rounds of a run use the same validation rows, so no number of rounds shows what other rows would have given. The
test is therefore about the choice of validation rows: a released accuracy is a share of n rows.
"""

from collections.abc import Iterable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from medfedvqa.evaluation.history import History

_LEVEL = 0.05
_MOST_ROWS = 5000
"""The most validation rows that can be counted from accuracies in float32."""


class WeightTest(NamedTuple):
    """The last weights of each receiving and giving site, tested against the equal share."""

    different: int
    """The weights that differ at 5 %, after Bonferroni for all of them."""
    verdict: str
    sentence: str
    """The verdict with what it assumes."""


def tested_weights(history: History) -> WeightTest | None:
    """The test of a run's last weights, each the mean over prompts. A site's own weight is left out.

    None without weights among three sites or more, or without accuracies that are shares of rows: those of a private
    job have noise. A weight is eta_s = a_s c_s / sum_j a_j c_j with accuracies a and similarities c. By the delta
    method its variance is e^2 [(1 - 2 e) v_s + e^2 sum_j v_j] where weights are equal, e, with v = (1 - a) / (a n).
    """
    records = [record for record in history.rounds if record.reliability]
    if not records or len(history.sites) < 3:
        return None
    last = records[-1]
    weights = np.mean(list(last.reliability.values()), axis=0)
    if (
        last.epsilon
        or (np.abs(weights.sum(axis=1) - 1) > 1e-6).any()
        or not all(site in last.accuracy for site in history.sites)
    ):
        return None
    accuracies = np.array([last.accuracy[site] for site in history.sites])
    rows = np.array([_denominator(r.accuracy.get(site, 0.0) for r in records) or 0 for site in history.sites])
    if not rows.all():
        return None
    apart, equal = ~np.eye(len(weights), dtype=bool), 1 / (len(weights) - 1)
    others = np.where(apart, weights, 0.0)
    if (others.sum(axis=1) < 1e-6).any():
        return None
    weights = others / others.sum(axis=1, keepdims=True)
    likely = (accuracies * rows + 1) / (rows + 2)  # An accuracy of 0 or 1 is uncertain, too.
    relative = (1 - likely) / (likely * rows)
    rest = relative.sum() - relative[:, None]  # of each receiving site
    variance = equal**2 * ((1 - 2 * equal) * relative + equal**2 * rest)
    differences = np.abs(weights - equal)[apart]
    z = NormalDist().inv_cdf(1 - _LEVEL / (2 * len(differences)))
    different = int((differences > z * np.sqrt(variance[apart])).sum())
    some = f"{different} of {len(differences)} weights differ" if different else "no weight differs"
    verdict = f"{some} from {equal:.2f} by more than chance"
    return WeightTest(
        different,
        verdict,
        f"Reliability: in round {last.round} {verdict} (the largest difference is {differences.max():.3f}). The "
        "test (z, 5 % after Bonferroni) counts the sampling of validation rows only, as if each were another "
        "patient's, and takes similarities as exact.",
    )


def _denominator(shares: Iterable[float]) -> int | None:
    """The smallest number of rows that gives all these shares; the true number may be a multiple."""
    numbers = np.arange(1, _MOST_ROWS + 1)
    products = np.array(list(shares))[:, None] * numbers
    whole = (np.abs(products - products.round()) < numbers * np.finfo(np.float32).eps).all(axis=0)
    return int(whole.argmax()) + 1 if whole.any() else None
