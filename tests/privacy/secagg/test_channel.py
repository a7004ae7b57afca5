"""Messages from site to site over a relay that nobody trusts."""

import hashlib
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from privacy.secagg import Handshake, Identity, InProcessRelay, SecureAggregationError, Session, SiteError, connect
from privacy.secagg.channel import SecureLink

MARKER = b"a planted marker of a patient"


def identity() -> Identity:
    return Identity(X25519PrivateKey.generate())


def sessions(job: str = "job", other_job: str | None = None) -> tuple[Session, Session]:
    a, b = identity(), identity()
    item = Handshake(a, job, "a", "b", b.fingerprint)
    other = Handshake(b, other_job or job, "b", "a", a.fingerprint)
    return item.finish(other.hello), other.finish(item.hello)


def test_messages_arrive_in_order_both_ways() -> None:
    """Both ends derive the same keys, one for each direction."""
    a, b = sessions()
    for number in range(3):
        assert b.open(a.seal(b"to b %d" % number)) == b"to b %d" % number
        assert a.open(b.seal(b"to a %d" % number)) == b"to a %d" % number


def test_the_relay_sees_no_plaintext() -> None:
    """A marker in the message is in no sealed byte string, and equal messages are sealed differently."""
    a, _ = sessions()
    first, second = a.seal(MARKER), a.seal(MARKER)
    assert MARKER not in first and first != second and len(first) == len(MARKER) + 16


@pytest.mark.parametrize("bit", range(0, 8 * (len(MARKER) + 16), 7))
def test_a_flipped_bit_is_refused(bit: int) -> None:
    """Wherever it is, and the session opens nothing afterwards, not even what is genuine."""
    a, b = sessions()
    sealed = bytearray(a.seal(MARKER))
    genuine = bytes(sealed)
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SiteError, match="'a' sent a message that was altered"):
        b.open(bytes(sealed))
    with pytest.raises(SiteError, match="start anew"):
        b.open(genuine)


def test_replayed_reordered_dropped_and_reflected_messages_are_refused() -> None:
    """Only the peer's very next message opens."""
    a, b = sessions()
    first = a.seal(b"1")
    assert b.open(first) == b"1"
    with pytest.raises(SiteError):
        b.open(first)
    a, b = sessions()
    first, second = a.seal(b"1"), a.seal(b"2")
    with pytest.raises(SiteError):
        b.open(second)
    a, b = sessions()
    with pytest.raises(SiteError):
        a.open(a.seal(b"1"))


def test_a_message_for_another_site_is_refused() -> None:
    """Keys of another pair, and of another job of the same pair, do not open."""
    a, _ = sessions()
    _, c = sessions()
    with pytest.raises(SiteError):
        c.open(a.seal(b"1"))
    a, b = sessions("job", "another job")
    with pytest.raises(SiteError):
        b.open(a.seal(b"1"))


def test_names_are_part_of_the_agreement() -> None:
    """A relay that tells each end another name for its peer gets two sessions that do not match."""
    a, b = identity(), identity()
    item = Handshake(a, "job", "a", "b", b.fingerprint)
    other = Handshake(b, "job", "b", "mallory", a.fingerprint)
    left, right = item.finish(other.hello), other.finish(item.hello)
    with pytest.raises(SiteError):
        right.open(left.seal(b"1"))


def test_a_wrong_fingerprint_is_refused() -> None:
    """A relay that substitutes its own long-term key is found by the pin."""
    a, b, mallory = identity(), identity(), identity()
    handshake = Handshake(a, "job", "a", "b", b.fingerprint)
    with pytest.raises(SiteError, match="'b' shows a key whose fingerprint is not the pinned one"):
        handshake.finish(Handshake(mallory, "job", "b", "a", a.fingerprint).hello)
    with pytest.raises(SiteError):
        handshake.finish(b"")


def test_a_relay_that_knows_only_public_keys_cannot_answer() -> None:
    """The pinned public key with an ephemeral key of the relay's own: the confirmation does not open."""
    a, b, mallory = identity(), identity(), identity()
    handshake = Handshake(a, "job", "a", "b", b.fingerprint)
    forged = Handshake(mallory, "job", "b", "a", a.fingerprint)
    forged.hello = b.public + forged.hello[32:]
    with pytest.raises(SiteError):
        handshake.finish(forged.hello).open(forged.finish(handshake.hello).seal(b"confirmed"))


def test_a_stolen_long_term_key_does_not_let_its_thief_play_others_to_its_owner() -> None:
    """The thief of a's key, who is not b, cannot make a session with a in b's name."""
    a, b = identity(), identity()
    handshake = Handshake(a, "job", "a", "b", b.fingerprint)
    thief = Handshake(a, "job", "b", "a", a.fingerprint)
    thief.hello = b.public + thief.hello[32:]
    with pytest.raises(SiteError):
        handshake.finish(thief.hello).open(thief.finish(handshake.hello).seal(b"confirmed"))


def test_a_degenerate_ephemeral_key_is_refused() -> None:
    """The all-zero point would make the shared secret known."""
    a, b = identity(), identity()
    with pytest.raises(SiteError, match="degenerate"):
        Handshake(a, "job", "a", "b", b.fingerprint).finish(b.public + bytes(32))


def test_every_job_has_its_own_keys_and_every_label_its_own_secret() -> None:
    """Two jobs of one pair share nothing; both ends export the same under one label."""
    a, b = identity(), identity()
    exports = set()
    for job in ("round 1", "round 1", "round 2"):
        item, other = Handshake(a, job, "a", "b", b.fingerprint), Handshake(b, job, "b", "a", a.fingerprint)
        left, right = item.finish(other.hello), other.finish(item.hello)
        assert left.export(b"x") == right.export(b"x") != left.export(b"y")
        exports.add(left.export(b"x"))
    assert len(exports) == 3


def test_connect_names_the_site_that_is_silent() -> None:
    """Who does not answer within the time can be left out of the next attempt."""
    a, b = identity(), identity()
    with pytest.raises(SiteError, match="'b' was silent for 0.01 s") as raised:
        connect(a, "job", "a", {"b": b.fingerprint}, InProcessRelay().of("a"), 0.01)
    assert raised.value.site == "b"


def test_connected_sites_exchange_messages_of_the_length_agreed() -> None:
    """A genuine message of another length is the peer's fault, and says so."""
    a, b = identity(), identity()
    relay = InProcessRelay()

    def item(me: str, who: Identity, peer: str, whom: Identity) -> SecureLink:
        return connect(who, "job", me, {peer: whom.fingerprint}, relay.of(me), 5)[peer]

    with ThreadPoolExecutor(2) as pool:
        left, right = pool.map(item, ("a", "b"), (a, b), ("b", "a"), (b, a))
    left.send(b"four")
    assert right.receive(4) == b"four"
    left.send(b"seven..")
    with pytest.raises(SiteError, match="'a' sent 7 bytes instead of 4: leave it out"):
        right.receive(4)


def test_the_identity_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """Mode 0600, refused otherwise; loading gives the same key; nothing is overwritten."""
    path = tmp_path / "identity"
    made = Identity.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path).fingerprint == made.fingerprint == hashlib.sha256(made.public).hexdigest()
    with pytest.raises(SecureAggregationError, match="exists already"):
        Identity.create(path)
    path.chmod(0o640)
    with pytest.raises(SecureAggregationError, match="mode 0600"):
        Identity.load(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(SecureAggregationError, match="must hold 32"):
        Identity.load(path)
