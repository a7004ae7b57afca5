"""Dealings from members' seeds: a dealer that uses tuples twice or bends them is caught as often as stated."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tiers import examples

from privacy.aggregation import Reliability, mix
from privacy.secagg import Group, MisdealtError, SecureAggregationError, TensorLayout
from privacy.secagg import cut_and_choose as module
from privacy.secagg.cut_and_choose import (
    SETS,
    ChosenInstances,
    Dealing,
    check_dealing,
    check_part,
    check_unused,
    choice,
    new_seed,
    set_seed,
)
from privacy.secagg.protocol import deal_mix, secure_mix
from privacy.secagg.ring import KEY_BYTES

CONTEXT = b"job 1, round 2, attempt 3"
SITES = ("s0", "s1", "s2", "s3")
MEMBERS = SITES[:3]
LAYOUT = TensorLayout.of({"p": (2, 3)})
SMALL = TensorLayout.of({"p": (1,)})
FEW = settings(max_examples=examples(10))

Parts = dict[str, bytes]
Bend = Callable[[Parts], Parts]


def seeds_of(members: tuple[str, ...] = MEMBERS) -> dict[str, bytes]:
    return {member: new_seed() for member in members}


def changed(part: bytes, place: int) -> bytes:
    return part[:place] + bytes([part[place] ^ 1]) + part[place + 1 :]


def added(part: bytes, place: int, vector: np.ndarray) -> bytes:
    """A part with a vector added to the numbers that begin at a place."""
    numbers = np.frombuffer(part[place : place + 8 * len(vector)], "<u8") + vector.view(np.uint64)
    return part[:place] + numbers.tobytes() + part[place + 8 * len(vector) :]


CORRECTION = len(MEMBERS) * KEY_BYTES
"""Where the correction of an owner's mixture begins in its part, after the keys of its mask."""

OLD = {layout: deal_mix(SITES, MEMBERS, layout, seeds_of()) for layout in (LAYOUT, SMALL)}
"""What was dealt in an earlier attempt."""


def corrections_of(part: bytes, old: bytes) -> bytes:
    return part[:CORRECTION] + old[CORRECTION:]


BENDS: dict[str, Callable[[Parts, TensorLayout], Parts]] = {
    "a vector on one site's correction": lambda p, layout: {
        **p,
        "s1": added(p["s1"], CORRECTION, np.full(layout.size, 1 << 40)),
    },
    "a bit of the correction of a site that is not a member": lambda p, _: {**p, "s3": changed(p["s3"], CORRECTION)},
    "a wrong mask key to an owner": lambda p, _: {**p, "s3": changed(p["s3"], KEY_BYTES)},
    "a wrong correction at the last member": lambda p, _: {**p, "s2": changed(p["s2"], len(p["s2"]) - 1)},
    "parts of two sites exchanged": lambda p, _: {**p, "s0": p["s1"], "s1": p["s0"]},
    "corrections of an earlier attempt": lambda p, layout: {s: corrections_of(p[s], OLD[layout][s]) for s in p},
    "all parts of an earlier attempt": lambda _, layout: OLD[layout],
    "a part that is longer": lambda p, _: {**p, "s3": p["s3"] + bytes(8)},
}


@dataclass
class Liar:
    """A dealer that bends one of its dealings and is honest otherwise."""

    honest: Dealing
    bent: int
    parts: Parts

    @property
    def digests(self) -> tuple[bytes, ...]:
        digests = list(self.honest.digests)
        digests[self.bent] = module._digest_of_set(module._part_digests(self.parts))
        return tuple(digests)

    def chosen(self, index: int) -> ChosenInstances:
        chosen = self.honest.chosen(index)
        if index != self.bent:
            return chosen
        return replace(chosen, parts=self.parts, digests=module._part_digests(self.parts))


def liar(bend: str, bent: int, seeds: dict[str, bytes], layout: TensorLayout = LAYOUT) -> Liar:
    honest = Dealing.of(SITES, MEMBERS, layout, CONTEXT, seeds)
    return Liar(honest, bent, BENDS[bend](dict(honest.chosen(bent).parts), layout))


