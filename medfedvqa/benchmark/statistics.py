"""Statistics over seeds: means, deviations, intervals, and whether a system beats another."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import atan, cos, pi, sin, sqrt
from statistics import fmean, stdev

import numpy as np

from medfedvqa.benchmark.outcome import RunOutcome
from medfedvqa.evaluation.accuracy import Interval, Proportion, mean_accuracy
from medfedvqa.evaluation.patient_intervals import effective_rows, mean_difference

FLIPS = 10_000


@dataclass(frozen=True)
class Summary:
    """The accuracy of a system over seeds, in 0..1."""

    mean: float
    deviation: float
    """Standard deviation over seeds; 0 for one seed."""
    interval: Interval
    """The 95 % interval of the mean as a share of the test rows, by patient: it does not shrink with more seeds."""


def by_site(outcomes: Sequence[RunOutcome]) -> dict[str, Summary]:
    """The summary of each site."""
    summaries = {}
    for site in outcomes[0].right:
        each = [fmean(outcome.right[site]) for outcome in outcomes]
        summaries[site] = Summary(fmean(each), deviation(each), _proportion(outcomes, site).wilson())
    return summaries


def average(outcomes: Sequence[RunOutcome]) -> Summary:
    """The summary of the mean over sites, which all count the same."""
    each = [fmean(fmean(rows) for rows in outcome.right.values()) for outcome in outcomes]
    mean = mean_accuracy([_proportion(outcomes, site) for site in outcomes[0].right])
    return Summary(fmean(each), deviation(each), mean[1] if mean else (0.0, 1.0))


def over_rows(outcomes: Sequence[RunOutcome]) -> float:
    """The mean over seeds of the share of all sites' test rows that are right, in 0..1: large sites count more."""
    return fmean(fmean(bit for rows in outcome.right.values() for bit in rows) for outcome in outcomes)


@dataclass(frozen=True)
class Gain:
    """The mean difference of two systems' average accuracies over their common seeds, in -1..1."""

    mean: float
    interval: Interval | None
    """Its 95 % interval by patient; None if a site tests a single patient."""


def paired(first: Sequence[RunOutcome], second: Sequence[RunOutcome]) -> list[tuple[RunOutcome, RunOutcome]]:
    """The outcomes of the seeds that both have."""
    by_seed = {outcome.seed: outcome for outcome in second}
    return [(outcome, by_seed[outcome.seed]) for outcome in first if outcome.seed in by_seed]


def gain(first: Sequence[RunOutcome], second: Sequence[RunOutcome]) -> Gain:
    """What the first system has over the second, on paired test rows of at least one common seed.

    A row's difference is its mean over the seeds of a cohort; the patients of other cohorts are other patients.
    """
    pairs = paired(first, second)
    cohorts: dict[int, list[tuple[RunOutcome, RunOutcome]]] = {}
    for pair in pairs:
        cohorts.setdefault(pair[0].cohort, []).append(pair)
    differences: list[list[float]] = []
    owners: list[list[int]] = []
    for site in pairs[0][0].right:
        total = sum(len(each[0][0].right[site]) for each in cohorts.values())
        values, patients = list[float](), list[int]()
        for each in cohorts.values():
            rows = np.mean([np.subtract(a.right[site], b.right[site], dtype=np.float64) for a, b in each], axis=0)
            # Each seed weighs the same, whatever the number of rows that it draws.
            weight = len(each) / len(pairs) * total / len(rows)
            values += (weight * rows).tolist()
            first_number = 1 + max(patients, default=-1)
            patients += [first_number + patient for patient in each[0][0].patients[site]]
        differences.append(values)
        owners.append(patients)
    return Gain(*mean_difference(differences, owners))


def p_value(first: Sequence[RunOutcome], second: Sequence[RunOutcome], seed: int = 0) -> float:
    """The two-sided p-value of a permutation test, on paired test rows, that two systems answer alike.

    The difference of average accuracies is a sum over patients. If the systems were alike, each patient's part could
    as well have the other sign; the p-value is the share of `FLIPS` random choices of signs whose sum is as far from
    0. Rows of a patient stay together, and so do the seeds of a row, since neither are independent. Seeds that only
    one of the systems has do not count.
    Source: R. Fisher, "The Design of Experiments", 1935, section 21; B. Phipson and G. Smyth, 2010 (the added one).
    """
    parts = np.array(list(_parts(first, second).values()))
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(FLIPS, len(parts)))
    as_far = np.abs(signs @ parts) >= abs(parts.sum()) - 1e-12
    return float((1 + as_far.sum()) / (1 + FLIPS))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """The p-values, corrected for the number of comparisons (S. Holm, 1979)."""
    corrected, largest = {}, 0.0
    for rank, (name, value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, value * (len(p_values) - rank)))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


@dataclass(frozen=True)
class TTest:
    """Student's t of a difference, its degrees of freedom and its two-sided p-value."""

    t: float
    freedom: int
    p: float


def paired_t(first: Sequence[float], second: Sequence[float]) -> TTest | None:
    """Whether the mean difference of pairs is 0. None without two pairs whose differences vary."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if len(differences) < 2:
        return None
    return _t_test(fmean(differences), stdev(differences) ** 2 / len(differences), len(differences) - 1)


def unpaired_t(first: Sequence[float], second: Sequence[float]) -> TTest | None:
    """Whether two samples of one size have one mean, by their pooled variance. None without two values that vary."""
    if len(first) < 2:
        return None
    variance = (stdev(first) ** 2 + stdev(second) ** 2) / len(first)
    return _t_test(fmean(first) - fmean(second), variance, 2 * len(first) - 2)


def _t_test(difference: float, variance: float, freedom: int) -> TTest | None:
    """None if nothing varies: values that are computed alike may still differ in their last bits."""
    if variance <= 1e-24:
        return None
    t = difference / sqrt(variance)
    return TTest(t, freedom, student_p(t, freedom))


def student_p(t: float, freedom: int) -> float:
    """The two-sided p-value of Student's t with this many degrees of freedom (Abramowitz and Stegun, 26.7.3 and 4)."""
    angle = atan(abs(t) / sqrt(freedom))
    first = freedom % 2
    term, total = cos(angle) ** first, 0.0
    for number in range(first, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (number + 1) / (number + 2)
    inside = sin(angle) * total
    return max(0.0, 1 - (2 / pi * (angle + inside) if first else inside))


def _parts(first: Sequence[RunOutcome], second: Sequence[RunOutcome]) -> dict[tuple[object, ...], float]:
    """What each patient adds to the difference. A patient who is tested in several seeds has a single entry."""
    parts: defaultdict[tuple[object, ...], float] = defaultdict(float)
    pairs = paired(first, second)
    for mine, theirs in pairs:
        for site, patients in mine.patients.items():
            share = 1 / (len(pairs) * len(mine.patients) * len(patients))
            for patient, a, b in zip(patients, mine.right[site], theirs.right[site], strict=True):
                parts[mine.cohort, site, patient] += share * (a - b)
    return dict(parts)


def _proportion(outcomes: Sequence[RunOutcome], site: str) -> Proportion:
    """The mean over seeds as a share of the rows of one seed."""
    rows = round(fmean(len(outcome.right[site]) for outcome in outcomes))
    effective = fmean(effective_rows(outcome.right[site], outcome.patients[site]) for outcome in outcomes)
    return Proportion(round(fmean(sum(outcome.right[site]) for outcome in outcomes)), rows, effective)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0
