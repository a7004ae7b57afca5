"""Means from masked uploads: what comes out, who may be missing, and what parties can tell of each other."""

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from privacy.aggregation import mean
from privacy.secagg import (
    Identity,
    InProcessRelay,
    RangeError,
    SecureAggregationError,
    SiteError,
    TensorLayout,
    connect,
)
from privacy.secagg.committee import Group
from privacy.secagg.layout import (
    NARROW_BITS,
    NARROW_WORD,
    WEIGHT_BITS,
    SumCode,
    exponent_for,
    mean_of_sum,
    summand,
    weight_of_sum,
)
from privacy.secagg.pairwise_masks import (
    Masks,
    Upload,
    answer,
    exchange,
    lasting_mask,
    new_secrets,
    opened,
    threshold,
    unhidden,
)
from privacy.secagg.ring import Ring, packed, unpacked

FEW = settings(max_examples=examples(8))
shapes = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1)
LENGTH = 20_000


def named(count: int) -> tuple[str, ...]:
    return tuple(f"s{number:02}" for number in range(count))


def attempt(sites: Sequence[str], members: Sequence[str], dead: Collection[str] = ()) -> dict[str, Masks | SiteError]:
    """One exchange of keys, over real links, all at once; sites in `dead` do not take part."""
    identities = {site: Identity(X25519PrivateKey.generate()) for site in sites}
    relay = InProcessRelay()

    def item(me: str) -> Masks | SiteError:
        group = Group(me, tuple(sites), tuple(members))
        peers = set(sites if group.is_member else members) - {me}
        pinned = {peer: identities[peer].fingerprint for peer in sorted(peers)}
        try:
            links = connect(identities[me], "attempt", me, pinned, relay.of(me), 0.5 if dead else 20)
            return exchange(group, links, new_secrets())[0]
        except SiteError as error:
            return error

    living = [site for site in sites if site not in dead]
    with ThreadPoolExecutor(len(living)) as pool:
        return dict(zip(living, pool.map(item, living), strict=True))


def uploads_of(masks: dict[str, Any], values: dict[str, Ring], hidden: bool = False) -> dict[str, Upload]:
    return {site: Upload(masks[site].apply(value, hidden), masks[site].public) for site, value in values.items()}


def answers_of(masks: dict[str, Any], members: Sequence[str], uploaded: Collection[str]) -> dict[str, dict[str, bytes]]:
    return {member: answer(masks[member].group, masks[member].shares, uploaded) for member in members}


def some(rng: np.random.Generator, length: int = LENGTH) -> Ring:
    """Ring elements that are far from uniform."""
    return rng.integers(0, 1000, length, dtype=np.uint64)


def chi_square(elements: Ring) -> float:
    """Over the values of bytes: mean 255, standard deviation 22.6 if they are uniform."""
    counts = np.bincount(np.frombuffer(elements.tobytes(), np.uint8), minlength=256)
    return float(((counts - counts.mean()) ** 2).sum() / counts.mean())


@FEW
@given(st.integers(3, 12), shapes, st.integers(0, 99), st.integers(-20, 20), st.data())
def test_the_mean_is_the_weighted_mean_of_those_that_uploaded(
    count: int, shapes: dict[str, Any], seed: int, log_scale: int, data: st.DataObject
) -> None:
    """All sites as members, or a committee of 3 to 5; as many die before their upload, and as many of the rest before
    they answer, as may: the mean over the others is the plain one in float64, to 2^-22."""
    sites, rng = named(count), np.random.default_rng(seed)
    size = data.draw(st.sampled_from([count] if count < 9 else [3, 4, 5]))
    members = tuple(sorted(data.draw(st.permutations(sites))[:size]))
    spare = size - threshold(size)
    silent = data.draw(st.sets(st.sampled_from(members), max_size=spare))
    other = sorted(set(sites) - set(members))
    silent |= data.draw(st.sets(st.sampled_from(other), max_size=len(other))) if other else set()
    mute = data.draw(st.sets(st.sampled_from(members), max_size=max(0, spare - len(silent & set(members)))))
    uploaded = [site for site in sites if site not in silent]
    tensors = {s: {n: np.float32(rng.normal(size=h) * 2.0**log_scale) for n, h in shapes.items()} for s in sites}
    weights = {site: int(rng.integers(1, 4000)) for site in sites}
    layout, masks = TensorLayout.of(shapes), attempt(sites, members)
    values = {site: summand(tensors[site], weights[site], layout, count) for site in uploaded}
    answers = answers_of(masks, [m for m in members if m not in silent | mute], uploaded)
    result = mean_of_sum(opened(sites, members, uploads_of(masks, values), answers), len(uploaded), layout)
    plain = mean({s: tensors[s] for s in uploaded}, {s: weights[s] for s in uploaded})
    for name, expected in plain.items():
        assert np.allclose(result[name], expected, rtol=1e-6, atol=2.0**-22)


