"""Uploads under masks that cancel in the sum, so that the server learns only the sum.

Each site masks its upload twice: by its own stream, and by one in common with each member of the group, which one end
adds and the other subtracts. The keys of both are secret-shared among the members. To open a sum, members give their
shares of the own streams' keys of sites that uploaded, and of the common streams' keys of sites that did not; never
both for one site. So a site may drop out at any time, and a late upload still reveals nothing.

Source: K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", 2017, figure 4, on a
graph that joins every site to every member.
"""

import hashlib
import hmac
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from privacy.secagg import shamir
from privacy.secagg.channel import Relay, different_words, joined
from privacy.secagg.committee import Group, threshold
from privacy.secagg.communicator import Peer
from privacy.secagg.errors import MINIMUM, EquivocationError, SecureAggregationError, SiteError
from privacy.secagg.ring import KEY_BYTES, Ring, Stream, ZeroShares, derive_key

_PATIENCE = 0.05
"""The first wait for one member, in seconds, before the next is asked: a dead member must not delay the others."""

SHARES_BYTES = 2 * shamir.ELEMENT_BYTES
"""A member's shares of one site's two secrets: the key of its common streams, then that of its own stream."""


@dataclass(frozen=True)
class Masks:
    """One site's masks of one attempt, for one upload."""

    group: Group
    public: bytes
    """The key by which the server recomputes the common streams of sites that did not upload."""
    shares: Mapping[str, bytes]
    """At a member, its shares of every site's secrets, its own included; empty at other sites."""
    group_key: bytes
    """Known to all sites of the attempt, and not to the server."""
    opening_keys: Mapping[str, bytes]
    """At a member, the key that it has in common with each other member for `agree`; empty at other sites."""
    _own: bytes
    _common: Mapping[str, bytes]

    def apply(self, values: Ring, hide: bool) -> Ring:
        """The masked values, [the same length]; `hide`: under the group's key too, so that only sites read the sum."""
        total = values + Stream(self._own).ring(values.shape)
        for peer, key in self._common.items():
            total = _shifted(total, key, self.group.me < peer)
        return hidden(total, self.group_key, [self.group.me]) if hide else total


def new_secrets() -> bytes:
    """The keys of one site's common streams and of its own stream, for one attempt, [SHARES_BYTES]."""
    return b"".join(shamir.to_bytes(shamir.new_secret()) for _ in range(2))


def exchange(group: Group, links: Mapping[str, Peer], secrets: bytes) -> tuple[Masks, int]:
    """Exchanges keys and shares of secrets; returns this site's masks, and the number of bytes that it sent.

    `links`: to all members, and at a member to all sites. Raises `SiteError` naming the site that broke off.
    """
    private_key, own_seed = secrets[: shamir.ELEMENT_BYTES], secrets[shamir.ELEMENT_BYTES :]
    private = X25519PrivateKey.from_private_bytes(private_key)
    public, first = private.public_key().public_bytes_raw(), group.members[0]
    shares = _divided(group, private_key, own_seed)
    group_key = os.urandom(KEY_BYTES) if group.me == first else b""
    messages = {peer: public + group_key + shares.get(peer, b"") for peer in links}
    for peer, link in links.items():
        link.send(messages[peer])
    publics, shares_by_peer = {}, {group.me: shares[group.me]} if group.is_member else {}
    for peer, link in links.items():
        greeted = KEY_BYTES * (2 if peer == first else 1)
        message = link.receive(greeted + (SHARES_BYTES if group.is_member else 0))
        publics[peer] = message[:KEY_BYTES]
        if peer == first:
            group_key = message[KEY_BYTES:greeted]
        if group.is_member:
            shares_by_peer[peer] = message[greeted:]
    common = {peer: _agreed(private, peer, publics[peer]) for peer in publics}
    members = [peer for peer in links if peer in group.members] if group.is_member else []
    opening_keys = {peer: links[peer].session.export(b"opening") for peer in members}
    masks = Masks(group, public, shares_by_peer, group_key, opening_keys, own_seed, common)
    return masks, sum(map(len, messages.values()))


def agree(me: str, keys: Mapping[str, bytes], relay: Relay, context: bytes, timeout: float, enough: int) -> None:
    """Returns once `enough` members, this one included, confirm that they have the same `context` from the server.

    To be called before `answer`. `keys`: the attempt's `opening_keys` of members that may still answer. `context`: all
    facts from the server about the sum to open, in an encoding that is equal at all members. A message that is not
    genuine counts as none, since the server could as well have dropped it.
    Raises `EquivocationError` for a member's genuine message about another context, and
    `SecureAggregationError` if after `timeout` seconds too few have answered.
    """
    digest = hashlib.sha256(context).digest()
    for peer, key in keys.items():
        relay.send(peer, _confirmed(key, me, digest))
    waiting, same, end, patience = list(keys), 1, time.monotonic() + timeout, _PATIENCE
    while waiting and same < enough and time.monotonic() < end:
        for peer in waiting.copy():
            wait = 0.0 if same >= enough else min(patience, max(0.0, end - time.monotonic()))
            other = _words_of(peer, keys[peer], relay, wait)
            if other is None:
                continue
            if other != digest:
                raise EquivocationError(different_words(peer))
            waiting.remove(peer)
            same += 1
        patience *= 2
    if same < enough:
        raise SecureAggregationError(
            f"only {same} of {enough} required members confirmed the list of contributors: the sum stays closed"
        )


