"""Messages between sites, encrypted end to end over a relay that sees every byte and may change any, and the words by
which people compare a key's fingerprint by phone.

Each site holds a long-term X25519 key; its peers pin the fingerprint. For each job two sites mix their long-term and
fresh ephemeral keys as the Noise pattern KK does (tokens ss, ee, es, se). So recorded traffic stays confidential after
a long-term key is stolen, and a thief of a site's key cannot impersonate another site towards it.

Source: T. Perrin, "The Noise Protocol Framework", revision 34, section 7.5 (KK); RFC 7748, RFC 5869, RFC 8439. The key
schedule is one HKDF over a transcript hash, not Noise's chain: both messages are sent at once, and carry no payload.

Eight words of 256 hold 64 bits. They come from a slow hash, so that somebody who wants a key with the words of another
has to compute it 2^63 times on average, each time for a tenth of a second and 32 MiB.
"""

import hashlib
import queue
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import scrypt
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from audits import SecretError, make_secret, read_secret
from privacy.secagg.errors import EquivocationError, SecureAggregationError, SiteError

KEY_BYTES = 32
_PROTOCOL = b"medfedvqa site channel 1"
_CONFIRMATION = b"confirmed"


class Relay(Protocol):
    """One site's untrusted transport, for one job and attempt: it may read, change, drop and reorder messages."""

    def send(self, to: str, message: bytes) -> None:
        """Hands a message over; may return before it is delivered, and retries while the peer is not up."""

    def receive(self, sender: str, timeout: float) -> bytes:
        """The sender's next message. Raises `TimeoutError` after `timeout` seconds."""


class InProcessRelay:
    """All sites in one process, for tests and in-process federations: a queue for each direction of each pair."""

    def __init__(self) -> None:
        self._queues: defaultdict[tuple[str, str], queue.SimpleQueue[bytes]] = defaultdict(queue.SimpleQueue)

    def of(self, site: str) -> Relay:
        """The relay as one site sees it."""
        return _InProcessEnd(self._queues, site)


@dataclass(frozen=True)
class _InProcessEnd:
    queues: defaultdict[tuple[str, str], "queue.SimpleQueue[bytes]"]
    site: str

    def send(self, to: str, message: bytes) -> None:
        self.queues[self.site, to].put(message)

    def receive(self, sender: str, timeout: float) -> bytes:
        try:
            return self.queues[sender, self.site].get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None


class Identity:
    """A site's long-term key, made by the site and kept in a file that only its owner can read."""

    def __init__(self, private: X25519PrivateKey) -> None:
        self.private = private
        self.public = private.public_key().public_bytes_raw()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key, 64 hex digits, which peers pin."""
        return hashlib.sha256(self.public).hexdigest()

    @classmethod
    def create(cls, path: Path) -> "Identity":
        """Makes a key and writes it with mode 0600. Raises `SecureAggregationError` if the file exists."""
        if not make_secret(path):
            raise SecureAggregationError("the identity key exists already: load it, or remove it yourself")
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> "Identity":
        """Reads a key. Raises `SecureAggregationError` if others may read the file, or if it holds no key."""
        try:
            return cls(X25519PrivateKey.from_private_bytes(read_secret(path)))
        except SecretError as error:
            raise SecureAggregationError(f"the identity key {error}") from None


class Session:
    """The keys of a pair of sites for one job. It seals and opens messages in order, and derives shared secrets."""

    def __init__(self, secret: bytes, job: str, me: str, peer: str) -> None:
        self._secret, self._job, self.me, self.peer = secret, job, me, peer
        self._ciphers = {site: ChaCha20Poly1305(self.export(b"messages of " + site.encode())) for site in (me, peer)}
        self._counts = {me: 0, peer: 0}
        self._broken = False

    def export(self, label: bytes) -> bytes:
        """A key of 32 bytes for a label; only the two ends can derive it."""
        return HKDFExpand(SHA256(), KEY_BYTES, label).derive(self._secret)

    def seal(self, message: bytes) -> bytes:
        """The message, encrypted for the peer; 16 bytes longer."""
        return self._ciphers[self.me].encrypt(*self._next(self.me, self.peer, message))

    def open(self, sealed: bytes) -> bytes:
        """The peer's next message. Raises `SiteError` for anything else, and at every later call."""
        try:
            if self._broken:
                raise InvalidTag
            return self._ciphers[self.peer].decrypt(*self._next(self.peer, self.me, sealed))
        except InvalidTag:
            self._broken = True
            raise SiteError(
                self.peer, "sent a message that was altered, repeated, out of order or meant for another: start anew"
            ) from None

    def _next(self, sender: str, receiver: str, data: bytes) -> tuple[bytes, bytes, bytes]:
        """Nonce, data and associated data; a counter for each direction makes every nonce of a key new."""
        number = self._counts[sender].to_bytes(8, "big")
        self._counts[sender] += 1
        return bytes(4) + number, data, joined(self._job.encode(), sender.encode(), receiver.encode(), number)


