"""Sums by CrypTen among a committee: what comes out, what each party sees, and when nobody opens anything."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from crypten.encoder import FixedPointEncoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from privacy.aggregation import mean
from privacy.secagg import Group, SecureAggregationError, SiteError, TensorLayout
from privacy.secagg.layout import SUM_BITS, mean_of_sum, summand
from privacy.secagg.protocol import secure_sum, split
from privacy.secagg.ring import FixedPoint, Ring, Stream

FEW = settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
Linked = Callable[..., dict[str, Any]]


def names(count: int) -> tuple[str, ...]:
    """In order."""
    return tuple(f"s{rank:03}" for rank in range(count))


FIVE, LENGTH = names(5), 40_000


def ignored(group_key: bytes) -> None:
    """Nothing to save."""


def summed(linked: Linked, members: int, values: dict[str, Ring]) -> dict[str, tuple[Ring | None, bytes]]:
    """What each site has of the sum; the first ones compute."""
    sites = tuple(values)
    return linked(sites, sites[:members], lambda group, links: secure_sum(group, links, values[group.me], ignored))


@FEW
@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1),
    st.integers(3, 6),
    st.integers(0, 3),
    st.floats(1e-6, 1e4),
    st.randoms(use_true_random=False),
)
def test_the_mean_is_the_clear_one_to_the_stated_precision(
    linked: Linked, shapes: dict[str, tuple[int, ...]], count: int, outside: int, scale: float, random: Any
) -> None:
    """Every member has the sum of all summands, bit for bit the one under masks; other sites have nothing of it. It is
    exact to the number of sites times 2^-25, before it is divided by the sum of the weights."""
    rng, sites = np.random.default_rng(random.getrandbits(32)), names(count)
    members, layout = max(3, count - outside), TensorLayout.of(shapes)
    held = {site: {n: np.float32(rng.normal(scale=scale, size=shape)) for n, shape in shapes.items()} for site in sites}
    weights = {site: float(rng.integers(1, 5000)) for site in sites}
    values = {site: summand(held[site], weights[site], layout, count) for site in sites}
    results = summed(linked, members, values)
    assert len({key for _, key in results.values()}) == 1
    assert [site for site, (total, _) in results.items() if total is None] == list(sites[members:])
    totals = [total for total, _ in results.values() if total is not None]
    assert all(np.array_equal(total, sum(values.values())) for total in totals)
    opened, plain = mean_of_sum(totals[0], count, layout), mean(held, weights)
    bound = count * 2.0 ** -(SUM_BITS + 1) / sum(weights.values())
    for name, array in plain.items():
        rounding = 4 * np.finfo(np.float32).eps * np.abs(array).max(initial=0)
        assert np.abs(opened[name].astype(np.float64) - array).max(initial=0) <= bound + rounding


def ring_of(message: bytes, length: int) -> Ring:
    """A share, of a message that has nothing else."""
    return np.frombuffer(message, "<u8") if len(message) == 8 * length else Stream(message).ring((length,))


@pytest.mark.parametrize("owner", FIVE)
def test_all_shares_but_one_are_uniform_whatever_is_shared(owner: str) -> None:
    """Of the same vector of small numbers, in all bytes of each share and of the sum of any members but one: chi-square
    with 255 degrees of freedom, 7 standard deviations off at most. All together they are the vector."""
    values = np.arange(LENGTH, dtype=np.uint64) % 7
    group = Group(owner, FIVE, FIVE[:4])
    shares = {member: ring_of(message, LENGTH) for member, message in split(values, group).items()}
    assert np.array_equal(sum(shares.values()), values)
    views = [*shares.values(), *(sum(shares.values()) - share for share in shares.values())]
    for share in (each - offset for each in views for offset in (np.uint64(0), values)):
        counts = np.bincount(share.view(np.uint8), minlength=256)
        expected = 8 * LENGTH / 256
        assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 7 * np.sqrt(2 * 255)


def test_the_same_values_are_split_anew_each_time() -> None:
    """No share of one attempt is one of another, so that two attempts at one input show nothing together."""
    group, values = Group("s000", FIVE, FIVE[:3]), np.arange(9, dtype=np.uint64)
    ones, others = split(values, group), split(values, group)
    assert not set(ones.values()) & set(others.values())


def test_the_rest_of_a_vector_goes_to_another_member_from_site_to_site() -> None:
    """So no member receives the bulk of what all owners send."""
    members, values = FIVE[:3], np.arange(9, dtype=np.uint64)
    bulk = [[m for m, part in split(values, Group(o, FIVE, members)).items() if len(part) == 72] for o in FIVE]
    assert bulk == [["s000"], ["s001"], ["s002"], ["s000"], ["s001"]]


def test_a_member_that_sees_everything_addressed_to_it_sees_no_input(linked: Linked) -> None:
    """Neither in what owners send nor in what members open is there any owner's vector, or a sum of fewer than all."""
    rng = np.random.default_rng(5)
    values = {site: rng.integers(0, 1000, 64, dtype=np.uint64) for site in FIVE}

    def received_by(group: Group, taps: dict[str, Any]) -> list[Ring]:
        secure_sum(group, taps, values[group.me], ignored)
        messages = [message for tap in taps.values() for message in tap.received]
        return [ring_of(message[-512:], 64) for message in messages if len(message) >= 512]

    for received in linked(FIVE, FIVE[:3], received_by).values():
        for vector in received:
            assert (vector > np.uint64(2**40)).sum() > 56