def _words_of(peer: str, key: bytes, relay: Relay, wait: float) -> bytes | None:
    """The digest of a member's context, if a genuine message arrives in time; else None."""
    try:
        message = relay.receive(peer, wait)
    except TimeoutError:
        return None
    digest = message[-hashlib.sha256().digest_size :]
    return digest if hmac.compare_digest(message, _confirmed(key, peer, digest)) else None


def _confirmed(key: bytes, sender: str, digest: bytes) -> bytes:
    return hmac.digest(key, joined(sender.encode(), digest), "sha256") + digest


def answer(
    group: Group, shares_by_site: Mapping[str, bytes], contributors: Collection[str], least: int = MINIMUM
) -> dict[str, bytes]:
    """A member's part to open the sum over `contributors`: one share for each site, 32 bytes.

    To be sent for one set of contributors only. Raises `SecureAggregationError` if the sum would have fewer than
    `least` sites, or too few members: without an honest member in it, single uploads could be opened.
    """
    check_contributors(group.sites, group.members, contributors, least)
    half = shamir.ELEMENT_BYTES
    return {site: share[half:] if site in contributors else share[:half] for site, share in shares_by_site.items()}


def check_contributors(
    sites: Collection[str], members: Collection[str], contributors: Collection[str], least: int = MINIMUM
) -> None:
    """Raises as `answer` does."""
    if not set(contributors) <= set(sites) or len(contributors) < max(MINIMUM, least):
        raise SecureAggregationError(
            f"a sum of fewer than {max(MINIMUM, least)} sites of the attempt is not opened: it could reveal one of them"
        )
    needed = threshold(len(members))
    if len(set(members) & set(contributors)) < needed:
        raise SecureAggregationError(f"a sum with fewer than {needed} of the members in it is not opened")


@dataclass(frozen=True)
class Upload:
    """The server's record of one site's upload."""

    values: Ring
    public: bytes


def opened(
    sites: Sequence[str],
    members: Sequence[str],
    uploads: Mapping[str, Upload],
    answers: Mapping[str, Mapping[str, bytes]],
) -> Ring:
    """For the server: the sum of the uploads without their masks, except the masks under the group's key.

    `answers`: the result of `answer`, by member. Raises `SecureAggregationError` for fewer than the threshold, and as
    `answer` does.
    """
    check_contributors(sites, members, uploads)
    total: Ring = np.sum([upload.values for upload in uploads.values()], axis=0, dtype=np.uint64)
    for site in sites:
        shares = {
            members.index(member): shamir.from_bytes(answer_shares[site]) for member, answer_shares in answers.items()
        }
        secret = shamir.to_bytes(shamir.rebuild(shares, threshold(len(members))))
        if site in uploads:
            total = total - Stream(secret).ring(total.shape)
            continue
        private = X25519PrivateKey.from_private_bytes(secret)
        for peer in uploads.keys() & set(sites if site in members else members):
            # Undo the peer's use of the common stream.
            total = _shifted(total, _agreed(private, peer, uploads[peer].public), peer > site)
    return total


def lasting_mask(me: str, sites: Sequence[str], keys: Mapping[str, bytes], label: bytes, size: int) -> Ring:
    """What a site adds to its upload, [size]; over all `sites` these add up to zero, and over fewer they are uniform.

    `keys`: the keys that the site has in common with others. They last for many uploads, one for each `label`.
    """
    streams = {sites.index(peer): derive_key(key, label) for peer, key in keys.items()}
    return ZeroShares(sites.index(me), streams).additive((size,))


def hidden(total: Ring, group_key: bytes, contributors: Collection[str]) -> Ring:
    """Masks a sum over these sites so that the server cannot read it. `unhidden` is the inverse."""
    for site in contributors:
        total = total + _hiding(group_key, site, total)
    return total


def unhidden(total: Ring, group_key: bytes, contributors: Collection[str]) -> Ring:
    """For the sites: recovers the sum that `hidden` hides from the server."""
    for site in contributors:
        total = total - _hiding(group_key, site, total)
    return total


def _divided(group: Group, *secrets: bytes) -> dict[str, bytes]:
    """Each member's shares of the secrets, one after the other."""
    size = len(group.members)
    shares = zip(*(shamir.split(shamir.from_bytes(s), size, threshold(size)) for s in secrets), strict=True)
    return {m: b"".join(map(shamir.to_bytes, each)) for m, each in zip(group.members, shares, strict=True)}


def _agreed(private: X25519PrivateKey, peer: str, public: bytes) -> bytes:
    """The key of the stream in common with a peer. Raises `SiteError`."""
    try:
        exchanged = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SiteError(peer, "sent a degenerate key: leave it out until it is repaired") from None
    return HKDFExpand(SHA256(), KEY_BYTES, b"medfedvqa common mask").derive(exchanged)


def _shifted(total: Ring, key: bytes, plus: bool) -> Ring:
    stream = Stream(key).ring(total.shape)
    return total + stream if plus else total - stream


def _hiding(group_key: bytes, site: str, like: Ring) -> Ring:
    """The stream by which one site hides its part of the sum from the server."""
    key = HKDFExpand(SHA256(), KEY_BYTES, b"medfedvqa hidden sum " + site.encode()).derive(group_key)
    return Stream(key).ring(like.shape)