class Handshake:
    """One end of the key agreement between two sites for one job: send `hello`, then `finish` with the peer's."""

    def __init__(self, identity: Identity, job: str, me: str, peer: str, fingerprint: str) -> None:
        self._identity, self._job, self._me, self._peer, self._pinned = identity, job, me, peer, fingerprint
        self._ephemeral = X25519PrivateKey.generate()
        self.hello = identity.public + self._ephemeral.public_key().public_bytes_raw()

    def finish(self, hello: bytes) -> Session:
        """The session, which only the owner of the pinned key can derive; its first message proves that it has.

        Raises `SiteError` for a key that is not pinned or not a key.
        """
        static, ephemeral = hello[:KEY_BYTES], hello[KEY_BYTES:]
        if len(hello) != 2 * KEY_BYTES or hashlib.sha256(static).hexdigest() != self._pinned:
            raise SiteError(self._peer, "shows a key whose fingerprint is not the pinned one: compare them by phone")
        try:
            exchanged = self._agree(static, ephemeral)
        except ValueError:
            raise SiteError(self._peer, "sent a degenerate key: leave it out until it is repaired") from None
        ends = sorted([(self._me.encode(), self.hello), (self._peer.encode(), hello)])
        transcript = hashlib.sha256(joined(_PROTOCOL, self._job.encode(), *ends[0], *ends[1])).digest()
        secret = HKDF(SHA256(), KEY_BYTES, transcript, _PROTOCOL).derive(exchanged)
        return Session(secret, self._job, self._me, self._peer)

    def _agree(self, static: bytes, ephemeral: bytes) -> bytes:
        """The shared secrets of Noise: ee, then es and se in the order of the sites' names, then ss.

        Raises `ValueError` if one of them is zero.
        """
        keys = [X25519PublicKey.from_public_bytes(raw) for raw in (ephemeral, static)]
        (ee, es), (se, ss) = [
            [own_key.exchange(key) for key in keys] for own_key in (self._ephemeral, self._identity.private)
        ]
        return b"".join([ee, es, se, ss] if self._me < self._peer else [ee, se, es, ss])


@dataclass(frozen=True)
class SecureLink:
    """A session over a relay."""

    session: Session
    relay: Relay
    timeout: float

    def send(self, message: bytes) -> None:
        """Seals and sends."""
        self.relay.send(self.session.peer, self.session.seal(message))

    def receive(self, nbytes: int) -> bytes:
        """The peer's next message. Raises `SiteError` if it is late, is not genuine or has another length."""
        message = self.session.open(_received(self.relay, self.session.peer, self.timeout))
        if len(message) != nbytes:
            raise SiteError(self.session.peer, f"sent {len(message)} bytes instead of {nbytes}: leave it out")
        return message


def connect(
    identity: Identity,
    job: str,
    me: str,
    fingerprints: Mapping[str, str],
    relay: Relay,
    timeout: float,
    context: bytes = b"",
) -> dict[str, SecureLink]:
    """Opens links to all peers. Each peer has proved that it has the key of the pinned fingerprint, and that the server
    gave it the same `context` as this site.

    `job` names job, round and attempt: each attempt has other keys. `timeout`: seconds for each message.
    `context`: all facts from the server about the attempt, in an encoding that is equal at all sites.
    Raises `SiteError` naming the peer that is silent or has another key, and `EquivocationError` if a peer's genuine
    message shows another `context`. Nothing that depends on data was sent before.
    """
    handshakes = {peer: Handshake(identity, job, me, peer, fingerprint) for peer, fingerprint in fingerprints.items()}
    for peer, handshake in handshakes.items():
        relay.send(peer, handshake.hello)
    links = {
        peer: SecureLink(handshake.finish(_received(relay, peer, timeout)), relay, timeout)
        for peer, handshake in handshakes.items()
    }
    confirmation = _CONFIRMATION + hashlib.sha256(context).digest()
    for link in links.values():
        link.send(confirmation)
    for peer, link in links.items():
        if link.receive(len(confirmation)) != confirmation:
            raise EquivocationError(different_words(peer))
    return links


def different_words(peer: str) -> str:
    """The sentence of an `EquivocationError`."""
    return (
        f"the server told this site and site {peer!r} different things about one computation: nothing was shared or "
        "opened; compare the audit logs of both"
    )


def _received(relay: Relay, sender: str, timeout: float) -> bytes:
    try:
        return relay.receive(sender, timeout)
    except TimeoutError:
        raise SiteError(sender, f"was silent for {timeout:g} s: repeat the round without it") from None


def joined(*parts: bytes) -> bytes:
    """Concatenates parts, each after its length, so that no two lists of parts give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


_LENGTH = 8
_COST = {"n": 1 << 15, "r": 8, "p": 1, "maxmem": 1 << 26}
_SALT = b"medfedvqa spoken words 1"

WORDS = tuple(files(__package__).joinpath("spoken_words.txt").read_text("ascii").split())
"""One word for each value of a byte."""


def words_of(fingerprint: str) -> str:
    """Eight words, joined by hyphens, for a fingerprint of 64 hex digits."""
    digest = scrypt(bytes.fromhex(fingerprint), salt=_SALT, dklen=_LENGTH, **_COST)
    return "-".join(WORDS[value] for value in digest)
