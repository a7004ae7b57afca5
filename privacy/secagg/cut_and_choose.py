"""Keeps a dealer from reusing or changing tuples unnoticed: cut and choose over dealings from members' seeds.

For each attempt every member draws a fresh seed and sends it to the dealer. `SETS` set seeds are derived from each.
A dealing is a function of one set seed of each member. All its uniform values come from these seeds, so one honest
member makes every mask fresh, and the dealer chooses only corrections and the keys of masks that it hands on.

1. The dealer makes `SETS` dealings and sends the digest of each to all sites.
2. The members toss a coin (`privacy.secagg.committee`: commit, then open), which chooses the dealing to be used.
3. The dealer sends each site its part of that one, with the digests of all parts, and to members the set seeds of all
   others. Each site checks that the digests give the one of step 1 (`check_part`). Each member makes all other dealings
   again and compares their digests (`check_dealing`). A member computes with the set seed that it derives itself.

Soundness: a dealer that changes one dealing passes with probability 1 / SETS, if the coin is fair and all sites have
the same digests (`privacy.secagg.channel.connect` compares them); one that changes more is caught. Whoever can end an
attempt between the coin toss and the check of the dealing gets another try: count these tries.

Source: M. Rabin, "Digitalized Signatures", 1978 (cut and choose); Y. Lindell, B. Pinkas, "An Efficient Protocol for
Secure Two-Party Computation in the Presence of Malicious Adversaries", 2007, section 3.
"""

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from privacy.secagg.channel import joined
from privacy.secagg.errors import MisdealtError, SecureAggregationError
from privacy.secagg.layout import TensorLayout
from privacy.secagg.ring import KEY_BYTES, derive_key

SETS = 4
"""The dealings of each attempt, one of them used. A power of two, so that 32 uniform bytes choose uniformly."""


def new_seed() -> bytes:
    """A member's part of the randomness of one attempt, 32 bytes; for one attempt only."""
    return os.urandom(KEY_BYTES)


def set_seed(seed: bytes, context: bytes, index: int) -> bytes:
    """A member's seed of one set, which reveals nothing about the seeds of other sets.

    `context` names job, round, attempt and members. Raises `SecureAggregationError` if this is not a member's seed.
    """
    if len(seed) != KEY_BYTES:
        raise SecureAggregationError(f"a member's seed must have {KEY_BYTES} bytes: ask the member for another one")
    return derive_key(seed, _digest(b"set seed", context, b"%d" % index))


def choice(beacon: bytes) -> int:
    """The dealing to be used, by 32 uniform bytes. Raises `SecureAggregationError` for fewer."""
    if len(beacon) != KEY_BYTES:
        raise SecureAggregationError(f"the coin that chooses a dealing must have {KEY_BYTES} bytes: draw it again")
    return int.from_bytes(beacon, "big") % SETS


@dataclass(frozen=True)
class ChosenInstances:
    """The dealer's messages after the choice: the chosen dealing's parts, by site, and the others' seeds, by member."""

    parts: Mapping[str, bytes]
    digests: Mapping[str, bytes]
    revealed: Mapping[str, tuple[bytes, ...]]


@dataclass(frozen=True)
class Dealing:
    """The dealer's side of one attempt. Parts are computed again once chosen, since all together are large."""

    sites: tuple[str, ...]
    members: tuple[str, ...]
    layout: TensorLayout
    seeds: tuple[Mapping[str, bytes], ...]
    """For each set, the set seeds by member."""
    digests: tuple[bytes, ...]

    @classmethod
    def of(
        cls,
        sites: Sequence[str],
        members: Sequence[str],
        layout: TensorLayout,
        context: bytes,
        seeds: Mapping[str, bytes],
    ) -> "Dealing":
        """The dealings of one attempt. Raises `SecureAggregationError` if these are not a group, a seed is missing or
        has another length."""
        if absent := sorted(set(members) - seeds.keys()):
            raise SecureAggregationError(f"no seed came from {', '.join(absent)}: repeat the attempt without it")
        by_set = tuple({member: set_seed(seeds[member], context, index) for member in members} for index in range(SETS))
        digests = tuple(_digest_of_set(_part_digests(_parts(sites, members, layout, each))) for each in by_set)
        return cls(tuple(sites), tuple(members), layout, by_set, digests)

    def chosen(self, index: int) -> ChosenInstances:
        """The dealing of this index, and the set seeds that show that the others are right."""
        parts = _parts(self.sites, self.members, self.layout, self.seeds[index])
        others = [each for place, each in enumerate(self.seeds) if place != index]
        set_seeds = {member: tuple(each[member] for each in others) for member in self.members}
        return ChosenInstances(parts, _part_digests(parts), set_seeds)


