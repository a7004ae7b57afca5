"""What sites compute on shares with CrypTen: the mixture by reliability of `privacy.aggregation`.

Neither the server nor another site sees a site's tensors, norms, accuracy or similarities.
"""

import os
from collections.abc import Callable, Mapping

import numpy as np
import torch

from audits import Tensors
from privacy.secagg.channel import Link
from privacy.secagg.communicator import SilentWire
from privacy.secagg.crypten_runtime import Party, ring, tensor
from privacy.secagg.errors import RangeError
from privacy.secagg.layout import Layout
from privacy.secagg.randomness import KEY_BYTES, ZeroShares
from privacy.secagg.reliability import ACCURACY_BITS, COSINE_BITS, NORM_BITS, WEIGHT_BITS, reliability_weights
from privacy.secagg.ring import FixedPoint, Ring
from privacy.secagg.tuples import DealerTuples, NoTuples, PartyTuples
from privacy.secagg.vectors import MaskedVectors

LARGEST_NORM = 1024.0
_UNIT = FixedPoint(COSINE_BITS // 2)


def join(me: str, links: Mapping[str, Link], dealt: bytes | None = None) -> Party:
    """This site's part; ranks follow the order of names. `dealt`: what the dealer sent, needed for `secure_mix`.

    Raises `SecureAggregationError` with fewer than 3 sites.
    """
    names = sorted([me, *links])
    rank = names.index(me)
    wires = {names.index(peer): link for peer, link in links.items()}
    zero = ZeroShares(rank, {peer: link.session.export(b"zero shares") for peer, link in wires.items()})
    tuples = NoTuples() if dealt is None else PartyTuples(rank, len(names), dealt)
    return Party(rank, wires, zero, tuples)


def deal(parties: int, protocol: Callable[[Party], object]) -> list[bytes]:
    """What the dealer sends to each party, by rank, for one run of a protocol; fresh secrets every time.

    The protocol is run here, alone and on zeros: it must ask for tuples in an order that no value changes.
    """
    dealer = DealerTuples([os.urandom(KEY_BYTES) for _ in range(parties)])
    protocol(Party(0, {rank: SilentWire() for rank in range(1, parties)}, ZeroShares(0, {}), dealer))
    return dealer.dealt


def deal_mix(parties: int, layout: Layout) -> list[bytes]:
    """`deal` for `secure_mix`."""
    return deal(parties, lambda party: secure_mix(party, layout.zeros(), 0.0, layout))


def secure_mix(party: Party, prompts: Tensors, accuracy: float, layout: Layout) -> Tensors:
    """S_t of `privacy.aggregation.mix` (clamped), known to this site alone: the others' prompts by reliability.

    Each segment of the layout is weighed by itself; `accuracy` is 0..1. The result is within 1e-3 of the plain one,
    relative to its norm, for norms from 0.05 to 1024. A target whose scores sum to less than 2^-16
    falls back to accuracies, and these, if they too sum to less, to equal weights.
    Raises `RangeError` if a value is not finite, or accuracy or a norm out of its range.
    """
    segments = [layout.flatten(prompts)[segment] for segment in layout.segments]
    norms = np.array([np.linalg.norm(segment) for segment in segments])
    if not 0 <= accuracy <= 1:
        raise RangeError("an accuracy must lie in 0..1: nothing was shared; check the evaluation")
    if not (norms <= LARGEST_NORM).all():
        raise RangeError(f"a prompt is not finite or longer than {LARGEST_NORM:g}: nothing was shared; check training")
    units = np.concatenate([segment / (norm or 1.0) for segment, norm in zip(segments, norms, strict=True)])
    vectors = MaskedVectors(party, _UNIT.encode(units), layout.segments)
    weights = reliability_weights(
        party,
        tensor(vectors.products()),
        _by_party(party, FixedPoint(NORM_BITS).encode(norms)),
        _by_party(party, FixedPoint(ACCURACY_BITS).encode(np.array([accuracy])))[0],
    )
    return layout.restore(FixedPoint(_UNIT.bits + WEIGHT_BITS).decode(vectors.mixed(ring(weights))))


def _by_party(party: Party, mine: Ring) -> torch.Tensor:
    """Shares of every party's values, [values, parties]."""
    table: Ring = np.zeros((len(mine), party.size), np.uint64)
    table[:, party.rank] = mine
    return party.share(table)
