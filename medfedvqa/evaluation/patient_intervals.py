"""Intervals by patient: rows of one patient are not independent, so they tell less than as many patients would.

Sources: A. Donner and J. Koval, "The estimation of intraclass correlation in the analysis of family data", Biometrics
1980 (correlation by analysis of variance); E. Korn and B. Graubard, "Confidence intervals for proportions with small
expected number of positive counts estimated from survey data", Survey Methodology 1998 (effective rows, and Student's
factor for few patients); L. Kish, "Survey Sampling", 1965 (design effect).
"""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np

from medfedvqa.evaluation.accuracy import Interval

_Z = NormalDist().inv_cdf(0.975)


def effective_rows(right: Sequence[bool], patients: Sequence[int]) -> float:
    """The number of independent rows that tell as much about an accuracy as these rows, at most as many as they are.

    `right` and the `patients` of the rows have the same length. The rows are divided by their design effect, which is
    at least 1, and by the square of Student's factor for so few patients. It is 0 for a single patient.
    """
    rows, count = len(right), len(set(patients))
    if count < 2:
        return 0.0
    return rows / design_effect(right, patients) * (_Z / student(count - 1)) ** 2


def design_effect(right: Sequence[bool], patients: Sequence[int]) -> float:
    """By how much the variance of a share of rows exceeds that of independent rows, at least 1.

    It is 1 + (m - 1) times the correlation within a patient, with m the mean number of rows that a row's patient has.
    """
    groups, sizes = _grouped(patients)
    values, rows, count = np.asarray(right, np.float64), len(right), len(sizes)
    if count < 2 or rows == count:
        return 1.0
    means = np.bincount(groups, values, count) / sizes
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (count - 1)
    within = float(((values - means[groups]) ** 2).sum()) / (rows - count)
    typical = (rows - float((sizes**2).sum()) / rows) / (count - 1)
    total = between + (typical - 1) * within
    correlation = (between - within) / total if total > 0 else 0.0
    return max(1.0, 1 + (float((sizes**2).sum()) / rows - 1) * correlation)


def mean_difference(
    differences: Sequence[Sequence[float]], patients: Sequence[Sequence[int]]
) -> tuple[float, Interval | None]:
    """The mean over sites of the mean difference of their rows, and its 95 % interval; None with a single patient.

    For each site: one difference and one patient per row. The variance is that between patients, after linearisation
    of the ratio; Student's factor takes the degrees of freedom of B. Welch, 1947. The interval is not cut at -1 and 1.
    """
    mean = float(np.mean([np.mean(values) for values in differences]))
    variances, freedoms = [], []
    for values, owners in zip(differences, patients, strict=True):
        groups, sizes = _grouped(owners)
        row_values, count = np.asarray(values, np.float64), len(sizes)
        if count < 2:
            return mean, None
        residuals = np.bincount(groups, row_values, count) - row_values.mean() * sizes
        variances.append(count / (count - 1) * float((residuals**2).sum()) / len(row_values) ** 2)
        freedoms.append(count - 1)
    variance = sum(variances)
    if variance == 0:
        return mean, (mean, mean)
    freedom = variance**2 / sum(each**2 / degrees for each, degrees in zip(variances, freedoms, strict=True))
    reach = student(freedom) * sqrt(variance) / len(variances)
    return mean, (mean - reach, mean + reach)


def student(freedom: float) -> float:
    """Student's 97.5 % quantile, by the expansion of Abramowitz and Stegun, 26.7.5: too small below 3 degrees."""
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def _grouped(patients: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The patient of each row, numbered from 0, and the number of rows of each patient."""
    _, groups, sizes = np.unique(np.asarray(patients), return_inverse=True, return_counts=True)
    return groups, sizes
