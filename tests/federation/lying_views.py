"""What a server and colluding sites know together, in bytes and as linear equations: does an honest input follow?

Every input and every mask is an unknown over a prime field larger than any number of equations. A masked upload is one
equation; a mask is known if enough shares of its key were given away. All elements of a vector have masks of their own
and the same equations, so one element stands for all.
"""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from privacy.secagg import shamir
from privacy.secagg.pairwise_masks import threshold
from privacy.secagg.ring import Ring, Stream

PRIME = 2**61 - 1
COMBINED = 3
"""The most sums that are added and subtracted in a search for an input."""
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


@dataclass(frozen=True)
class MaskedUpload:
    """What one site put into a sum, under masks."""

    values: Ring
    key: bytes


Keys = Mapping[tuple[str, int], bytes]
"""By site and half."""


@dataclass
class Exchange:
    """One run of the exchange of keys for a mean, and what the server and its colluders hold of it."""

    sites: tuple[str, ...]
    members: tuple[str, ...]
    job: int = 0
    round: int = 1
    uploads: dict[str, MaskedUpload] = field(default_factory=dict)
    shares: defaultdict[tuple[str, int], dict[str, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """By site and half, those of the members who gave theirs away."""

    def opened(self, member: str, rows: Sequence[bytes], uploaded: Collection[str]) -> None:
        """A member's answer to the question for the sum of these sites: its shares by the rank of their site."""
        for site, row in zip(self.sites, rows, strict=False):
            self.shares[site, OWN if site in uploaded else COMMON][member] = row

    def peers(self, site: str) -> list[str]:
        """The sites with which one has masks in common."""
        return [other for other in (self.sites if site in self.members else self.members) if other != site]

    def knows(self, site: str, half: int, colluders: Collection[str]) -> bool:
        """Whether the key of this half can be rebuilt: colluding members hold both halves of all."""
        holders = self.shares[site, half].keys() | (set(colluders) & set(self.members))
        return site in colluders or len(holders) >= threshold(len(self.members))

    def equations(self, number: int, colluders: Collection[str]) -> list[Row]:
        """One for each upload; `number` tells the masks of this exchange from those of others."""
        rows = []
        for site in sorted(self.uploads):
            row: Row = {} if site in colluders else {input_of(site, self.job, self.round): 1}
            if not self.knows(site, OWN, colluders):
                row["own", number, site] = 1
            for peer in self.peers(site):
                if not any(self.knows(each, COMMON, colluders) for each in (site, peer)):
                    ends = tuple(sorted((site, peer)))
                    row["common", number, ends] = 1 if site == ends[0] else PRIME - 1
            rows.append(row)
        return rows

    def keys(self) -> Keys:
        """Those that the shares rebuild."""
        needed = threshold(len(self.members))
        return {
            owner: shamir.to_bytes(
                shamir.rebuild({self.members.index(m): shamir.from_bytes(s) for m, s in shares.items()}, needed)
            )
            for owner, shares in self.shares.items()
            if len(shares) >= needed
        }

    def sum_of(self, sites: Collection[str], keys: Keys) -> Ring | None:
        """The sum of these sites' inputs; None if the keys do not take all masks away."""
        absent = {site: set(self.peers(site)) - set(sites) for site in sites}
        needed = {(site, OWN) for site in sites} | {(peer, COMMON) for peers in absent.values() for peer in peers}
        if not needed <= keys.keys():
            return None
        total: Ring = np.sum([self.uploads[site].values for site in sites], axis=0, dtype=np.uint64)
        for site in sites:
            total = total - Stream(keys[site, OWN]).ring(total.shape)
            for peer in absent[site]:
                mask = common_mask(keys[peer, COMMON], self.uploads[site].key, total.shape)
                total = total - mask if site < peer else total + mask
        return total

    def sums(self) -> Iterator[tuple[frozenset[str], Ring]]:
        """Every sum that can be opened, with its sites."""
        keys = self.keys()
        for count in range(1, len(self.uploads) + 1):
            for sites in map(frozenset, itertools.combinations(sorted(self.uploads), count)):
                if (total := self.sum_of(sites, keys)) is not None:
                    yield sites, total


def found_in_sums(
    held: Collection[Exchange], secrets: Mapping[tuple[str, int], Ring], colluders: Collection[str]
) -> list[str]:
    """Honest sites of which what they put in, by site and round, is a sum or difference of a few opened sums."""
    opened = {}
    for exchange in held:
        for sites, total in exchange.sums():
            for site in sites & set(colluders):
                total = total - secrets[site, exchange.round]
            opened[total.tobytes()] = total.view(np.int64)
    planted = {secret[:-1].tobytes(): site for (site, _), secret in secrets.items() if site not in colluders}
    found = set()
    for count in range(1, COMBINED + 1):
        for chosen in itertools.combinations(opened.values(), count):
            for signs in itertools.product((1, -1), repeat=count):
                total = np.sum([sign * values for sign, values in zip(signs, chosen, strict=True)], axis=0)
                found.add(planted.get(total[:-1].tobytes()))
    return sorted(found - {None})


def common_mask(private: bytes, public: bytes, shape: tuple[int, ...]) -> Ring:
    """The mask that two sites have in common, from one's private key and the other's public one."""
    agreed = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return Stream(HKDFExpand(SHA256(), 32, b"medfedvqa common mask").derive(agreed)).ring(shape)
