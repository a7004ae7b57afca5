"""Statistics over seeds: means, deviations, intervals, and whether a system beats another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from medfedvqa.evaluation.accuracy import Interval
from medfedvqa.evaluation.patient_intervals import Estimate, crossed, student_p
from medfedvqa.research.benchmark.outcome import RunOutcome


@dataclass(frozen=True)
class SeedSummary:
    """The accuracy of a system over seeds, in 0..1."""

    mean: float
    deviation: float
    """Standard deviation over seeds; 0 for one seed."""
    interval: Interval
    """The 95 % interval of the mean, over patients and seeds. More seeds do not make up for few patients."""


def by_site(outcomes: Sequence[RunOutcome]) -> dict[str, SeedSummary]:
    """The summary of each site."""
    return {site: _summary(outcomes, (site,)) for site in outcomes[0].right}


def average(outcomes: Sequence[RunOutcome]) -> SeedSummary:
    """The summary of the mean over sites, which all count the same."""
    return _summary(outcomes, tuple(outcomes[0].right))


def _summary(outcomes: Sequence[RunOutcome], sites: Sequence[str]) -> SeedSummary:
    each = [fmean(fmean(outcome.right[site]) for site in sites) for outcome in outcomes]
    rows = len(sites) ** 2 / sum(1 / fmean(len(outcome.right[site]) for outcome in outcomes) for site in sites)
    right = [{site: np.array(outcome.right[site], np.float64) for site in sites} for outcome in outcomes]
    return SeedSummary(fmean(each), deviation(each), _crossed(outcomes, right).share(rows, len(outcomes)))


def _crossed(outcomes: Sequence[RunOutcome], values: Sequence[Mapping[str, np.ndarray]]) -> Estimate:
    """The estimate of each outcome's values by site, float64 [rows]; outcomes of a cohort have the same patients."""
    cohorts: dict[int, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        cohorts.setdefault(outcome.cohort, []).append(place)
    return crossed(
        [
            [
                (np.stack([values[place][site] for place in places]), outcomes[places[0]].patients[site])
                for site in values[0]
            ]
            for places in cohorts.values()
        ]
    )


def over_rows(outcomes: Sequence[RunOutcome]) -> float:
    """The mean over seeds of the share of all sites' test rows that are right, in 0..1: large sites count more."""
    return fmean(fmean(bit for rows in outcome.right.values() for bit in rows) for outcome in outcomes)


@dataclass(frozen=True)
class Gain:
    """The mean difference of two systems' average accuracies over their common seeds, in -1..1."""

    mean: float
    interval: Interval | None
    """Its 95 % interval over patients and seeds; None if a site tests a single patient, or nothing varies."""
    p: float
    """The two-sided p value of the interval's t, uncorrected; 1 without an interval."""


def paired(first: Sequence[RunOutcome], second: Sequence[RunOutcome]) -> list[tuple[RunOutcome, RunOutcome]]:
    """The outcomes of the seeds that both have."""
    by_seed = {outcome.seed: outcome for outcome in second}
    return [(outcome, by_seed[outcome.seed]) for outcome in first if outcome.seed in by_seed]


def gain(first: Sequence[RunOutcome], second: Sequence[RunOutcome]) -> Gain:
    """The gain of the first system over the second, on paired test rows of at least one common seed."""
    pairs = paired(first, second)
    estimate = _crossed(
        [a for a, _ in pairs],
        [{site: np.subtract(a.right[site], b.right[site], dtype=np.float64) for site in a.right} for a, b in pairs],
    )
    return Gain(estimate.mean, estimate.interval, estimate.p)


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
    """Paired t-test that the mean difference is 0. None unless at least two pairs differ unequally."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if len(differences) < 2:
        return None
    return _t_test(fmean(differences), stdev(differences) ** 2 / len(differences), len(differences) - 1)


def unpaired_t(first: Sequence[float], second: Sequence[float]) -> TTest | None:
    """Unpaired t-test, with pooled variance, that two samples of one size have equal means. None if nothing varies."""
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


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0
