"""What sites compute on shares with CrypTen: the mixture by reliability of `privacy.aggregation`.

Neither the server nor another site sees a site's tensors, norms, accuracy or similarities.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from audits import Tensors
from privacy.aggregation import PARTS, kept_parts
from privacy.secagg.communicator import Peer, SilentWire
from privacy.secagg.crypten_runtime import Party
from privacy.secagg.errors import MisdealtError, RangeError, SecureAggregationError
from privacy.secagg.group import Group
from privacy.secagg.layout import LARGEST_NORM, TensorLayout
from privacy.secagg.masked_opening import MaskedSecret
from privacy.secagg.randomness import KEY_BYTES, ZeroShares
from privacy.secagg.reliability import ACCURACY_BITS, COSINE_BITS, NORM_BITS, WEIGHT_BITS, reliability_weights
from privacy.secagg.ring import FixedPoint, Ring
from privacy.secagg.tuples import DealerTuples, PartyTuples, mask_key, own_mask
from privacy.secagg.vectors import OwnedVectors

_UNIT = FixedPoint(COSINE_BITS // 2)


def join(me: str, links: Mapping[str, Peer], seed: bytes, corrections: bytes = b"") -> Party:
    """This member's part; ranks follow the order of names. `corrections`: what `deal` made for the last member.

    Raises `SecureAggregationError` with fewer than 3 members.
    """
    names = sorted([me, *links])
    rank = names.index(me)
    wires = {names.index(peer): link for peer, link in links.items()}
    zero = ZeroShares(rank, {peer: link.session.export(b"zero shares") for peer, link in wires.items()})
    return Party(rank, wires, zero, PartyTuples(rank, len(names), seed, corrections))


def deal(seeds: Sequence[bytes], protocol: Callable[[Party], object]) -> DealerTuples:
    """The corrections for one run of a protocol: a function of the members' seeds, in order of rank.

    The protocol is run here, alone and on zeros: it must ask for tuples in an order that no value changes.
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

    What anybody could open: all members together, or the dealer with one member, every input. Any other sites, members
    and owners, together see only what is uniform to them, their own inputs, and their own mixtures.

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
    """What the dealer sends to each site for one `secure_mix`: a function of the members' seeds, which are used once.

    To an owner, the keys of its mask's shares and the correction of its mixture; to the last member corrections.
    Raises `SecureAggregationError` if these are no group.
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
    """[size]. Raises `SiteError`."""
    return np.frombuffer(link.receive(8 * size), "<u8")


@dataclass(frozen=True)
class _OwnerPart:
    """What the dealer sends to every site: keys of the shares of its mask, and the correction of its mixture."""

    keys: Sequence[bytes]
    correction: Ring

    def message(self, rest: bytes) -> bytes:
        return b"".join([*self.keys, self.correction.astype("<u8", copy=False).tobytes(), rest])

    @classmethod
    def read(cls, dealt: bytes, members: int, size: int) -> tuple["_OwnerPart", bytes]:
        """And what is left for the member. Raises `SecureAggregationError` if it was dealt for another computation."""
        keys, end = members * KEY_BYTES, members * KEY_BYTES + 8 * size
        if len(dealt) < end:
            raise SecureAggregationError("the dealer dealt for another computation: repeat the round with fresh tuples")
        parts = [dealt[start : start + KEY_BYTES] for start in range(0, keys, KEY_BYTES)]
        return cls(parts, np.frombuffer(dealt[keys:end], "<u8")), dealt[end:]
