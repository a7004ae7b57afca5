"""Statistics over seeds: means, deviations, intervals, whether a system beats another, and the rows of a table from
them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np

from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.accuracy import Interval
from medfedvqa.evaluation.patient_intervals import Estimate, crossed, student_p
from medfedvqa.public_answers import ANSWER_TYPES
from medfedvqa.research.benchmark.results_file import Result, RunOutcome, at_sites, of_kind, of_type


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
    """The t-test of a difference with this variance; None if nothing varies.

    Values that are computed in the same way may still differ in their last bits: that counts as no variance.
    """
    if variance <= 1e-24:
        return None
    t = difference / sqrt(variance)
    return TTest(t, freedom, student_p(t, freedom))


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0


PERSONAL = " (personal)"
"""The suffix of the label of a row that scores the sites' own models before the last mean."""


@dataclass(frozen=True)
class Comparison:
    """Systems on the same test rows, under the same settings."""

    setting: Mapping[str, Any]
    """See `Result.setting`."""
    rows: Mapping[str, Sequence[RunOutcome]]
    """The outcomes of each system by label, in order of seeds."""
    baselines: frozenset[str]
    """The labels of the baselines."""
    alone: Mapping[str, str]
    """The label of the same model without the other sites, by label."""
    without_picture: Mapping[str, str]
    """The label of the same system without the picture, by label."""
    seconds: float
    """Processor seconds of all runs, without decoding pictures."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The options that each system ran with, by label; none for answers without training."""
    unseen: tuple[str, ...] = ()
    """The sites that never train and test the others' last mean."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The tested sites."""
        return tuple(self.setting["sites"])

    @property
    def reference(self) -> str:
        """The label of the baseline with the highest average accuracy. Raises `ConfigError` without a baseline."""
        if not self.baselines:
            raise ConfigError("the results hold no baseline to compare with")
        return max(
            (label for label in self.rows if label in self.baselines), key=lambda label: average(self.rows[label]).mean
        )

    @cached_property
    def questions(self) -> Literal["closed", "open", "all"]:
        """The kinds of the tested questions."""
        closed, open_ = (all(of_kind(runs, kind) for runs in self.rows.values()) for kind in (True, False))
        return "all" if closed and open_ else "open" if open_ else "closed"

    def averages(self, label: str) -> dict[str, SeedSummary]:
        """A row's mean accuracies over sites, by heading: first on each part of the test rows, then on all of them.

        The parts are: closed and open questions, if both are tested; the types of answers, if the results have them;
        and training and unseen sites, if some sites never train.
        """
        runs = self.rows[label]
        parts = {name: average(of_type(runs, ANSWER_TYPES[name])) for name in self.types}
        if self.unseen:
            trained = [site for site in self.sites if site not in self.unseen]
            parts |= {"seen": average(at_sites(runs, trained)), "unseen": average(at_sites(runs, self.unseen))}
        if self.questions != "all":
            return parts | {"average": average(runs)}
        kinds = {"closed": average(of_kind(runs, True)), "open": average(of_kind(runs, False))}
        return kinds | parts | {"together": average(runs)}

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of answers that occur in every row; empty if some results have no types."""
        return tuple(
            name for name, letter in ANSWER_TYPES.items() if all(of_type(runs, letter) for runs in self.rows.values())
        )

    def pair(self, label: str, others: Mapping[str, str]) -> str | None:
        """The row that `others` names for this one, if both have outcomes of a common seed."""
        other = others.get(label, "")
        present = other in self.rows and paired(self.rows[label], self.rows[other])
        return other if present else None


def compared(results: Iterable[Result]) -> Comparison:
    """Compares results of one setting. A system with personal models has two rows.

    Raises `ConfigError` if results of one cohort test different rows.
    """
    ordered = sorted(results, key=lambda result: result.seed)
    by_label: dict[str, list[Result]] = {}
    for result in ordered:
        by_label.setdefault(result.system, []).append(result)
    _check_rows(ordered)
    rows: dict[str, list[RunOutcome]] = {}
    baselines, alone, blind = set(), dict[str, str](), dict[str, str]()
    for label, each in by_label.items():
        outcomes = [result.outcome for result in each]
        labels = [label]
        rows[label] = [replace(outcome, personal={}) for outcome in outcomes]
        if all(outcome.personal for outcome in outcomes):
            labels.append(label + PERSONAL)
            rows[label + PERSONAL] = [
                replace(outcome, right=outcome.personal, personal={}, validated={}) for outcome in outcomes
            ]
        for row in labels:
            alone[row] = each[0].alone
            blind[row] = each[0].without_picture and each[0].without_picture + row.removeprefix(label)
        baselines |= set(labels) if each[0].baseline else set()
    seconds = sum(result.processor_seconds for result in ordered)
    unseen = dict.fromkeys(site for result in ordered for site in result.options.get("unseen", ()))
    ran = {label: each[0].options for label, each in by_label.items()}
    return Comparison(ordered[0].setting, rows, frozenset(baselines), alone, blind, seconds, ran, tuple(unseen))


def _check_rows(results: Sequence[Result]) -> None:
    tested: dict[tuple[int, str], tuple[tuple[int, ...], str]] = {}
    for result in results:
        for site, each in result.sites.items():
            rows = each.patients, each.closed
            if tested.setdefault((result.cohort, site), rows) != rows:
                raise ConfigError(f"results of the site '{site}' test different rows: take those of one data set only")
