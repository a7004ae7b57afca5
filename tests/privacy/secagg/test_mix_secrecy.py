"""What sites, members and not, see of each other while they mix."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from privacy.secagg import SecureAggregationError, TensorLayout
from privacy.secagg.cut_and_choose import new_seed
from privacy.secagg.protocol import deal_mix, secure_mix
from privacy.secagg.ring import KEY_BYTES, FixedPoint, Stream
from privacy.secagg.tuples import mask_key

LAYOUT = TensorLayout.of({"p": (8, 4, 125)}, "block")
"""By block, so that there are comparisons enough for statistics."""
KINDS = {
    "zeros": np.zeros((8, 4, 125)),
    "ones": np.ones((8, 4, 125)),
    "spread": np.linspace(-1, 1, 4000).reshape(8, 4, 125),
}


def chi_square(elements: np.ndarray) -> float:
    """Over the values of bytes: mean 255, standard deviation 22.6 if they are uniform."""
    counts = np.bincount(np.frombuffer(elements.tobytes(), np.uint8), minlength=256)
    return float(((counts - counts.mean()) ** 2).sum() / counts.mean())


def assert_uniform(messages: list[np.ndarray]) -> None:
    """Each long one by itself, and all together."""
    for message in messages:
        assert len(message) < 256 or chi_square(message) < 400
    assert chi_square(np.concatenate(messages)) < 400


def received(site: Any, peer: str) -> list[np.ndarray]:
    return [np.frombuffer(part, "<u8") for part in site.taps[peer].received]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("members", [3, 4])
def test_all_that_a_member_receives_and_all_that_is_opened_is_uniform(together: Any, kind: str, members: int) -> None:
    """Whatever the others hold: inputs, every message of every member, their sums and exclusive ors, but the result."""
    result = together([{"p": np.float32(KINDS[kind])}] * 4, [1.0] * 4, LAYOUT, members)
    me, *others = list(result)[:members]
    from_each = [received(result[me], other) for other in others]
    for messages in from_each:
        assert len(messages) == 12
        assert_uniform(messages)
    for owner in list(result)[members:]:
        assert_uniform(received(result[me], owner))
    own = received(result[others[0]], me)
    # Without the inputs, which are not shares, and the last messages, which are for one reader.
    exchanged = [np.stack(parts) for parts in zip(own[1:-1], *[each[1:-1] for each in from_each], strict=True)]
    for opened in (np.sum, np.bitwise_xor.reduce):
        assert_uniform([opened(shares, axis=0) for shares in exchanged])


def test_what_an_owner_receives_is_uniform_but_for_the_sum(together: Any) -> None:
    """The members' shares of its mixture, and the sums of any two of them, with its correction or without."""
    result = together([{"p": np.float32(KINDS["ones"])}] * 5, [1.0] * 5, LAYOUT, members=3)
    owner = list(result.values())[-1]
    shares = [received(owner, peer)[0] for peer in owner.taps]
    correction = np.frombuffer(owner.dealt[3 * KEY_BYTES :], "<u8")
    parts = [*shares, correction]
    for size in (1, 2, 3):
        assert_uniform([np.sum(chosen, axis=0, dtype=np.uint64) for chosen in combinations(parts, size)])
    assert chi_square(np.sum(parts, axis=0, dtype=np.uint64)) > 10_000


@pytest.mark.parametrize("members", [3, 4])
def test_all_members_but_one_and_any_outsiders_see_nothing_of_another_input(together: Any, members: int) -> None:
    """Of 6 sites: all shares of its mask that they know, added to another owner's input, leave uniform bytes.

    So does, of what the honest member sends, everything. With the last member's shares as well nothing is hidden.
    """
    result = together([{"p": np.float32(KINDS["spread"])}] * 6, [0.5] * 6, LAYOUT, members)
    sites = list(result)
    seeds = {site: result[site].seed for site in sites[:members]}
    for honest in sites[:members]:
        known = [seed for site, seed in seeds.items() if site != honest]
        coalition = next(site for site in sites[:members] if site != honest)
        for owner in {honest, sites[-1]}:
            masked = received(result[coalition], owner)[0].copy()
            for seed in known:
                masked += Stream(mask_key(seed, sites.index(owner))).ring(masked.shape)
                assert chi_square(masked) < 400
            bare = masked + Stream(mask_key(seeds[honest], sites.index(owner))).ring(masked.shape)
            assert chi_square(bare) > 10_000
        assert_uniform(received(result[coalition], honest))