@FEW
@given(st.integers(3, 12), st.integers(0, 99), st.floats(1, 1e9), st.booleans(), st.data())
def test_a_mean_of_differences_is_exact_for_any_weights(
    count: int, seed: int, heaviest: float, weighted: bool, data: st.DataObject
) -> None:
    """Under lasting masks, from values that all sites have: each site rounds to 2^-21 before the division by the sum of
    the scaled weights, whether these add up to 3 or 10^10; then the mean is the nearest float32."""
    sites, rng = named(count), np.random.default_rng(seed)
    layout, base = TensorLayout.of({"x": (LENGTH,)}), rng.normal(size=LENGTH)
    moved = {site: {"x": rng.normal(scale=0.01, size=LENGTH)} for site in sites}
    weights = {site: float(np.rint(rng.uniform(0.2, 1) * heaviest)) + 1 if weighted else 1.0 for site in sites}
    code = SumCode(NARROW_BITS, NARROW_WORD, exponent_for(sum(weights.values()), 0 if weighted else WEIGHT_BITS))
    keys = {frozenset(pair): os.urandom(32) for pair in combinations(sites, 2)}
    own = {site: {peer: keys[frozenset((site, peer))] for peer in sites if peer != site} for site in sites}
    label = data.draw(st.binary(min_size=1, max_size=40))
    masks = {site: lasting_mask(site, sites, own[site], label, LENGTH + 2) for site in sites}
    sent = {site: summand(moved[site], weights[site], layout, count, code) + masks[site] for site in sites}
    total: Ring = np.sum([unpacked(packed(part, NARROW_WORD)) for part in sent.values()], axis=0, dtype=np.uint64)
    result = mean_of_sum(total, count, layout, code=code, beside=base)["x"]
    expected = base + sum(weights[site] * moved[site]["x"] for site in sites) / sum(weights.values())
    rounding = count * 2.0**-21 / (sum(weights.values()) * code.scale)
    assert (np.abs(result - expected) < 1.1 * rounding + 2.0**-24 * np.abs(expected) + 2.0**-40).all()
    assert weight_of_sum(total, code) == pytest.approx(sum(weights.values()), rel=1e-3)
    other = lasting_mask(sites[0], sites, own[sites[0]], label + b"!", LENGTH + 2)
    assert not np.array_equal(other, masks[sites[0]])
    with pytest.raises(SecureAggregationError):
        mean_of_sum(total - sent[sites[0]], count - 1, layout, code=code)


@pytest.mark.parametrize("hidden", [1, 2])
def test_lasting_masks_of_all_sites_but_one_are_uniform(hidden: int) -> None:
    """Also in their lowest bytes, which leave; with the masks of every site they vanish."""
    sites = named(4)
    keys = {frozenset(pair): os.urandom(32) for pair in combinations(sites, 2)}
    masks = [
        lasting_mask(site, sites, {p: keys[frozenset((site, p))] for p in sites if p != site}, b"1", 20_000)
        for site in sites
    ]
    assert not np.sum(masks, axis=0, dtype=np.uint64).any()
    assert chi_square(np.sum(masks[hidden:], axis=0, dtype=np.uint64)) < 400
    assert chi_square(packed(np.sum(masks[hidden:], axis=0, dtype=np.uint64), 5)) < 400


@pytest.mark.parametrize(("count", "size"), [(3, 3), (9, 3)])
def test_a_hidden_sum_opens_to_the_sites_only(count: int, size: int) -> None:
    """What the server opens is uniform to it; every site of the group takes the rest of the masks off."""
    sites, rng = named(count), np.random.default_rng(0)
    members = sites[1 : size + 1] if size < count else sites
    masks = attempt(sites, members)
    values = {site: some(rng) for site in sites}
    total = opened(sites, members, uploads_of(masks, values, hidden=True), answers_of(masks, members, sites))
    assert chi_square(total) < 400
    for site in sites:
        clear = unhidden(total, masks[site].group_key, sites)  # type: ignore[union-attr]
        assert np.array_equal(clear, np.sum(list(values.values()), axis=0, dtype=np.uint64))


def test_a_site_that_dies_before_the_exchange_is_named_by_those_that_wait_for_it() -> None:
    """A dead member by all, another dead site by the members; nobody else is accused."""
    sites, members = named(6), named(3)
    faults = attempt(sites, members, dead={"s01"})
    assert {fault.site for fault in faults.values() if isinstance(fault, SiteError)} == {"s01"}
    assert all(isinstance(fault, SiteError) for fault in faults.values())
    faults = attempt(sites, members, dead={"s05"})
    assert {site for site, fault in faults.items() if isinstance(fault, SiteError)} >= {"s00"}
    assert "s05" in {fault.site for fault in faults.values() if isinstance(fault, SiteError)}


