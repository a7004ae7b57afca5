"""Accuracies by patient: intervals over patients and seeds, and groups of patients by a characteristic.

Sources: A. Cameron, J. Gelbach and D. Miller, "Robust inference with multiway clustering", JBES 2011 (two crossed
factors); F. Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics 1946 (degrees
of freedom of a sum of variances); E. Korn and B. Graubard, "Confidence intervals for proportions with small expected
number of positive counts estimated from survey data", Survey Methodology 1998 (effective rows).

A group has at least `LEAST` patients. Smaller ones are joined, so that no difference of two figures is about fewer
patients either. A characteristic with fewer than two groups is left out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import atan, exp, lgamma, pi, sqrt, tan
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
import torch

from medfedvqa.evaluation.accuracy import Interval, wilson

_Z = NormalDist().inv_cdf(0.975)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)

Cohort = Sequence[tuple[np.ndarray, Sequence[int]]]
"""Seeds that test the same rows. For each site: values, float64 [seeds, rows], and the patient of each row."""


@dataclass(frozen=True)
class Estimate:
    """A mean over sites, patients and seeds."""

    mean: float
    variance: float
    freedom: float
    """The degrees of freedom of the variance; 0 if it cannot be estimated, as from a single patient at a site."""

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval by Student's t, not cut to a range; None without an estimate of the variance.

        It is also None if all values are equal and not 0: they show nothing about the variation of others.
        """
        if not self.freedom or (self.variance == 0 and self.mean):
            return None
        reach = student(self.freedom) * sqrt(self.variance)
        return self.mean - reach, self.mean + reach

    @property
    def p(self) -> float:
        """The two-sided p value of a mean of 0, by the interval's t test: below 0.05 exactly if 0 is outside."""
        if not self.freedom or self.variance == 0:
            return 1.0
        return student_p(self.mean / sqrt(self.variance), self.freedom)

    def share(self, rows: float, seeds: int) -> Interval:
        """Wilson's interval of a mean in 0..1, with Student's t in place of the normal quantile.

        The number of rows is the one that gives this variance to independent rows. It is at most the rows that all
        seeds test, and the rows of one seed if the variance is zero.
        """
        if not self.freedom:
            return 0.0, 1.0
        effective = min(rows * seeds, self.mean * (1 - self.mean) / self.variance) if self.variance else rows
        return wilson(self.mean, effective * (_Z / student(self.freedom)) ** 2)


def crossed(cohorts: Sequence[Cohort]) -> Estimate:
    """The mean over sites of the mean of their rows, each seed weighing the same, and its variance.

    A value is mean + patient effect + seed effect + interaction. The variances of the effects average out as 1 / P,
    1 / S and 1 / (P S) over P patients and S seeds. V_p, the variance clustered by patient, holds the first and third;
    V_s, clustered by seed, the second and third; V_ps the third alone. So the variance of the mean is V_s + V_p - V_ps,
    and at least V_s. V_p and V_ps are those of the sites' ratios after linearisation. With a single seed V_s is 0: one
    seed says nothing about others. Several cohorts have patients and seeds of their own, so their variance is the one
    between cohorts.
    """
    seeds = [float(value) for cohort in cohorts for value in _seed_means(cohort)]
    mean = fmean(seeds)
    if len(cohorts) == 1:
        return _one_cohort(mean, np.array(seeds), cohorts[0])
    weights = np.array([len(cohort[0][0]) for cohort in cohorts]) / len(seeds)
    apart = np.array([_seed_means(cohort).mean() for cohort in cohorts]) - mean
    variance = float((weights**2 * apart**2).sum() / (1 - (weights**2).sum()))
    return Estimate(mean, _or_zero(variance), len(cohorts) - 1)


def _seed_means(cohort: Cohort) -> np.ndarray:
    means: np.ndarray = np.mean([values.mean(axis=1) for values, _ in cohort], axis=0)
    return means


def _one_cohort(mean: float, seeds: np.ndarray, cohort: Cohort) -> Estimate:
    between = len(seeds) - 1
    by_seed = float(seeds.var(ddof=1)) / len(seeds) if between else 0.0
    by_patient = by_both = 0.0
    uncertain, freedom = by_seed**2 / max(1, between), 0.0
    for values, owners in cohort:
        _, groups, sizes = np.unique(np.asarray(owners), return_inverse=True, return_counts=True)
        others = len(sizes) - 1
        if not others:
            return Estimate(mean, 0.0, 0.0)
        sums = np.stack([np.bincount(groups, row, len(sizes)) for row in values])
        parts = (sums - sizes * values.mean(axis=1, keepdims=True)) / (len(owners) * len(cohort))
        patients = len(sizes) / others * float((parts.mean(axis=0) ** 2).sum())
        both = len(sizes) / others * float(parts.var(axis=0, ddof=1).sum()) / len(seeds) if between else 0.0
        by_patient, by_both, freedom = by_patient + patients, by_both + both, freedom + others
        uncertain += (patients**2 + both**2 / max(1, between)) / others
    variance = _or_zero(by_seed + max(0.0, by_patient - by_both))
    if variance:
        freedom = max(variance**2 / uncertain, min(between or freedom, freedom))
    return Estimate(mean, variance, freedom)


