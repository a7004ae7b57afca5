"""Computes on shares, with CrypTen: the mixture by reliability of `privacy.aggregation`, and the sum of all sites'
vectors. Neither the server nor another site sees a site's tensors, norms, accuracy or similarities.

Each owner splits its vector among the members: all but one get the key of a uniform stream, and that one gets the rest.
The members add up their shares of all owners, wait until every member has done so, and open the sum.

Source: B. Knott et al., "CrypTen: Secure Multi-Party Computation Meets Machine Learning", 2021 (additive shares modulo
2^64, whose sum each party computes alone); R. Cramer, I. Damgard, Y. Ishai, "Share Conversion, Pseudorandom
Secret-Sharing and Applications to Secure Computation", 2005 (shares that are keys of streams).
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from audits import Tensors
from privacy.aggregation import PARTS, kept_parts
from privacy.secagg.committee import Group
from privacy.secagg.communicator import Peer, SilentWire
from privacy.secagg.crypten_runtime import Party, ring
from privacy.secagg.errors import MisdealtError, RangeError, SecureAggregationError
from privacy.secagg.layout import LARGEST_NORM, TensorLayout
from privacy.secagg.reliability import (
    ACCURACY_BITS,
    COSINE_BITS,
    NORM_BITS,
    WEIGHT_BITS,
    MaskedSecret,
    reliability_weights,
)
from privacy.secagg.ring import KEY_BYTES, FixedPoint, Ring, Stream, ZeroShares
from privacy.secagg.tuples import DealerTuples, PartyTuples, mask_key, own_mask

# Linear and bilinear functions of owners' long vectors, for one message of their length each way.
#
# Each owner has shown the members its vector minus a mask that only it knows. Each member has a share of the mask, made
# from its seed. The dealer deals the terms of results that are products of masks.

BLUR_BITS = 28
"""The low bits of a revealed mixture that each member blurs: the exact bits of a sum of products could be factored."""


class OwnedVectors:
    """All owners' vectors, in `segments` that are combined separately."""

    def __init__(self, party: Party, masked_values: Ring, masks: Ring, segments: Sequence[slice]) -> None:
        """`masked_values`: vectors minus masks, public; `masks`: shares of the masks; both [owners, length]."""
        self._party, self._shown, self._masks, self._segments = party, masked_values, masks, segments

    def products(self) -> Ring:
        """Shares of the inner products of all pairs, [segments, owners, owners]; no exchange.

        With x = shown + mask: shown times shown is public, shown times mask follows from the shares of the masks, and
        mask times mask is dealt.
        """
        owners = len(self._shown)
        mask_products = partial(self._gram, self._masks, self._masks)
        tuples, shape = self._party.tuples, (len(self._segments), owners, owners)
        return tuples.dependent(mask_products, shape) + tuples.local(self._shown_products, shape)

    def _shown_products(self) -> Ring:
        """The part of `products` that this member computes alone."""
        cross_products = self._gram(self._shown, self._masks)
        shares = cross_products + cross_products.swapaxes(1, 2)
        return shares + self._gram(self._shown, self._shown) if self._party.rank == 0 else shares

    def mixed(self, weights: Ring) -> Ring:
        """Shares for each target of the sum over sources of weight times vector, [targets, length]; one exchange.

        `weights`: shares, [segments, targets, sources]. With weight = opened + mu, a member adds its weight share times
        shown, and opened times its mask share. mu times mask is dealt, with the correction to the target alone. So
        these shares are uniform to all but the target, which adds them up.
        """
        party = self._party
        mu = party.tuples.random(weights.shape)
        (weight_differences,) = party.open(weights - mu)
        shares = party.tuples.delivered(partial(self._combined, mu, self._masks), self._shown.shape)
        return shares + party.tuples.local(partial(self._shown_mixture, weights, weight_differences), self._shown.shape)

    def _shown_mixture(self, weights: Ring, weight_differences: Ring) -> Ring:
        """The part of `mixed` that this member computes alone, blurred."""
        return self._combined(weights, self._shown) + self._combined(weight_differences, self._masks) + self._blur()

    def _gram(self, rows: Ring, columns: Ring) -> Ring:
        return np.stack([_product(rows[:, segment], columns[:, segment].T) for segment in self._segments])

    def _combined(self, weights: Ring, rows: Ring) -> Ring:
        """The weighted sums of rows, segment by segment: [segments, targets, sources] and [sources, length] to
        [targets, length].
        """
        parts = zip(weights, self._segments, strict=True)
        return np.concatenate([_product(weight, rows[:, segment]) for weight, segment in parts], axis=1)

    def _blur(self) -> Ring:
        noise = self._party.secret.ring(self._shown.shape) >> np.uint64(64 - BLUR_BITS)
        return noise - np.uint64(1 << (BLUR_BITS - 1))