def test_the_relay_carries_no_marker(together: Any) -> None:
    """A number that fills a site's prompt shows in nothing that the relay sees, as float or in fixed point."""
    layout, value = TensorLayout.of({"p": (4, 64)}), np.float32(0.123456)
    result = together([{"p": np.full((4, 64), value)}] * 4, [0.5] * 4, layout, 3)
    markers = [value.tobytes(), np.float64(value).tobytes()]
    markers += [FixedPoint(bits).encode(number).tobytes() for bits in (20, 24, 26) for number in (value, 1 / 16)]
    relayed = b"".join(message for site in result.values() for message in site.relayed)
    assert len(relayed) > 10_000 and not any(marker in relayed for marker in markers)


def test_two_runs_on_the_same_values_have_nothing_in_common(together: Any) -> None:
    """A repeated round shows fresh randomness only."""
    layout = TensorLayout.of({"p": (8, 8)})
    tensors = [{"p": np.full((8, 8), 0.1 + rank, np.float32)} for rank in range(4)]
    seen = [
        {
            message
            for site in together(tensors, [0.5] * 4, layout, 3).values()
            for tap in site.taps.values()
            for message in tap.received
        }
        for _ in range(2)
    ]
    assert seen[0] and not seen[0] & seen[1]


def test_no_torch_or_numpy_generator_is_consulted(together: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every source of torch's randomness replaced by an alarm, the protocol runs; the global states stay."""

    def alarm(*_: Any, **__: Any) -> None:
        raise AssertionError("a torch generator was consulted")

    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1]
    with monkeypatch.context() as patch:
        for name in ("rand", "randn", "randint", "randperm", "bernoulli", "normal", "Generator", "manual_seed", "seed"):
            patch.setattr(torch, name, alarm)
        for name in ("random_", "uniform_", "normal_", "bernoulli_"):
            patch.setattr(torch.Tensor, name, alarm)
        together([{"p": np.ones((2, 3), np.float32)}] * 4, [0.5] * 4, TensorLayout.of({"p": (2, 3)}), 3)
    assert torch.equal(before, torch.get_rng_state()) and np.array_equal(numpy_before, np.random.get_state()[1])


@pytest.mark.parametrize(
    ("fails", "sends", "message"),
    [("s001", b"", "was silent"), ("s003", b"", "was silent"), ("s003", b"garbage", "'s003' sent 7 bytes")],
)
def test_members_name_the_site_that_is_silent_or_sends_garbage(
    fails: str, sends: bytes, message: str, linked: Any
) -> None:
    """A member or an owner that sends no input, without which the others can go on; or an input of another length: one
    of the right length that is noise cannot be told from a masked one."""
    layout = TensorLayout.of({"p": (2, 2)})
    sites, members = ("s000", "s001", "s002", "s003"), ("s000", "s001", "s002")
    seeds = {member: new_seed() for member in members}
    dealt = deal_mix(sites, members, layout, seeds)

    def work(group: Any, taps: Any) -> Any:
        if group.me == fails:
            return [taps[member].send(sends) for member in members if sends]
        for tap in () if sends else taps.values():
            # Whoever is not a member waits for members that wait.
            object.__setattr__(tap.link, "timeout", 0.5 if group.is_member else 3.0)
        prompt = {"p": np.ones((2, 2), np.float32)}
        with pytest.raises(SecureAggregationError, match=message) as raised:
            secure_mix(group, taps, dealt[group.me], prompt, 0.5, layout, seeds.get(group.me, b""))
        return raised.value.site

    named = linked(sites, members, work)
    assert {named[member] for member in members if member != fails} == {fails}
