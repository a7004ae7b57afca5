"""Groups of patients by a characteristic, and accuracies by group.

A group has at least `LEAST` patients. Smaller ones are joined, so that no difference of two figures is about fewer
patients either. A characteristic with fewer than two groups is left out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from medfedvqa.evaluation.patient_intervals import crossed

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
class Group:
    """Patients with a common characteristic."""

    by: str
    """The characteristic."""
    name: str
    patients: frozenset[int]
    """Their numbers."""


def groups_of(labels: Labels) -> list[Group]:
    """The groups by each characteristic. Small groups are joined: neighbouring ages, otherwise the smallest ones."""
    groups: list[Group] = []
    for by, label_of in labels.items():
        parts = _joined(Counter(label_of.values()))
        if len(parts) > 1 or by == WHOLE:
            names = _ages(parts) if by == AGE else [str(part[0]) if len(part) == 1 else "others" for part in parts]
            members = [frozenset(patient for patient, label in label_of.items() if label in part) for part in parts]
            groups += [Group(by, name, patients) for name, patients in zip(names, members, strict=True)]
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
    group: Group, owners: torch.Tensor, right: torch.Tensor, without: torch.Tensor | None = None
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
