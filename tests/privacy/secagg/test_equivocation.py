"""A server that tells sites different things is found before anything is shared or opened; no site is blamed."""

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from privacy.secagg import (
    EquivocationError,
    Group,
    Identity,
    InProcessRelay,
    Relay,
    SecureAggregationError,
    SiteError,
    connect,
)
from privacy.secagg.pairwise_masks import agree, exchange, new_secrets, threshold

SITES = ("s0", "s1", "s2", "s3", "s4")
DEADLINE = 60
"""Seconds within which a test's sites have to end; far more than they need."""
FOREVER = 600.0
"""What a site would wait for a silent one: a test that relied on it would miss its deadline."""

Change = Callable[[str, str, int, bytes], list[bytes]]


@dataclass
class LyingRelay:
    """What the server makes of messages: `change(sender, to, number, message)` is what arrives."""

    relay: InProcessRelay
    change: Change
    sent: list[tuple[str, str]] = field(default_factory=list)

    def of(self, me: str) -> Relay:
        return _End(self, self.relay.of(me), me)


@dataclass
class _End:
    server: LyingRelay
    end: Relay
    me: str

    def send(self, to: str, message: bytes) -> None:
        number = self.server.sent.count((self.me, to))
        self.server.sent.append((self.me, to))
        for each in self.server.change(self.me, to, number, message):
            self.end.send(to, each)

    def receive(self, sender: str, timeout: float) -> bytes:
        return self.end.receive(sender, timeout)


def honest(sender: str, to: str, number: int, message: bytes) -> list[bytes]:
    return [message]


def at_once(work: Callable[[str], Any], sites: tuple[str, ...] = SITES) -> dict[str, Any]:
    """What each site returns, or the error that it raises."""

    def item(site: str) -> Any:
        try:
            return work(site)
        except SecureAggregationError as error:
            return error

    pool = ThreadPoolExecutor(len(sites))
    try:
        futures = {site: pool.submit(item, site) for site in sites}
        return {site: future.result(DEADLINE) for site, future in futures.items()}
    finally:
        pool.shutdown(wait=False)


def connected(told: Mapping[str, bytes], change: Change = honest, timeout: float = 20) -> tuple[dict[str, Any], Any]:
    """All sites connect, each with what the server told it."""
    identities = {site: Identity(X25519PrivateKey.generate()) for site in SITES}
    server = LyingRelay(InProcessRelay(), change)

    def item(me: str) -> Any:
        pinned = {site: identities[site].fingerprint for site in SITES if site != me}
        return connect(identities[me], "attempt", me, pinned, server.of(me), timeout, told[me])

    return at_once(item), server


def test_sites_that_were_told_the_same_connect() -> None:
    """Any bytes, equal at all sites."""
    results, _ = connected(dict.fromkeys(SITES, b"members, round, digests"))
    assert all(set(links) == set(SITES) - {site} for site, links in results.items())


def test_a_site_that_was_told_something_else_stops_all_before_anything_is_shared() -> None:
    """Every site finds it, blames no site, and has sent its key and its confirmation, no more."""
    results, server = connected({**dict.fromkeys(SITES, b"one"), "s2": b"other"})
    assert all(isinstance(result, EquivocationError) for result in results.values())
    assert not any(isinstance(result, SiteError) for result in results.values())
    assert "'s2' different things" in str(results["s0"]) and "'s0' different things" in str(results["s2"])
    assert all(server.sent.count((me, peer)) == 2 for me in SITES for peer in SITES if me != peer)


def test_two_halves_that_were_told_different_things_all_find_it() -> None:
    """Each site has a peer of the other half."""
    results, _ = connected({site: b"left" if site < "s2" else b"right" for site in SITES})
    assert all(isinstance(result, EquivocationError) for result in results.values())


def test_the_server_cannot_make_a_confirmation_pass_or_accuse() -> None:
    """Altered, or another site's: a message that is not genuine is a `SiteError`, never an equivocation."""
    kept: dict[str, bytes] = {}

    def altered(sender: str, to: str, number: int, message: bytes) -> list[bytes]:
        kept.setdefault(to, message)
        return [message[:-1] + bytes([message[-1] ^ 1])] if number == 1 and sender == "s1" else [message]

    results, _ = connected(dict.fromkeys(SITES, b"one"), altered, timeout=2)
    for site in set(SITES) - {"s1"}:
        assert isinstance(results[site], SiteError) and "altered" in str(results[site])


