"""Parties in threads, over an in-process relay whose traffic can be read and changed."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from privacy.secagg import Identity, InProcessRelay, Link, Relay, connect
from privacy.secagg.crypten_runtime import Party
from privacy.secagg.protocol import join


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