def check_part(site: str, part: bytes, parts: Mapping[str, bytes], digest: bytes) -> None:
    """For every site: raises `MisdealtError` unless its part is the one that the dealer had committed to.

    `parts`: the digests of all sites' parts. `digest`: the chosen dealing's, from before the coin toss.
    """
    if not hmac.compare_digest(_digest_of_set(parts), digest):
        raise MisdealtError("the parts that the server dealt do not match its commitment: refuse the job")
    if parts.get(site) != hashlib.sha256(part).digest():
        raise MisdealtError("the part that the server dealt to this site does not match its commitment: refuse the job")


def check_dealing(
    sites: Sequence[str],
    members: Sequence[str],
    layout: TensorLayout,
    context: bytes,
    me_seed: tuple[str, bytes],
    set_seeds: Mapping[str, Sequence[bytes]],
    digests: Sequence[bytes],
    index: int,
) -> None:
    """For members: raises `MisdealtError` unless all dealings but the chosen one follow from the members' seeds.

    `me_seed`: this member's name and the seed that it drew. `digests`: of all dealings, from before the coin toss.
    """
    (me, seed), others = me_seed, [each for each in range(SETS) if each != index]
    complete = set_seeds.keys() == set(members) and all(
        len(each) == len(others) and all(len(key) == KEY_BYTES for key in each) for each in set_seeds.values()
    )
    if len(digests) != SETS or len(others) != SETS - 1 or not complete:
        raise MisdealtError("the server does not show every dealing that is not used: refuse the job")
    if list(set_seeds[me]) != [set_seed(seed, context, each) for each in others]:
        raise MisdealtError("the server dealt from another seed than the one that this site sent: refuse the job")
    for place, each in enumerate(others):
        parts = _parts(sites, members, layout, {member: set_seeds[member][place] for member in members})
        if not hmac.compare_digest(_digest_of_set(_part_digests(parts)), digests[each]):
            raise MisdealtError("what the server dealt does not follow from the members' seeds: refuse the job")


def check_unused(
    sites: Sequence[str],
    members: Sequence[str],
    layout: TensorLayout,
    context: bytes,
    me_seed: tuple[str, bytes],
    seeds: Mapping[str, bytes],
    digests: Sequence[bytes],
) -> None:
    """For members, after an attempt that ended between its coin toss and the use of its dealing: checks all dealings.

    Else a dealer could end attempts until the coin suits it. `seeds`: those that the members had sent. Raises
    `MisdealtError`.
    """
    me, seed = me_seed
    if seeds.keys() != set(members) or seeds[me] != seed or any(len(each) != KEY_BYTES for each in seeds.values()):
        raise MisdealtError("the server does not show the seeds of a dealing that it did not use: refuse the job")
    if list(Dealing.of(sites, members, layout, context, seeds).digests) != list(digests):
        raise MisdealtError("what the server dealt does not follow from the members' seeds: refuse the job")


def _parts(
    sites: Sequence[str], members: Sequence[str], layout: TensorLayout, seeds: Mapping[str, bytes]
) -> dict[str, bytes]:
    # CrypTen takes seconds to import, and sites that are not members check their parts without it.
    from privacy.secagg.protocol import deal_mix

    return deal_mix(sites, members, layout, seeds)


def _part_digests(parts: Mapping[str, bytes]) -> dict[str, bytes]:
    return {site: hashlib.sha256(part).digest() for site, part in parts.items()}


def _digest_of_set(parts: Mapping[str, bytes]) -> bytes:
    return _digest(b"set", *[piece for site in sorted(parts) for piece in (site.encode(), parts[site])])


def _digest(purpose: bytes, *parts: bytes) -> bytes:
    return hashlib.sha256(joined(b"medfedvqa dealing 1", purpose, *parts)).digest()