def accepted(dealer: Dealing | Liar, seeds: dict[str, bytes], index: int, layout: TensorLayout = LAYOUT) -> bool:
    """Whether every site takes its part, and the first member, alone, all other dealings."""
    chosen, me = dealer.chosen(index), MEMBERS[0]
    try:
        for site in SITES:
            check_part(site, chosen.parts[site], chosen.digests, dealer.digests[index])
        check_dealing(SITES, MEMBERS, layout, CONTEXT, (me, seeds[me]), chosen.revealed, dealer.digests, index)
    except MisdealtError:
        return False
    return True


@FEW
@given(
    st.integers(3, 6),
    st.integers(3, 6),
    st.dictionaries(st.sampled_from("ab"), st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple), min_size=1),
    st.integers(0, SETS - 1),
)
def test_an_honest_dealing_is_accepted_by_all(count: int, size: int, shapes: dict[str, Any], index: int) -> None:
    """Whatever the sizes and the coin: every site takes its part, every member all other dealings."""
    sites = tuple(f"s{rank}" for rank in range(count))
    members, layout = sites[: min(size, count)], TensorLayout.of(shapes)
    seeds = seeds_of(members)
    dealing = Dealing.of(sites, members, layout, CONTEXT, seeds)
    chosen = dealing.chosen(index)
    for site in sites:
        check_part(site, chosen.parts[site], chosen.digests, dealing.digests[index])
    for member in members:
        me_seed = member, seeds[member]
        check_dealing(sites, members, layout, CONTEXT, me_seed, chosen.revealed, dealing.digests, index)


@pytest.mark.parametrize("index", range(SETS))
def test_the_chosen_dealing_gives_the_plain_mixture(linked: Any, index: int) -> None:
    """Each member computes with the set seed that it derives itself; one site is no member."""
    rng, seeds = np.random.default_rng(index), seeds_of()
    prompts = {site: {"p": np.float32(1 + rng.normal(size=(2, 3)))} for site in SITES}
    chosen = Dealing.of(SITES, MEMBERS, LAYOUT, CONTEXT, seeds).chosen(index)

    def work(group: Group, taps: Any) -> Any:
        seed = set_seed(seeds[group.me], CONTEXT, index) if group.is_member else b""
        return secure_mix(group, taps, chosen.parts[group.me], prompts[group.me], 0.5, LAYOUT, seed)

    expected = mix(prompts, dict.fromkeys(SITES, 0.5), Reliability())
    for site, mixture in linked(SITES, MEMBERS, work).items():
        plain = expected.shared[site]["p"]
        assert np.linalg.norm(mixture["p"] - plain) <= 1e-3 * np.linalg.norm(plain)


@pytest.mark.parametrize("bend", BENDS)
def test_a_bent_dealing_passes_only_if_the_coin_chooses_it(bend: str) -> None:
    """For every dealing that may be bent and every coin: accepted in SETS of SETS * SETS cases, so with 1 / SETS."""
    for bent in range(SETS):
        seeds = seeds_of()
        dealer = liar(bend, bent, seeds, SMALL)
        assert [accepted(dealer, seeds, index, SMALL) for index in range(SETS)] == [i == bent for i in range(SETS)]


def test_a_dealer_that_bends_two_dealings_is_always_caught() -> None:
    """The one that is not used shows it."""
    seeds = seeds_of()
    once = liar("a wrong mask key to an owner", 0, seeds, SMALL)
    twice = Liar(once, 1, BENDS["a wrong mask key to an owner"](dict(once.chosen(1).parts), SMALL))  # type: ignore[arg-type]
    assert not any(accepted(twice, seeds, index, SMALL) for index in range(SETS))  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_measured_soundness_is_the_stated_one() -> None:
    """100 attempts with fresh seeds, coins and bends: the dealer passes as often as 1 / SETS allows, by the exact
    binomial distribution's central interval of 1 - 1e-4."""
    rng, runs, passed = np.random.default_rng(7), 100, 0
    for run in range(runs):
        seeds, bend = seeds_of(), list(BENDS)[run % len(BENDS)]
        dealer = liar(bend, int(rng.integers(SETS)), seeds, SMALL)
        passed += accepted(dealer, seeds, choice(rng.bytes(KEY_BYTES)), SMALL)
    low, high = stats.binom.interval(1 - 1e-4, runs, 1 / SETS)
    assert low <= passed <= high


