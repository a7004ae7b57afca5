"""Parties in threads, over an in-process relay whose traffic can be read and changed."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from audits import Tensors
from privacy.secagg import Group, Identity, InProcessRelay, Layout, Link, Relay, connect
from privacy.secagg.crypten_runtime import Party
from privacy.secagg.protocol import deal_mix, join, secure_mix


@dataclass
class Tap:
    """A link that keeps what was received, decrypted."""

    link: Link
    received: list[bytes] = field(default_factory=list)

    @property
    def session(self) -> Any:
        return self.link.session

    def send(self, message: bytes) -> None:
        self.link.send(message)

    def receive(self, nbytes: int) -> bytes:
        self.received.append(self.link.receive(nbytes))
        return self.received[-1]


@dataclass
class Recorder:
    """A relay that keeps what it was given to send."""

    relay: Relay
    sent: list[bytes] = field(default_factory=list)

    def send(self, to: str, message: bytes) -> None:
        self.sent.append(message)
        self.relay.send(to, message)

    def receive(self, sender: str, timeout: float) -> bytes:
        return self.relay.receive(sender, timeout)


@dataclass
class Run:
    """One party's result, itself, the taps on its links by peer, and what the relay carried for it."""

    result: Any
    party: Party
    taps: dict[str, Tap]
    relayed: list[bytes]


Everyone = Callable[..., list[Run]]


@dataclass
class Site:
    """One site's mixture, what the dealer sent to it, the taps on its links by peer, and what the relay carried."""

    mixture: Tensors
    dealt: bytes
    taps: dict[str, Tap]
    relayed: list[bytes]


Together = Callable[..., dict[str, Site]]


@pytest.fixture
def everyone() -> Everyone:
    """Connects parties "s0", "s1", ... and runs `work(party)` in each at once; runs in order of rank."""

    def run(size: int, work: Callable[[Party], Any], dealt: Sequence[bytes] | None = None) -> list[Run]:
        names = [f"s{rank}" for rank in range(size)]
        identities = {name: Identity(X25519PrivateKey.generate()) for name in names}
        relay = InProcessRelay()

        def one(name: str) -> Run:
            pinned = {peer: identities[peer].fingerprint for peer in names if peer != name}
            end = Recorder(relay.of(name))
            links = connect(identities[name], "job 1", name, pinned, end, 20)
            taps = {peer: Tap(link) for peer, link in links.items()}
            party = join(name, taps, None if dealt is None else dealt[names.index(name)])
            return Run(work(party), party, taps, end.sent)

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(one, names))

    return run


def names(count: int) -> tuple[str, ...]:
    """In order."""
    return tuple(f"s{rank:03}" for rank in range(count))


@pytest.fixture
def together() -> Together:
    """Sites "s000", "s001", ... mix what they hold; the first `members` of them compute, all unless it is given."""

    def run(
        tensors: Sequence[Tensors], accuracy: Sequence[float], layout: Layout, members: int | None = None
    ) -> dict[str, Site]:
        sites = names(len(tensors))
        committee = sites[:members]
        dealt = deal_mix(sites, committee, layout)
        uploads = dict(zip(sites, zip(tensors, accuracy, strict=True), strict=True))
        return mixed(uploads, committee, dealt, layout)

    return run


def mixed(
    uploads: Mapping[str, tuple[Tensors, float]], members: tuple[str, ...], dealt: Mapping[str, bytes], layout: Layout
) -> dict[str, Site]:
    """All sites at once, each with the links that it needs."""
    sites = tuple(uploads)
    identities = {site: Identity(X25519PrivateKey.generate()) for site in sites}
    relay = InProcessRelay()

    def one(me: str) -> Site:
        peers = [site for site in (sites if me in members else members) if site != me]
        end = Recorder(relay.of(me))
        pinned = {peer: identities[peer].fingerprint for peer in peers}
        taps = {peer: Tap(link) for peer, link in connect(identities[me], "job 1", me, pinned, end, 60).items()}
        mixture = secure_mix(Group(me, sites, members), taps, dealt[me], *uploads[me], layout)
        return Site(mixture, dealt[me], taps, end.sent)

    with ThreadPoolExecutor(len(sites)) as pool:
        return dict(zip(sites, pool.map(one, sites), strict=True))