def test_too_few_answers_open_nothing() -> None:
    """One below the threshold."""
    sites, rng = named(5), np.random.default_rng(1)
    masks = attempt(sites, sites)
    uploads = uploads_of(masks, {site: some(rng, 5) for site in sites})
    with pytest.raises(SecureAggregationError, match="3 members answered where 4 are needed"):
        opened(sites, sites, uploads, answers_of(masks, sites[:3], sites))


@pytest.mark.parametrize(
    ("uploaded", "least", "sentence"),
    [
        (("s00", "s01"), 3, "fewer than 3 sites"),
        (("s00", "s01", "s02", "s03"), 5, "fewer than 5 sites"),
        (("s00", "s01", "elsewhere"), 3, "fewer than 3 sites"),
        (("s05", "s06", "s07", "s08"), 3, "fewer than 3 of the members"),
        (("s00", "s01", "s07", "s08"), 3, "fewer than 3 of the members"),
    ],
)
def test_members_refuse_to_open_what_would_reveal_a_site(uploaded: tuple[str, ...], least: int, sentence: str) -> None:
    """Too few sites; or too few members among them, for only streams in common with a member hide a site."""
    masks = attempt(named(9), named(3))["s00"]
    assert isinstance(masks, Masks)
    with pytest.raises(SecureAggregationError, match=sentence):
        answer(masks.group, masks.shares, uploaded, least)


def test_uploads_are_uniform_and_two_attempts_have_nothing_in_common() -> None:
    """Of the same values, in another attempt: other bytes, and their difference is as uniform."""
    sites, rng = named(3), np.random.default_rng(2)
    values = {site: some(rng) for site in sites}
    item, other = (uploads_of(attempt(sites, sites), values) for _ in range(2))
    for site in sites:
        assert chi_square(values[site]) > 10_000
        assert chi_square(item[site].values) < 400 and chi_square(item[site].values - other[site].values) < 400
        assert item[site].public != other[site].public


def test_what_colluding_members_and_the_server_hold_fits_any_inputs_of_the_others_with_the_same_sum() -> None:
    """Of 5 members, 3 tell the server all their streams, and the sum is opened: what is left of the uploads of the two
    others is uniform each, and hides every input behind the one stream that these two have in common."""
    sites, rng = named(5), np.random.default_rng(3)
    masks: Any = attempt(sites, sites)
    values = {site: some(rng) for site in sites}
    uploads, honest = uploads_of(masks, values), ("s01", "s03")
    view = {}
    for site in honest:
        # All that the members on the server's side know: their streams in common with the site, and after the opening
        # the site's own stream.
        known = replace(masks[site], _common={p: k for p, k in masks[site]._common.items() if p not in honest})
        view[site] = uploads[site].values - known.apply(np.zeros(LENGTH, np.uint64), hide=False)
        assert chi_square(view[site]) < 400
    assert np.array_equal(view["s01"] + view["s03"], values["s01"] + values["s03"])
    pretended = some(rng)
    stream = view["s01"] - pretended
    assert np.array_equal(view["s03"] + stream, values["s01"] + values["s03"] - pretended)
    assert chi_square(stream) < 400


def test_a_server_that_asks_for_two_sums_gets_one() -> None:
    """Members answer once: the second sum lacks answers, with fewer than 2t - k members on the server's side."""
    sites, rng = named(5), np.random.default_rng(4)
    masks, values = attempt(sites, sites), {site: some(rng, 5) for site in sites}
    uploads = uploads_of(masks, values)
    both, liars = {}, sites[: 2 * threshold(5) - 5 - 1]
    for uploaded, honest in ((sites, sites[2:4]), (sites[:4], sites[4:])):
        answers = answers_of(masks, [*liars, *honest], uploaded)
        try:
            both[uploaded] = opened(sites, sites, {site: uploads[site] for site in uploaded}, answers)
        except SecureAggregationError:
            both[uploaded] = None
    assert both[sites] is not None and both[sites[:4]] is None


def test_a_value_out_of_range_and_a_sum_that_is_none_are_refused() -> None:
    """Before anything is shared; and where the masks do not cancel, or nobody has rows."""
    layout = TensorLayout.of({"x": (1,)})
    for value, weight in ((np.nan, 1), (2.0**38, 1), (2.0**20, 2**20), (1.0, -1), (1.0, np.nan)):
        with pytest.raises(RangeError, match="nothing was shared"):
            summand({"x": np.array([value])}, weight, layout, 3)
    total = sum(summand({"x": np.ones(1)}, 0, layout, 3) for _ in range(3))
    with pytest.raises(SecureAggregationError, match="no mean"):
        mean_of_sum(total, 3, layout)
    with pytest.raises(SecureAggregationError, match="does not count each site once"):
        mean_of_sum(total, 4, layout)