def test_the_coin_chooses_every_dealing_alike() -> None:
    """20,000 hashes as coins: chi-square over SETS; a coin of another length is none."""
    result = [choice(hashlib.sha256(b"%d" % number).digest()) for number in range(20_000)]
    assert stats.chisquare(np.bincount(result, minlength=SETS)).pvalue > 1e-4
    assert len(np.bincount(result)) == SETS
    with pytest.raises(SecureAggregationError, match="32 bytes"):
        choice(b"0")


def test_revealed_seeds_that_were_altered_are_always_caught() -> None:
    """A member finds a change of its own seeds, and by the digests a change of another's."""
    seeds = seeds_of()
    dealing = Dealing.of(SITES, MEMBERS, SMALL, CONTEXT, seeds)
    for index in range(SETS):
        revealed = dealing.chosen(index).revealed
        for member, sentence in (("s0", "another seed than the one"), ("s1", "does not follow")):
            altered = {**revealed, member: (*revealed[member][:-1], new_seed())}
            with pytest.raises(MisdealtError, match=sentence):
                check_dealing(SITES, MEMBERS, SMALL, CONTEXT, ("s0", seeds["s0"]), altered, dealing.digests, index)


def test_a_dealing_from_another_seed_than_a_members_own_is_caught_by_that_member() -> None:
    """A dealer that replaces a member's seed in every set shows seeds that the member did not send."""
    seeds = seeds_of()
    dealing = Dealing.of(SITES, MEMBERS, SMALL, CONTEXT, {**seeds, "s1": new_seed()})
    revealed = dealing.chosen(0).revealed
    with pytest.raises(MisdealtError, match="another seed than the one"):
        check_dealing(SITES, MEMBERS, SMALL, CONTEXT, ("s1", seeds["s1"]), revealed, dealing.digests, 0)


@pytest.mark.parametrize(
    "context", [b"job 1, round 2, attempt 4", b"", b"job 1, round 2, attempt 3 "], ids=["next", "none", "longer"]
)
def test_a_dealing_of_another_attempt_is_refused(context: bytes) -> None:
    """With the same seeds, another context gives other set seeds, and the members find that."""
    seeds = seeds_of()
    dealing = Dealing.of(SITES, MEMBERS, SMALL, context, seeds)
    with pytest.raises(MisdealtError, match="another seed than the one"):
        check_dealing(
            SITES, MEMBERS, SMALL, CONTEXT, ("s0", seeds["s0"]), dealing.chosen(0).revealed, dealing.digests, 0
        )


def test_a_site_takes_no_part_that_the_dealer_was_not_bound_to() -> None:
    """Another part, another site's part, another list, a list without a site or with other names."""
    seeds = seeds_of()
    dealing = Dealing.of(SITES, MEMBERS, SMALL, CONTEXT, seeds)
    chosen, digest = dealing.chosen(0), dealing.digests[0]
    for part in (chosen.parts["s1"], changed(chosen.parts["s3"], 0), b""):
        with pytest.raises(MisdealtError, match="dealt to this site"):
            check_part("s3", part, chosen.digests, digest)
    bent = changed(chosen.parts["s3"], 0)
    renamed = {site if site != "s3" else "s9": each for site, each in chosen.digests.items()}
    for digests in ({**chosen.digests, "s3": hashlib.sha256(bent).digest()}, {}):
        with pytest.raises(MisdealtError, match="its commitment"):
            check_part("s3", bent, digests, digest)
    with pytest.raises(MisdealtError, match="dealt to this site"):
        check_part("s4", chosen.parts["s3"], chosen.digests, digest)
    with pytest.raises(MisdealtError, match="do not match its commitment"):
        check_part("s9", chosen.parts["s3"], renamed, digest)


