"""The sum of all sites' vectors, which the members compute on shares with CrypTen and open to each other.

Each owner splits its vector among the members: all but one get the key of a uniform stream, and that one gets the rest.
The members add up their shares of all owners, wait until every member has done so, and open the sum.

Source: B. Knott et al., "CrypTen: Secure Multi-Party Computation Meets Machine Learning", 2021 (additive shares modulo
2^64, whose sum each party computes alone); R. Cramer, I. Damgard, Y. Ishai, "Share Conversion, Pseudorandom
Secret-Sharing and Applications to Secure Computation", 2005 (shares that are keys of streams).
"""

import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from privacy.secagg.communicator import Peer
from privacy.secagg.group import Group
from privacy.secagg.protocol import join
from privacy.secagg.randomness import KEY_BYTES, Stream
from privacy.secagg.ring import Ring
from privacy.secagg.tuples import own_mask


def secure_sum(
    group: Group, links: Mapping[str, Peer], values: Ring, before_opening: Callable[[bytes], None]
) -> tuple[Ring | None, bytes]:
    """The sum of all sites' `values`, [their length], at a member and None elsewhere; and a key that all sites know.

    `links`: to the other members, and of a member to all other sites. `before_opening` is called at a member, with the
    key, once all members hold their shares of the sum, and before this one sends its own. An exception out of it, or an
    error before it, means that this member has opened nothing. The key comes from the first member.

    Only all members together could open inputs. Fewer members, with any number of other sites, see only values that
    are uniform to them, their own inputs, and the sum.

    Exchanges: owners to members, shares, once; 2 among the members: that all have theirs, and the shares of the sum.
    Raises `SiteError` naming a site whose message is missing or is not what it should be.
    """
    parts, first = split(values, group), group.members[0]
    group_key = os.urandom(KEY_BYTES) if group.me == first else b""
    for peer, link in links.items():
        if message := group_key + parts.get(peer, b""):
            link.send(message)
    received = dict(_received(group, links, values.size))
    group_key = group_key or received[first][:KEY_BYTES]
    if not group.is_member:
        return None, group_key
    shares = (_share(group, site, received.get(site, parts[group.me]), values.size) for site in group.sites)
    # No tuple is ever taken from the seed: sums need none.
    party = join(group.me, {peer: links[peer] for peer in group.members if peer != group.me}, os.urandom(KEY_BYTES))
    total = party.sum(shares)
    party.wait_for_all()
    before_opening(group_key)
    (opened,) = party.open(total)
    return opened, group_key


def split(values: Ring, group: Group) -> dict[str, bytes]:
    """The message of this site to each member, its own among them: its share of `values`, [any length].

    A share is the key of a uniform stream; one member gets all the rest, [8 * length] bytes. Which one it is differs
    from owner to owner, so that the members send and receive alike.
    """
    rest_at = _holder_of_rest(group, group.me)
    keys = {member: os.urandom(KEY_BYTES) for member in group.members if member != rest_at}
    rest = values - own_mask([*keys.values()], values.size)
    return {**keys, rest_at: rest.astype("<u8", copy=False).tobytes()}


def _received(group: Group, links: Mapping[str, Peer], size: int) -> Iterator[tuple[str, bytes]]:
    """Yields each peer with its message to this site. Raises `SiteError`."""
    for peer, link in links.items():
        nbytes = KEY_BYTES if peer == group.members[0] else 0
        if group.is_member:
            nbytes += 8 * size if _holder_of_rest(group, peer) == group.me else KEY_BYTES
        if nbytes:
            yield peer, link.receive(nbytes)


def _share(group: Group, owner: str, message: bytes, size: int) -> Ring:
    """This member's share of an owner's values, which is at the end of the owner's message, [size]."""
    if _holder_of_rest(group, owner) == group.me:
        return np.frombuffer(bytearray(message[-8 * size :]), "<u8")
    return Stream(message[-KEY_BYTES:]).ring((size,))


def _holder_of_rest(group: Group, owner: str) -> str:
    return group.members[group.sites.index(owner) % len(group.members)]