class Silent(Exception):
    """A site of a test stops."""


def opening(group: Group, taps: dict[str, Any], before: Callable[[bytes], object] = ignored) -> object:
    """What a site has of a sum, for which it waits for a second, or the site that its error names."""
    for tap in taps.values():
        object.__setattr__(tap.link, "timeout", 1.0)
    try:
        return secure_sum(group, taps, np.arange(5, dtype=np.uint64), before)
    except SiteError as error:
        return error.site


@pytest.mark.parametrize("dies", ["s001", "s004"])
def test_nobody_opens_unless_every_member_has_its_shares(linked: Linked, dies: str) -> None:
    """A site, member or not, that sends one share fewer: no member sends its part of the opening, also those that have
    all their shares, and each of them says which site is missing or waits for it."""
    opened: list[str] = []

    def work(group: Group, taps: dict[str, Any]) -> object:
        if group.me == dies:
            parts = split(np.arange(5, dtype=np.uint64), group)
            for peer in FIVE[:2]:
                if peer != dies:
                    taps[peer].send(parts[peer])
            return None
        return opening(group, taps, lambda key: opened.append(group.me))

    results = linked(FIVE, FIVE[:3], work)
    assert not opened
    assert dies in {results[member] for member in FIVE[:3] if member != dies}


def test_a_member_that_cannot_note_its_opening_does_not_open(linked: Linked) -> None:
    """What has to be saved first is saved first: else the same member might open a second sum after a restart."""

    def full(group_key: bytes) -> None:
        raise Silent

    def work(group: Group, taps: dict[str, Any]) -> object:
        try:
            return opening(group, taps, full if group.me == "s001" else ignored)
        except Silent:
            return "not opened"

    assert linked(FIVE[:3], FIVE[:3], work) == {"s000": "s001", "s001": "not opened", "s002": "s001"}


def test_an_altered_share_is_refused_and_names_its_site(linked: Linked) -> None:
    """One bit of one share on the way: the receiver opens nothing."""

    def work(group: Group, taps: dict[str, Any]) -> object:
        if group.me == "s002":
            relay, honest = taps["s000"].link.relay, taps["s000"].link.relay.send
            relay.send = lambda to, message: honest(to, message[:-1] + bytes([message[-1] ^ 1]))
        return opening(group, taps)

    assert linked(FIVE[:3], FIVE[:3], work)["s000"] == "s002"


def test_two_members_are_no_committee(linked: Linked) -> None:
    """Each would know the other's share."""
    with pytest.raises(SecureAggregationError, match="fewer than 3"):
        linked(FIVE, FIVE[:2], lambda group, links: None)


def test_crypten_s_own_encoder_is_not_fit_for_means() -> None:
    """Why ours makes the integers: CrypTen's cuts off towards zero, and takes what is not finite or too large. Where
    nothing has to be rounded, both make the same."""
    theirs, ours = FixedPointEncoder(SUM_BITS), FixedPoint(SUM_BITS)
    step = 2.0**-SUM_BITS
    whole = np.array([-3.5, 0.25, 1000.0, -7 * step])
    assert np.array_equal(theirs.encode(torch.from_numpy(whole)).numpy().view(np.uint64), ours.encode(whole))
    close = np.array([1.9, -1.9]) * step
    assert theirs.encode(torch.from_numpy(close)).tolist() == [1, -1]
    assert ours.encode(close).view(np.int64).tolist() == [2, -2]
    for value in (np.nan, np.inf, 2.0**40):
        assert theirs.encode(torch.tensor([value], dtype=torch.float64)).dtype == torch.int64
        with pytest.raises(SecureAggregationError):
            ours.encode(np.array([value]))
