"""Statistics over seeds: means, deviations, intervals, and whether a system beats another."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from medfedvqa.benchmark.outcome import RunOutcome
from medfedvqa.evaluation.accuracy import Interval, Proportion, mean_accuracy
from medfedvqa.evaluation.patient_intervals import effective_rows

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
        summaries[site] = Summary(fmean(each), _deviation(each), _proportion(outcomes, site).wilson())
    return summaries


def average(outcomes: Sequence[RunOutcome]) -> Summary:
    """The summary of the mean over sites, which all count the same."""
    each = [fmean(fmean(rows) for rows in outcome.right.values()) for outcome in outcomes]
    mean = mean_accuracy([_proportion(outcomes, site) for site in outcomes[0].right])
    return Summary(fmean(each), _deviation(each), mean[1] if mean else (0.0, 1.0))


def p_value(first: Sequence[RunOutcome], second: Sequence[RunOutcome], seed: int = 0) -> float:
    """The two-sided p-value of a permutation test, on paired test rows, that two systems answer alike.

    The difference of average accuracies is a sum over patients. If the systems were alike, each patient's part could
    as well have the other sign; the p-value is the share of `FLIPS` random choices of signs whose sum is as far from
    0. Rows of a patient stay together, and so do the seeds of a row, since neither are independent.
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


def _parts(first: Sequence[RunOutcome], second: Sequence[RunOutcome]) -> dict[tuple[object, ...], float]:
    """What each patient adds to the difference. A patient who is tested in several seeds has a single entry."""
    parts: defaultdict[tuple[object, ...], float] = defaultdict(float)
    for mine, theirs in zip(first, second, strict=True):
        for site, patients in mine.patients.items():
            share = 1 / (len(first) * len(mine.patients) * len(patients))
            for patient, a, b in zip(patients, mine.right[site], theirs.right[site], strict=True):
                parts[mine.cohort, site, patient] += share * (a - b)
    return dict(parts)


def _proportion(outcomes: Sequence[RunOutcome], site: str) -> Proportion:
    """The mean over seeds as a share of the rows of one seed."""
    rows = round(fmean(len(outcome.right[site]) for outcome in outcomes))
    effective = fmean(effective_rows(outcome.right[site], outcome.patients[site]) for outcome in outcomes)
    return Proportion(round(fmean(sum(outcome.right[site]) for outcome in outcomes)), rows, effective)


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0