def _product(left: Ring, right: Ring) -> Ring:
    """The product of two matrices; torch's wraps as numpy's does, and is many times as fast from 100 rows on.

    It takes slices and transposes without a copy.
    """
    return ring(torch.from_numpy(left.view(np.int64)) @ torch.from_numpy(right.view(np.int64)))


_UNIT = FixedPoint(COSINE_BITS // 2)


def join(me: str, links: Mapping[str, Peer], seed: bytes, corrections: bytes = b"") -> Party:
    """This member's party; ranks follow the order of names. `corrections`: for the last member, from `deal`.

    Raises `SecureAggregationError` with fewer than 3 members.
    """
    names = sorted([me, *links])
    rank = names.index(me)
    wires = {names.index(peer): link for peer, link in links.items()}
    zero = ZeroShares(rank, {peer: link.session.export(b"zero shares") for peer, link in wires.items()})
    return Party(rank, wires, zero, PartyTuples(rank, len(names), seed, corrections))


def deal(seeds: Sequence[bytes], protocol: Callable[[Party], object]) -> DealerTuples:
    """The corrections for one run of a protocol: a function of the members' seeds, in order of rank.

    The dealer runs the protocol alone, on zeros: the order of its tuples must not depend on values.
    """
    dealer = DealerTuples(seeds)
    protocol(Party(0, {rank: SilentWire() for rank in range(1, len(seeds))}, ZeroShares(0, {}), dealer))
    return dealer


def secure_mix(
    group: Group,
    links: Mapping[str, Peer],
    dealt: bytes,
    prompts: Tensors,
    accuracy: float,
    layout: TensorLayout,
    seed: bytes = b"",
    most_share: float = 1.0,
) -> Tensors:
    """S_t of `privacy.aggregation.mix` (clamped), known to this site alone: the others' prompts by reliability.

    `links`: to the other members, and of a member to all other sites. `dealt`: what `deal_mix` made for this site.
    `seed`: at a member, the one from which `deal_mix` dealt for it; it never comes from the dealer. `most_share`: see
    `Reliability`; the members apply it.
    Each segment of the layout is weighed by itself; `accuracy` is 0..1. The result is within 1e-3 of the plain one,
    relative to its norm, for norms from 0.05 to 1024. A target whose scores sum to less than 2^-16
    falls back to accuracies, and these, if they too sum to less, to equal weights.

    Only all members together, or the dealer with one member, could open inputs. Any other set of sites sees only values
    that are uniform to it, its own inputs, and its own mixtures.

    Exchanges: owners to members, masked inputs, once; 10 among the members; members to owners, shares of the mixture.
    Raises, before anything is sent, `RangeError` if a value is not finite, or accuracy or a norm out of its range, and
    `MisdealtError` if a member's mask does not come from its own seed; later, `SiteError` naming a site whose message
    is missing or is not what it should be.
    """
    mine = _encoded(prompts, accuracy, layout)
    part, rest = _OwnerPart.read(dealt, len(group.members), layout.size)
    if group.is_member and part.keys[group.seat] != mask_key(seed, group.rank):
        raise MisdealtError("the server dealt from another seed than the one that this site sent: refuse the job")
    masked_values = mine - own_mask(part.keys, mine.size)
    others = [member for member in group.members if member != group.me]
    for member in others:
        links[member].send(masked_values.astype("<u8", copy=False).tobytes())
    mixture = part.correction.copy()
    if group.is_member:
        party = join(group.me, {member: links[member] for member in others}, seed, rest)
        kept = kept_parts(most_share, len(group.sites) - 1)
        rows = [masked_values if site == group.me else _received(links[site], mine.size) for site in group.sites]
        for site, share in zip(group.sites, _mixtures(party, np.stack(rows), layout, kept), strict=True):
            if site == group.me:
                mixture += share
            else:
                links[site].send(share.astype("<u8", copy=False).tobytes())
    for member in others:
        mixture += _received(links[member], layout.size)
    return layout.restore(FixedPoint(_UNIT.bits + WEIGHT_BITS).decode(mixture))


def deal_mix(
    sites: Sequence[str], members: Sequence[str], layout: TensorLayout, seeds: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The dealer's message to each site for one `secure_mix`: a function of the members' seeds, which are used once.

    It holds the keys of the shares of the site's mask, and the correction of its mixture; for the last member, also the
    corrections of the tuples. Raises `SecureAggregationError` if these are not a group.
    """
    group = Group(sites[0], tuple(sites), tuple(members))
    secrets = [seeds[member] for member in group.members]
    zeros: Ring = np.zeros((len(group.sites), _encoded_size(layout)), np.uint64)
    dealer = deal(secrets, lambda party: _mixtures(party, zeros, layout))
    parts = {}
    for rank, site in enumerate(group.sites):
        keys = [mask_key(seed, rank) for seed in secrets]
        rest = dealer.last if site == group.members[-1] else b""
        parts[site] = _OwnerPart(keys, dealer.corrections[rank]).message(rest)
    return parts


def _mixtures(party: Party, masked_values: Ring, layout: TensorLayout, kept: int = PARTS) -> Ring:
    """This member's shares of each owner's mixture, [owners, layout.size], from masked inputs, [owners, inputs]."""
    masks = party.tuples.masks(*masked_values.shape)
    vectors = OwnedVectors(party, masked_values[:, : layout.size], masks[:, : layout.size], layout.segments)
    figures, figure_masks = masked_values[:, layout.size :].T, masks[:, layout.size :].T
    figure = MaskedSecret(figures, ((np.ones_like(figures), figure_masks),))
    weights = reliability_weights(party, vectors.products(), norms=figure[:-1], accuracies=figure[-1], kept=kept)
    return vectors.mixed(weights)


def _encoded(prompts: Tensors, accuracy: float, layout: TensorLayout) -> Ring:
    """A site's input, [inputs]: unit vectors of all segments, their norms, the accuracy. Raises `RangeError`."""
    segments = [layout.flatten(prompts)[segment] for segment in layout.segments]
    norms = np.array([np.linalg.norm(segment) for segment in segments])
    if not 0 <= accuracy <= 1:
        raise RangeError("an accuracy must lie in 0..1: nothing was shared; check the evaluation")
    if not (norms <= LARGEST_NORM).all():
        raise RangeError(f"a prompt is not finite or longer than {LARGEST_NORM:g}: nothing was shared; check training")
    units = np.concatenate([segment / (norm or 1.0) for segment, norm in zip(segments, norms, strict=True)])
    accuracies = FixedPoint(ACCURACY_BITS).encode(np.array([accuracy]))
    return np.concatenate([_UNIT.encode(units), FixedPoint(NORM_BITS).encode(norms), accuracies])


def _encoded_size(layout: TensorLayout) -> int:
    return layout.size + len(layout.segments) + 1


def _received(link: Peer, size: int) -> Ring:
    """The peer's message as ring elements, [size]. Raises `SiteError`."""
    return np.frombuffer(link.receive(8 * size), "<u8")


@dataclass(frozen=True)
class _OwnerPart:
    """The dealer's message to every site: the keys of the shares of its mask, and the correction of its mixture."""

    keys: Sequence[bytes]
    correction: Ring

    def message(self, rest: bytes) -> bytes:
        return b"".join([*self.keys, self.correction.astype("<u8", copy=False).tobytes(), rest])

    @classmethod
    def read(cls, dealt: bytes, members: int, size: int) -> tuple["_OwnerPart", bytes]:
        """The owner's part, and the remaining bytes for the member.

        Raises `SecureAggregationError` if `dealt` belongs to another computation."""
        keys, end = members * KEY_BYTES, members * KEY_BYTES + 8 * size
        if len(dealt) < end:
            raise SecureAggregationError("the dealer dealt for another computation: repeat the round with fresh tuples")
        parts = [dealt[start : start + KEY_BYTES] for start in range(0, keys, KEY_BYTES)]
        return cls(parts, np.frombuffer(dealt[keys:end], "<u8")), dealt[end:]


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
    received = dict(_messages(group, links, values.size))
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


def _messages(group: Group, links: Mapping[str, Peer], size: int) -> Iterator[tuple[str, bytes]]:
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
