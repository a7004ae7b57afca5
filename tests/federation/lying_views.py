"""What a server and colluding sites know together, as linear equations: does any honest site's input follow from it?

Every input and every mask is an unknown over a prime field larger than any number of equations. A masked upload is one
equation; a mask is known if enough shares of its key were given away. All elements of a vector have masks of their own
and the same equations, so one element stands for all.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from privacy.secagg.pairwise_masks import threshold

PRIME = 2**61 - 1
OWN, COMMON = 1, 0
"""The half of a member's shares of one site that opens the site's own mask, and that of the masks it has in common."""

Unknown = tuple[Any, ...]
"""Its kind, then the site or the exchange that it belongs to, then what tells it from others."""
Row = dict[Unknown, int]


def input_of(site: str, job: int, round: int) -> Unknown:
    """The unknown that a site puts into all aggregates of one round; `job`: 0 if it is the same in all jobs."""
    return "input", site, job, round


class Equations:
    """Linear equations over the field, without the values that they are equal to."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, row: Mapping[Unknown, int], known: Collection[Unknown] = ()) -> None:
        """One equation; what is known in it counts for nothing."""
        self.rows.append({name: factor % PRIME for name, factor in row.items() if name not in known and factor % PRIME})

    def exposed(self) -> list[str]:
        """The sites of whose inputs alone some combination of the equations makes a number known.

        A combination in which one site's inputs of several rounds remain counts: it would be a difference of them.
        """
        inputs = _without_masks(self.rows)
        sites = sorted({name[1] for row in inputs for name in row})
        rank = _rank(inputs)
        return [site for site in sites if _rank([_others(row, site) for row in inputs]) < rank]


def _others(row: Row, site: str) -> Row:
    return {name: factor for name, factor in row.items() if name[1] != site}


def _is_input(name: Unknown) -> bool:
    return name[0] == "input"


def _without_masks(rows: list[Row]) -> list[Row]:
    """A basis of the combinations in which no mask is left."""
    left = [dict(row) for row in rows]
    for mask in {name for row in rows for name in row if not _is_input(name)}:
        pivot = next((row for row in left if mask in row), None)
        if pivot is not None:
            left = [_cleared(row, pivot, mask) for row in left if row is not pivot]
    return [row for row in left if row]


def _rank(rows: list[Row]) -> int:
    left, rank = [dict(row) for row in rows if row], 0
    while left:
        pivot = left.pop()
        name = next(iter(pivot))
        left = [row for other in left if (row := _cleared(other, pivot, name))]
        rank += 1
    return rank


def _cleared(row: Row, pivot: Row, name: Unknown) -> Row:
    """The row, less that multiple of the pivot with which the unknown drops out."""
    if name not in row:
        return row
    factor = row[name] * pow(pivot[name], -1, PRIME) % PRIME
    names = row.keys() | pivot.keys()
    cleared = {each: (row.get(each, 0) - factor * pivot.get(each, 0)) % PRIME for each in names}
    return {each: value for each, value in cleared.items() if value}


@dataclass
class Exchange:
    """One run of the exchange of keys for a mean, and what came of it."""

    job: int
    round: int
    sites: tuple[str, ...]
    members: tuple[str, ...]
    uploaded: set[str] = field(default_factory=set)
    given: defaultdict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    """Members who gave the server their share, by site and half."""

    def peers(self, site: str) -> list[str]:
        """The sites with which one has masks in common."""
        return [other for other in (self.sites if site in self.members else self.members) if other != site]

    def knows(self, site: str, half: int, colluders: Collection[str]) -> bool:
        """Whether the key of this half can be rebuilt: colluding members hold both halves of all."""
        if site in colluders:
            return True
        holders = self.given[site, half] | (set(colluders) & set(self.members))
        return len(holders) >= threshold(len(self.members))

    def equations(self, number: int, colluders: Collection[str]) -> list[Row]:
        """One for each upload; `number` tells the masks of this exchange from those of others."""
        rows = []
        for site in sorted(self.uploaded):
            row: Row = {} if site in colluders else {input_of(site, self.job, self.round): 1}
            if not self.knows(site, OWN, colluders):
                row["own", number, site] = 1
            for peer in self.peers(site):
                if not any(self.knows(each, COMMON, colluders) for each in (site, peer)):
                    ends = tuple(sorted((site, peer)))
                    row["common", number, ends] = 1 if site == ends[0] else PRIME - 1
            rows.append(row)
        return rows