def test_what_does_not_show_every_other_dealing_is_refused() -> None:
    """A missing member, a missing or short seed, a missing digest, an index that is none; and seeds for a dealing."""
    seeds = seeds_of()
    dealing = Dealing.of(SITES, MEMBERS, SMALL, CONTEXT, seeds)
    revealed, digests = dealing.chosen(0).revealed, dealing.digests
    incomplete: list[Any] = [
        ({member: revealed[member] for member in MEMBERS[:2]}, digests, 0),
        ({**revealed, "s3": revealed["s0"]}, digests, 0),
        ({**revealed, "s1": revealed["s1"][:-1]}, digests, 0),
        ({**revealed, "s1": (b"", *revealed["s1"][1:])}, digests, 0),
        (revealed, digests[:-1], 0),
        (revealed, digests, SETS),
        (
            {member: [set_seed(seeds[member], CONTEXT, each) for each in range(SETS)] for member in MEMBERS},
            digests,
            SETS,
        ),
        (revealed, digests, -1),
    ]
    for each in incomplete:
        with pytest.raises(MisdealtError, match="does not show every dealing"):
            check_dealing(SITES, MEMBERS, SMALL, CONTEXT, ("s0", seeds["s0"]), *each)
    for given_seeds in ({"s0": seeds["s0"]}, {**seeds, "s1": b"short"}):
        with pytest.raises(SecureAggregationError, match="no seed came|must have 32 bytes"):
            Dealing.of(SITES, MEMBERS, SMALL, CONTEXT, given_seeds)


def test_what_is_revealed_holds_no_seed_of_the_chosen_dealing() -> None:
    """Neither do the parts: they are checked without any member's seed leaving the dealer."""
    seeds = seeds_of()
    dealing = Dealing.of(SITES, MEMBERS, SMALL, CONTEXT, seeds)
    for index in range(SETS):
        chosen = dealing.chosen(index)
        everything = b"".join([*chosen.parts.values(), *sum(chosen.revealed.values(), ())])
        for member in MEMBERS:
            assert set_seed(seeds[member], CONTEXT, index) not in everything and seeds[member] not in everything
            assert list(chosen.revealed[member]) == [
                set_seed(seeds[member], CONTEXT, other) for other in range(SETS) if other != index
            ]


@pytest.mark.parametrize("bend", BENDS)
def test_a_dealer_that_ends_attempts_until_the_coin_suits_it_is_caught(bend: str) -> None:
    """Of a dealing that was not used all is shown, so whichever of its sets was bent shows; an honest one passes."""
    seeds = seeds_of()
    dealer = liar(bend, 2, seeds, SMALL)
    for me in MEMBERS:
        check_unused(SITES, MEMBERS, SMALL, CONTEXT, (me, seeds[me]), seeds, dealer.honest.digests)
        with pytest.raises(MisdealtError, match="does not follow"):
            check_unused(SITES, MEMBERS, SMALL, CONTEXT, (me, seeds[me]), seeds, dealer.digests)


def test_the_seeds_of_an_unused_dealing_are_the_members_and_all_of_them() -> None:
    """A member finds a change of its own seed, a missing and an added member, a short seed, and another's change."""
    seeds = seeds_of()
    digests, me = Dealing.of(SITES, MEMBERS, SMALL, CONTEXT, seeds).digests, ("s0", seeds["s0"])
    wrong: list[dict[str, bytes]] = [
        {**seeds, "s0": new_seed()},
        {"s0": seeds["s0"], "s1": seeds["s1"]},
        {**seeds, "s3": new_seed()},
        {**seeds, "s1": b"short"},
    ]
    for shown in wrong:
        with pytest.raises(MisdealtError, match="does not show the seeds"):
            check_unused(SITES, MEMBERS, SMALL, CONTEXT, me, shown, digests)
    with pytest.raises(MisdealtError, match="does not follow"):
        check_unused(SITES, MEMBERS, SMALL, CONTEXT, me, {**seeds, "s1": new_seed()}, digests)
