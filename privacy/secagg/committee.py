"""Draws a committee, a few sites that compute for a large federation, by randomness that no single party controls.

Named committees need no draw. For a draw, each site commits to a nonce for the job before it sees any other's, then all
open theirs; the beacon is a hash of all nonces. The committee of a round consists of the sites with the lowest tags
under the beacon. Everything is public, and any site can check all of it.

One honest site's nonce makes the beacon unpredictable until it opens. A round has one draw: if one of its sites drops
out, the next by tag takes its place, so that a server gains no new draw by letting attempts fail. A lying server can
still leave sites out before the draw, so that the colluders among the rest weigh more. It can withhold the opening of a
colluding site after it has seen the others', which voids the draw and ends the job. And it can leave out honest sites
after the draw, so that colluders move up: `colluding` includes that, and a job's `min_sites` limits it.

Source: M. Blum, "Coin flipping by telephone", 1981 (commit, then open); each nonce has 32 random bytes, so that its
hash hides it. Tags are HMAC-SHA-256 (RFC 2104).
"""

import hashlib
import hmac
import math
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from privacy.secagg.channel import joined
from privacy.secagg.errors import MINIMUM, SecureAggregationError, SiteError


@dataclass(frozen=True)
class Group:
    """A group as one of its sites, `me`, sees it; every name list is in order of names.

    Each of the `sites` owns an input; the `members`, all sites or a committee of them, compute on shares.
    Raises `SecureAggregationError` with fewer than 3 members, or if the names do not describe a group.
    """

    me: str
    sites: tuple[str, ...]
    members: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.members) < MINIMUM:
            raise SecureAggregationError(f"fewer than {MINIMUM} sites would reveal each other: wait for more sites")
        for names in (self.sites, self.members):
            if list(names) != sorted(set(names)):
                raise SecureAggregationError("a group must name each site once, in alphabetical order: sort the names")
        if not {self.me, *self.members} <= set(self.sites):
            raise SecureAggregationError("this site and all members must be among the sites: choose them from these")

    @property
    def rank(self) -> int:
        """This site's place among the sites."""
        return self.sites.index(self.me)

    @property
    def is_member(self) -> bool:
        """Whether this site computes."""
        return self.me in self.members

    @property
    def seat(self) -> int:
        """This site's place among the members. Raises `ValueError` if it is not a member."""
        return self.members.index(self.me)


NONCE_BYTES = 32


@dataclass(frozen=True)
class Nonce:
    """One site's part of the randomness of one job, secret until all commitments are there."""

    job: str
    site: str
    value: bytes

    @classmethod
    def draw(cls, job: str, site: str) -> "Nonce":
        """A fresh nonce from the operating system."""
        return cls(job, site, secrets.token_bytes(NONCE_BYTES))

    @property
    def commitment(self) -> bytes:
        """32 bytes, bound to this job and site, for all sites to see before any site opens."""
        return _digest(b"commitment", self.job.encode(), self.site.encode(), self.value)


@dataclass(frozen=True)
class Beacon:
    """The randomness of one job, from the nonces of all its sites; equal for all who saw the same openings."""

    sites: tuple[str, ...]
    value: bytes

    @classmethod
    def open(cls, nonce: Nonce, commitments: Mapping[str, bytes], nonces: Mapping[str, bytes]) -> "Beacon":
        """The beacon, checked by a site with its own nonce. `commitments`: those that it saw before it opened, by site.

        Raises `SiteError` naming the site whose nonce does not fit its commitment, or is missing, and
        `SecureAggregationError` if this site's own part is missing or changed, or sites were added.
        """
        if commitments.get(nonce.site) != nonce.commitment or nonces.get(nonce.site) != nonce.value:
            raise SecureAggregationError("the draw leaves out this site's own nonce: refuse the job")
        return cls.of(nonce.job, commitments, nonces)

    @classmethod
    def of(cls, job: str, commitments: Mapping[str, bytes], nonces: Mapping[str, bytes]) -> "Beacon":
        """The beacon, checked by a party without a nonce. Raises as `open` does."""
        if strangers := sorted(nonces.keys() - commitments.keys()):
            raise SecureAggregationError(
                f"the draw has nonces of sites that did not commit ({', '.join(strangers)}): refuse the job"
            )
        sites = tuple(sorted(commitments))
        for site in sites:
            if site not in nonces:
                raise SiteError(site, "committed to a nonce and did not open it: the draw is void, refuse the job")
            nonce = Nonce(job, site, nonces[site])
            if len(nonce.value) != NONCE_BYTES or not hmac.compare_digest(nonce.commitment, commitments[site]):
                raise SiteError(site, "opened another nonce than it committed to: the draw is void, refuse the job")
        parts = [part for site in sites for part in (site.encode(), nonces[site])]
        return cls(sites, _digest(b"beacon", job.encode(), *parts))

    def committee(self, round: int, size: int, left_out: Collection[str] = ()) -> tuple[str, ...]:
        """The committee of a round, in order of names; without sites that fell out since the draw.

        Raises `SecureAggregationError` for too small a committee, or too few sites.
        """
        eligible = [site for site in self.sites if site not in left_out]
        if not MINIMUM <= size <= len(eligible):
            raise SecureAggregationError(
                f"a committee of {size} out of {len(eligible)} sites cannot be drawn: choose a size from {MINIMUM} "
                "to the number of sites"
            )
        return tuple(sorted(sorted(eligible, key=lambda site: self._tag(round, site))[:size]))

    def _tag(self, round: int, site: str) -> bytes:
        return hmac.digest(self.value, joined(round.to_bytes(8, "big"), site.encode()), "sha256")


def colluding(sites: int, colluders: int, members: int, enough: int, left_out: int = 0, rounds: int = 1) -> float:
    """The probability that in any of the rounds the committee has `enough` colluders, if the server knows the draw and
    leaves out the `left_out` sites that suit it best.

    Then the colluders only have to be among the first `members` + `left_out` of the ranking. Rounds are independent,
    because a tag is a random function of the round. Source: the hypergeometric distribution's tail.
    """
    first = min(members + left_out, sites)
    if not 0 <= colluders <= sites or not 1 <= enough <= members <= sites or min(left_out, rounds - 1) < 0:
        raise SecureAggregationError("a committee and the colluders cannot outnumber the sites: check the numbers")
    counts = range(enough, min(first, colluders) + 1)
    draws = (math.comb(colluders, k) * math.comb(sites - colluders, first - k) for k in counts)
    once = sum(draws) / math.comb(sites, first)
    # As 1 - (1 - once) ** rounds, also where once is below the resolution of 1.
    return 1.0 if once >= 1 else -math.expm1(rounds * math.log1p(-once))


def _digest(purpose: bytes, *parts: bytes) -> bytes:
    return hashlib.sha256(joined(b"medfedvqa committee 1", purpose, *parts)).digest()


def threshold(members: int) -> int:
    """The number of members that must answer to open a sum: more than two thirds.

    A server with fewer than `2 * threshold - members` colluding members that asks members for different sums of one
    attempt gets at most one of them opened.
    """
    return 2 * members // 3 + 1