def _or_zero(variance: float) -> float:
    """The variance, or 0 if it is only rounding: equal values may differ in their last bits."""
    return variance if variance > 1e-24 else 0.0


def student_p(t: float, freedom: float) -> float:
    """The two-sided p value of Student's t. Its density is a power of the cosine of atan(t / sqrt(freedom))."""
    angle = atan(abs(t) / sqrt(freedom))
    inside = angle * float(_WEIGHTS @ np.cos(angle * (_NODES + 1) / 2) ** (freedom - 1))
    return max(0.0, 1 - inside * exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi))


def student(freedom: float) -> float:
    """Student's 97.5 % quantile: the t whose two-sided p value is 0.05."""
    low, high = 0.0, pi / 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(sqrt(freedom) * tan(middle), freedom) > 0.05 else (low, middle)
    return sqrt(freedom) * tan(low)


SCHEMA = "medfedvqa.groups/1"
"""The format of the figures by group, as `medfedvqa groups --json` prints them."""
LEAST = 20
"""The fewest patients of a group."""
UNKNOWN = 100
"""The decade for unknown ages, after all others."""
WHOLE, AGE = "organ", "age"
"""Two characteristics: one that all patients of a site have in common, and one with ordered labels."""
Labels = Mapping[str, Mapping[int, str | int]]
"""By characteristic, each patient's label: a word, or for ages the decade's first year, or `UNKNOWN`."""


@dataclass(frozen=True)
class PatientGroup:
    """Patients with a common characteristic."""

    by: str
    """The characteristic."""
    name: str
    patients: frozenset[int]
    """Their numbers."""


def groups_of(labels: Labels) -> list[PatientGroup]:
    """The groups by each characteristic. Small groups are joined: neighbouring ages, otherwise the smallest ones."""
    groups: list[PatientGroup] = []
    for by, label_of in labels.items():
        parts = _joined(Counter(label_of.values()))
        if len(parts) > 1 or by == WHOLE:
            names = _ages(parts) if by == AGE else [str(part[0]) if len(part) == 1 else "others" for part in parts]
            members = [frozenset(patient for patient, label in label_of.items() if label in part) for part in parts]
            groups += [PatientGroup(by, name, patients) for name, patients in zip(names, members, strict=True)]
    return groups


def _joined(counts: Mapping[Any, int]) -> list[list[Any]]:
    """The labels of each group: in order if they are numbers, otherwise the most frequent first."""
    ordered = all(isinstance(label, int) for label in counts)
    rest, parts = list[Any](), list[list[Any]]()
    for label in sorted(counts) if ordered else sorted(counts, key=lambda label: (-counts[label], label)):
        rest.append(label)
        if sum(counts[each] for each in rest) >= LEAST and (ordered or len(rest) == 1):
            parts, rest = [*parts, rest], []
    if sum(counts[each] for each in rest) >= LEAST:
        return [*parts, rest]
    return [*parts[:-1], [*parts[-1], *rest]] if parts else []


def _ages(parts: Sequence[Sequence[int]]) -> list[str]:
    """Names of groups of ages, which show no patient's age at either end."""
    starts, names = [*(part[0] for part in parts), UNKNOWN], list[str]()
    for number, part in enumerate(parts):
        low, high = starts[number : number + 2]
        if low == UNKNOWN:
            names.append("unknown")
            continue
        last = "known" if number == 0 else f"{low} and above"
        name = last if high == UNKNOWN else f"below {high}" if number == 0 else f"{low} to {high - 1}"
        names.append(f"{name} or unknown" if UNKNOWN in part else name)
    return names


def figures_of(
    group: PatientGroup, owners: torch.Tensor, right: torch.Tensor, without: torch.Tensor | None = None
) -> dict[str, Any]:
    """A group's accuracy, that of the same job without privacy, and the cost of privacy: the second minus the first.

    `owners`: the patient of each test row, int64 [rows]. `right`, `without`: whether each row is answered right, bool
    [rows]. Intervals are 95 % over patients.
    """
    rows = torch.isin(owners, torch.tensor(sorted(group.patients)))
    patients = owners[rows].tolist()

    def share(values: torch.Tensor) -> dict[str, Any]:
        estimate = crossed([[(values[rows].double().numpy()[None], patients)]])
        return {"accuracy": estimate.mean, "interval": [*estimate.share(len(patients), 1)]}

    figures = {"by": group.by, "group": group.name, "patients": len(group.patients), "private": share(right)}
    if without is None:
        return {**figures, "without": None, "cost": None}
    paid = crossed([[((without[rows].double() - right[rows].double()).numpy()[None], patients)]])
    cost = {"mean": paid.mean, "interval": paid.interval and [*paid.interval]}
    return {**figures, "without": share(without), "cost": cost}
