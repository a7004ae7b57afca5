"""Parties in threads, over an in-process relay whose traffic can be read and changed."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from audits import Tensors
from privacy.secagg import Group, Identity, InProcessRelay, Relay, SecureLink, TensorLayout, connect
from privacy.secagg.crypten_runtime import Party
from privacy.secagg.cut_and_choose import new_seed
from privacy.secagg.protocol import deal, deal_mix, join, secure_mix


@dataclass
class Tap:
    """A link that keeps what was received, decrypted."""

    link: SecureLink
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
    """One site's mixture, what the dealer sent to it, its seed as a member, and the taps on its links by peer."""

    mixture: Tensors
    dealt: bytes
    seed: bytes
    taps: dict[str, Tap]

    @property
    def relayed(self) -> list[bytes]:
        """What the relay carried for it."""
        relay: Any = next(iter(self.taps.values())).link.relay
        return relay.sent


Together = Callable[..., dict[str, Site]]
Linked = Callable[..., dict[str, Any]]


@pytest.fixture
def everyone() -> Everyone:
    """Connects parties "s0", "s1", ... and runs `work(party)` in each at once; runs in order of rank.

    Tuples are dealt for `protocol`, if it is given.
    """

    def run(size: int, work: Callable[[Party], Any], protocol: Callable[[Party], Any] | None = None) -> list[Run]:
        names, seeds = [f"s{rank}" for rank in range(size)], [new_seed() for _ in range(size)]
        corrections = deal(seeds, protocol).last if protocol and size > 2 else b""
        identities = {name: Identity(X25519PrivateKey.generate()) for name in names}
        relay = InProcessRelay()

        def item(name: str) -> Run:
            pinned = {peer: identities[peer].fingerprint for peer in names if peer != name}
            end = Recorder(relay.of(name))
            links = connect(identities[name], "job 1", name, pinned, end, 20)
            taps = {peer: Tap(link) for peer, link in links.items()}
            last = name == names[-1]
            party = join(name, taps, seeds[names.index(name)], corrections if last else b"")
            return Run(work(party), party, taps, end.sent)

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(item, names))

    return run


def names(count: int) -> tuple[str, ...]:
    """In order."""
    return tuple(f"s{rank:03}" for rank in range(count))


@pytest.fixture
def linked() -> Linked:
    """Connects sites, each to all that it needs, and runs `work(group, taps)` in each at once."""
    return in_group


@pytest.fixture
def together() -> Together:
    """Sites "s000", "s001", ... mix what they hold; the first `members` of them compute, all unless it is given."""

    def run(
        tensors: Sequence[Tensors],
        accuracy: Sequence[float],
        layout: TensorLayout,
        members: int | None = None,
        most_share: float = 1.0,
    ) -> dict[str, Site]:
        sites = names(len(tensors))
        seeds = {member: new_seed() for member in sites[:members]}
        dealt = deal_mix(sites, sites[:members], layout, seeds)

        def work(group: Group, taps: dict[str, Tap]) -> Site:
            part, seed, rank = dealt[group.me], seeds.get(group.me, b""), group.rank
            mixture = secure_mix(group, taps, part, tensors[rank], accuracy[rank], layout, seed, most_share)
            return Site(mixture, part, seed, taps)

        return in_group(sites, sites[:members], work)

    return run


def in_group(
    sites: tuple[str, ...], members: tuple[str, ...], work: Callable[[Group, dict[str, Tap]], Any]
) -> dict[str, Any]:
    identities = {site: Identity(X25519PrivateKey.generate()) for site in sites}
    relay = InProcessRelay()

    def item(me: str) -> Any:
        peers = [site for site in (sites if me in members else members) if site != me]
        pinned = {peer: identities[peer].fingerprint for peer in peers}
        end = Recorder(relay.of(me))
        links = connect(identities[me], "job 1", me, pinned, end, 60)
        return work(Group(me, sites, members), {peer: Tap(link) for peer, link in links.items()})

    with ThreadPoolExecutor(len(sites)) as pool:
        return dict(zip(sites, pool.map(item, sites), strict=True))
