"""Whether sums over different cohorts of sites can be combined to a sum over few of them. Exact: integers only.

A sum over a cohort is a vector of zeros and ones over the sites. In the worst case, each site puts the same input into
all sums: then whoever holds several sums can compute all their linear combinations.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from math import gcd

Cohort = frozenset[str]
_Vector = list[int]


def sites_shown(earlier: Collection[Cohort], cohort: Cohort, least: int) -> tuple[str, ...]:
    """The smallest group of fewer than `least` sites such that a combination of these sums has only their inputs.

    Empty if there is none, or if the sum over `cohort` is a combination of earlier ones and so reveals nothing new.
    """
    alike = _always_together({*earlier, cohort})
    span = _Span(_vector(alike, past) for past in set(earlier))
    if not span.add(_vector(alike, cohort)):
        return ()
    weights = [len(sites) for sites in alike]
    for room in range(1, least):
        if classes := _dependent(span.checks(len(alike)), weights, room):
            return tuple(sorted(site for each in classes for site in alike[each]))
    return ()


def _always_together(cohorts: Collection[Cohort]) -> list[list[str]]:
    """Groups of sites that are in the same cohorts: a group's sites have the same coefficient in every combination."""
    present: defaultdict[str, list[int]] = defaultdict(list)
    for number, cohort in enumerate(cohorts):
        for site in cohort:
            present[site].append(number)
    alike: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for site in sorted(present):
        alike[tuple(present[site])].append(site)
    return list(alike.values())


def _vector(alike: Sequence[Sequence[str]], cohort: Cohort) -> _Vector:
    return [int(sites[0] in cohort) for sites in alike]


class _Span:
    """The span of some vectors, as a basis in which each pivot's column is zero in all rows but one."""

    def __init__(self, vectors: Iterable[_Vector]) -> None:
        self._rows: dict[int, _Vector] = {}
        for vector in vectors:
            self.add(vector)

    def add(self, vector: _Vector) -> bool:
        """Adds a vector; returns whether it was linearly independent of the earlier ones."""
        for place, row in self._rows.items():
            vector = _cleared(vector, row, place)
        pivot = _first(vector)
        if pivot is None:
            return False
        self._rows = {other: _cleared(row, vector, pivot) for other, row in self._rows.items()}
        self._rows[pivot] = vector
        return True

    def checks(self, width: int) -> list[_Vector]:
        """A column for each place. The columns of some places are linearly dependent exactly if the span holds a vector
        other than zero that is zero in all other places."""
        free = [place for place in range(width) if place not in self._rows]
        unit = {place: [int(place == other) for other in free] for place in free}
        return [unit.get(place) or [self._rows[place][other] for other in free] for place in range(width)]


def _first(vector: _Vector) -> int | None:
    """The index of the first nonzero number."""
    return next((place for place, value in enumerate(vector) if value), None)


def _cleared(vector: _Vector, row: _Vector, pivot: int) -> _Vector:
    """A combination of vector and row that is zero at the pivot."""
    if not vector[pivot]:
        return vector
    mine, other = row[pivot], vector[pivot]
    row_without_column = [mine * a - other * b for a, b in zip(vector, row, strict=True)]
    divisor = gcd(*row_without_column)
    return [value // divisor for value in row_without_column] if divisor > 1 else row_without_column


def _dependent(columns: Sequence[_Vector], weights: Sequence[int], room: int) -> list[int]:
    """Places of linearly dependent columns whose weights sum to at most `room`; empty if there are none."""

    def search(columns: list[tuple[int, _Vector]], room: int) -> list[int]:
        for number, (place, column) in enumerate(columns):
            pivot = _first(column)
            if pivot is None:
                return [place]
            rest = room - weights[place]
            others = [
                (other, _cleared(later, column, pivot))
                for other, later in columns[number + 1 :]
                if weights[other] <= rest
            ]
            if rest_of_path := search(others, rest):
                return [place, *rest_of_path]
        return []

    return search([(place, column) for place, column in enumerate(columns) if weights[place] <= room], room)
