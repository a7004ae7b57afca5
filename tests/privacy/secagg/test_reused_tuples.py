"""A dealer that deals the same again: what members refuse, and why what they do not see is harmless."""

from typing import Any

import numpy as np
import pytest

from privacy.secagg import Group, MisdealtError, SecureAggregationError, TensorLayout
from privacy.secagg.cut_and_choose import new_seed
from privacy.secagg.protocol import deal_mix, secure_mix
from privacy.secagg.ring import KEY_BYTES, Ring

SITES = ("s0", "s1", "s2", "s3")
MEMBERS = SITES[:3]
LAYOUT = TensorLayout.of({"p": (8, 4, 125)}, "block")
"""By block, so that there are comparisons enough for statistics."""
PROMPT = {"p": np.float32(np.linspace(-1, 1, 4000).reshape(8, 4, 125))}

Seeds = dict[str, bytes]


def fresh() -> Seeds:
    return {member: new_seed() for member in MEMBERS}


def chi_square(elements: np.ndarray) -> float:
    """Over the values of bytes: mean 255, standard deviation 22.6 if they are uniform."""
    counts = np.bincount(np.frombuffer(elements.tobytes(), np.uint8), minlength=256)
    return float(((counts - counts.mean()) ** 2).sum() / counts.mean())


def mixed(linked: Any, dealt: dict[str, bytes], seeds: Seeds) -> tuple[list[Ring], list[Ring]]:
    """What a curious member receives of masked inputs, by site, and what is opened among the members, by exchange."""

    def work(group: Group, taps: Any) -> Any:
        secure_mix(group, taps, dealt[group.me], PROMPT, 0.5, LAYOUT, seeds.get(group.me, b""))
        return taps

    taps = linked(SITES, MEMBERS, work)
    got = {peer: [np.frombuffer(part, "<u8") for part in taps["s0"][peer].received] for peer in SITES[1:]}
    mine = [np.frombuffer(part, "<u8") for part in taps["s1"]["s0"].received]
    exchanged = list(zip(mine[1:-1], *[got[peer][1:-1] for peer in ("s1", "s2")], strict=True))
    opened = [operation(parts, axis=0) for parts in exchanged for operation in (np.sum, np.bitwise_xor.reduce)]
    return [got[peer][0] for peer in SITES[1:]], opened


def differences(one: list[Ring], other: list[Ring]) -> list[Ring]:
    return [a - b for a, b in zip(one, other, strict=True)]


def test_with_the_same_seeds_a_second_mixture_shows_differences_of_inputs(linked: Any) -> None:
    """The attack that fresh seeds end: with the same inputs, the same tuples give the same masked inputs."""
    seeds = fresh()
    dealt = deal_mix(SITES, MEMBERS, LAYOUT, seeds)
    (item, _), (other, _) = (mixed(linked, dealt, seeds) for _ in range(2))
    assert not any(difference.any() for difference in differences(item, other))


@pytest.mark.parametrize("honest", ["s1", "s2"])
def test_one_fresh_seed_makes_all_masks_fresh(linked: Any, honest: str) -> None:
    """All other members use their old seeds, and the dealer the corrections of the attempt before: differences of what
    each site sends and of all that is opened are uniform for equal inputs.

    The mask of what is opened is a sum of one stream of each member, and the honest member's new stream and its old one
    are independent: whatever the dealer's corrections add, the difference is a uniform vector plus a constant.
    """
    seeds = fresh()
    again = {**seeds, honest: new_seed()}
    old, new = deal_mix(SITES, MEMBERS, LAYOUT, seeds), deal_mix(SITES, MEMBERS, LAYOUT, again)
    keys = len(MEMBERS) * KEY_BYTES
    reused = {site: new[site][:keys] + old[site][keys:] for site in SITES}
    (inputs, opened), (inputs_again, opened_again) = mixed(linked, old, seeds), mixed(linked, reused, again)
    for difference in differences(inputs, inputs_again):
        assert chi_square(difference) < 400
    long = [difference for difference in differences(opened, opened_again) if len(difference) >= 256]
    assert len(long) >= 4 and chi_square(np.concatenate(long)) < 400


class NoLink(dict[str, Any]):
    """Links of which none may be used."""

    def __missing__(self, peer: str) -> Any:
        raise AssertionError("a message was about to be sent")


@pytest.mark.parametrize("me", MEMBERS)
def test_a_member_sends_nothing_under_a_mask_that_is_not_from_its_own_fresh_seed(me: str) -> None:
    """With what was dealt for its last seed, from a seed of the dealer, or without any seed of its own."""
    seeds = fresh()
    dealt = deal_mix(SITES, MEMBERS, LAYOUT, seeds)
    for seed in (new_seed(), b""):
        with pytest.raises(MisdealtError, match="another seed than the one"):
            secure_mix(Group(me, SITES, MEMBERS), NoLink(), dealt[me], PROMPT, 0.5, LAYOUT, seed)


def test_a_mixture_on_corrections_of_an_earlier_attempt_is_noise_that_the_sites_refuse(linked: Any) -> None:
    """Where the coin chose the one dealing that was bent: the result is far longer than an upload may be."""
    old, seeds = deal_mix(SITES, MEMBERS, LAYOUT, fresh()), fresh()
    new, keys = deal_mix(SITES, MEMBERS, LAYOUT, seeds), len(MEMBERS) * KEY_BYTES

    def work(group: Group, taps: Any) -> Any:
        dealt = new[group.me][:keys] + old[group.me][keys:]
        mixture = secure_mix(group, taps, dealt, PROMPT, 0.5, LAYOUT, seeds.get(group.me, b""))
        with pytest.raises(SecureAggregationError, match="above the limit for an upload"):
            LAYOUT.check_mixture(mixture, None)
        return "refused"

    assert set(linked(SITES, MEMBERS, work).values()) == {"refused"}