def keys_of(members: tuple[str, ...] = SITES) -> dict[str, dict[str, bytes]]:
    """For each member, what it has in common with each other."""

    def key(item: str, other: str) -> bytes:
        return hashlib.sha256(" ".join(sorted((item, other))).encode()).digest()

    return {me: {peer: key(me, peer) for peer in members if peer != me} for me in members}


def agreed(
    told: Mapping[str, bytes], change: Change = honest, timeout: float = FOREVER, enough: int = threshold(len(SITES))
) -> dict[str, Any]:
    """What comes of `agree` at those that were told something; the other members are dead."""
    server, keys = LyingRelay(InProcessRelay(), change), keys_of()

    def item(me: str) -> str:
        agree(me, keys[me], server.of(me), told[me], timeout, enough)
        return "agreed"

    return at_once(item, tuple(told))


def test_members_that_were_told_the_same_agree() -> None:
    """All of them; and so do as many as are enough, without waiting for the first one, which is dead."""
    assert set(agreed(dict.fromkeys(SITES, b"uploads")).values()) == {"agreed"}
    assert set(agreed(dict.fromkeys(SITES[1:], b"uploads")).values()) == {"agreed"}


def test_too_few_members_open_nothing() -> None:
    """Three of five, where four must answer."""
    results = agreed(dict.fromkeys(SITES[:3], b"uploads"), timeout=1)
    for result in results.values():
        assert "only 3 of" in str(result) and not isinstance(result, EquivocationError | SiteError)


def test_a_member_that_was_told_of_other_drop_outs_stops_the_opening() -> None:
    """With all members needed, every one finds it; the two halves of a split never both open."""
    results = agreed({**dict.fromkeys(SITES, b"one"), "s3": b"other"}, timeout=5, enough=5)
    assert all(isinstance(result, EquivocationError) for result in results.values())
    results = agreed({site: b"left" if site < "s2" else b"right" for site in SITES}, timeout=5)
    assert "agreed" not in results.values()
    assert all(isinstance(result, SecureAggregationError) for result in results.values())


@pytest.mark.parametrize("kind", ["altered", "made up", "another's", "one's own"])
def test_the_server_cannot_agree_for_a_member_or_accuse_itself_of_lying_to_it(kind: str) -> None:
    """What is not genuine counts as silence: too few members confirm, and nobody finds an equivocation."""
    ends: dict[tuple[str, str], bytes] = {}
    made_up = bytes(32) + hashlib.sha256(b"uploads").digest()

    def change(sender: str, to: str, number: int, message: bytes) -> list[bytes]:
        ends[sender, to] = message
        return {
            "altered": [message[:-1] + bytes([message[-1] ^ 1]), b""],
            "made up": [made_up],
            "another's": [ends.get(("s0", "s2"), made_up)] if (sender, to) != ("s0", "s2") else [],
            "one's own": [ends.get((to, sender), made_up)],
        }[kind]

    for result in agreed(dict.fromkeys(SITES, b"uploads"), change, timeout=1).values():
        assert "only 1 of" in str(result) and not isinstance(result, EquivocationError)


def test_members_keep_a_key_in_common_with_each_other_member_and_other_sites_none() -> None:
    """From the exchange of masks: equal at both ends, another for each pair and each attempt, none at the server."""
    identities = {site: Identity(X25519PrivateKey.generate()) for site in SITES}
    members, seen = SITES[:3], set()
    for attempt in ("attempt 1", "attempt 2"):
        relay = InProcessRelay()

        def item(me: str, attempt: str = attempt, relay: InProcessRelay = relay) -> Mapping[str, bytes]:
            group = Group(me, SITES, members)
            peers = SITES if group.is_member else members
            pinned = {peer: identities[peer].fingerprint for peer in peers if peer != me}
            links = connect(identities[me], attempt, me, pinned, relay.of(me), 20)
            return exchange(group, links, new_secrets())[0].opening_keys

        keys = at_once(item)
        assert all(keys[site] == {} for site in SITES[3:])
        assert all(set(keys[me]) == set(members) - {me} for me in members)
        pairs = {(a, b): keys[a][b] for a in members for b in members if a < b}
        assert all(keys[b][a] == key for (a, b), key in pairs.items())
        assert len(set(pairs.values())) == 3 and not seen & set(pairs.values())
        seen |= set(pairs.values())
