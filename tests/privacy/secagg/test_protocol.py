"""Secure mean and mixture against the plain ones, and what parties see of each other."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privacy.aggregation import Reliability, mix
from privacy.secagg import Layout, RangeError, SecureAggregationError
from privacy.secagg.crypten_runtime import Party
from privacy.secagg.protocol import deal_mix, secure_mix
from privacy.secagg.ring import FixedPoint

FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
shapes = st.dictionaries(st.sampled_from("abc"), st.tuples(*[st.integers(1, 4)] * 3), min_size=1)


def uploads(seed: int, size: int, shapes: dict[str, tuple[int, ...]], scale: float = 0.02) -> list[dict[str, Any]]:
    """Prompts that resemble each other, as those of one federation do."""
    rng = np.random.default_rng(seed)
    common = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return [{n: np.float32(scale * (common[n] + rng.normal(size=s))) for n, s in shapes.items()} for _ in range(size)]


def mixed(everyone: Any, tensors: list[dict[str, Any]], accuracy: list[float], layout: Layout) -> list[dict[str, Any]]:
    """Each site's result."""

    def work(party: Party) -> Any:
        return secure_mix(party, tensors[party.rank], accuracy[party.rank], layout)

    return [run.result for run in everyone(len(tensors), work, deal_mix(len(tensors), layout))]


def assert_as_in_clear(
    found: list[dict[str, Any]], tensors: list[dict[str, Any]], accuracy: list[float], by_block: bool = False
) -> None:
    """Within 1e-3 of the plain mixture, relative to its norm."""
    names = [f"s{rank}" for rank in range(len(tensors))]
    expected = mix(
        dict(zip(names, tensors, strict=True)), dict(zip(names, accuracy, strict=True)), Reliability(by_block=by_block)
    )
    for name, result in zip(names, found, strict=True):
        for tensor, plain in expected.shared[name].items():
            assert np.linalg.norm(result[tensor] - plain) <= 1e-3 * np.linalg.norm(plain)


@FEW
@given(st.integers(3, 5), shapes, st.integers(0, 999), st.booleans(), st.lists(st.floats(0.01, 1), min_size=5))
def test_the_mixture_is_that_of_the_plain_computation(
    everyone: Any, size: int, shapes: dict[str, Any], seed: int, by_block: bool, accuracy: list[float]
) -> None:
    """3 to 5 parties, random shapes, whole prompts and blocks."""
    tensors, layout = uploads(seed, size, shapes), Layout.of(shapes, by_block)
    found = mixed(everyone, tensors, accuracy[:size], layout)
    assert_as_in_clear(found, tensors, accuracy[:size], by_block)


@pytest.mark.parametrize("norm", [0.05, 1.0, 1000.0])
def test_the_mixture_holds_over_the_stated_range_of_norms(everyone: Any, norm: float) -> None:
    """0.05 to 1024, long vectors whose directions are all but orthogonal."""
    rng = np.random.default_rng(4)
    shape = (2, 4, 256)
    raw = [rng.normal(size=shape) + 0.05 * np.ones(shape) for _ in range(4)]
    tensors = [{"p": np.float32(norm * prompt / np.linalg.norm(prompt))} for prompt in raw]
    accuracy = [0.9, 0.02, 0.5, 0.7]
    assert_as_in_clear(mixed(everyone, tensors, accuracy, Layout.of({"p": shape})), tensors, accuracy)


AXES = [np.float32(np.eye(4)[axis] + shift).reshape(1, 1, 4) for axis, shift in ((0, 0), (1, 0), (2, 0), (3, 0))]


@pytest.mark.parametrize(
    ("prompts", "accuracy"),
    [
        (AXES, [0.2, 0.9, 0.5, 0.4]),
        (AXES, [0.0, 0.0, 0.0, 0.0]),
        (AXES, [0.6, 0.0, 0.0, 0.0]),
        ([AXES[0], -AXES[0], AXES[0], AXES[0] + AXES[1]], [0.2, 0.9, 0.5, 0.4]),
        ([AXES[0], -AXES[0], -AXES[0]], [0.2, 0.9, 0.5]),
        ([AXES[0], 0 * AXES[0], AXES[0]], [0.2, 0.9, 0.5]),
        ([AXES[0]] * 5, [1.0] * 5),
    ],
    ids=["orthogonal", "no accuracy", "only one knows", "negative", "all negative", "a zero prompt", "equal"],
)
def test_fall_backs_are_those_of_the_plain_mixture(everyone: Any, prompts: list[Any], accuracy: list[float]) -> None:
    """No positive similarity: by accuracy; no accuracy: equal weights; negative similarity counts as none."""
    tensors = [{"p": prompt} for prompt in prompts]
    assert_as_in_clear(mixed(everyone, tensors, accuracy, Layout.of({"p": (1, 1, 4)})), tensors, accuracy)


@pytest.mark.parametrize(
    ("value", "accuracy"),
    [
        (np.nan, 0.5),
        (np.inf, 0.5),
        (1e4, 0.5),
        (1.0, 1.01),
        (1.0, np.nan),
    ],
)
def test_bad_input_is_refused_before_anything_is_shared(everyone: Any, value: float, accuracy: float) -> None:
    """The site sends no message."""
    layout = Layout.of({"p": (2,)})
    prompt = {"p": np.array([value, 0], np.float32)}

    def work(party: Party) -> int:
        with pytest.raises(RangeError):
            secure_mix(party, prompt, accuracy, layout)
        with pytest.raises(SecureAggregationError, match="not those of the job"):
            secure_mix(party, {"q": prompt["p"]}, 0.5, layout)
        return int(party.communicator.messages)

    assert [run.result for run in everyone(3, work)] == [0] * 3


def chi_square(data: bytes) -> float:
    """Over the values of bytes: mean 255, standard deviation 22.6 if they are uniform."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    return float(((counts - counts.mean()) ** 2).sum() / counts.mean())


def assert_uniform(messages: list[np.ndarray]) -> None:
    """Ring elements: all bytes alike. Single bits, which conversions from bits exchange: zeros and ones alike."""
    single = np.concatenate([message for message in messages if message.max() <= 1])
    full = np.concatenate([message for message in messages if message.max() > 1])
    assert abs(single.mean() - 0.5) < 6 * 0.5 / np.sqrt(single.size) and single.size > 50
    assert chi_square(full.tobytes()) < 400


@pytest.mark.parametrize("kind", ["zeros", "ones", "spread"])
def test_all_that_a_party_receives_in_a_mixture_is_uniform_whatever_the_others_hold(everyone: Any, kind: str) -> None:
    """Every message from each other of four parties, and every value that is opened, but the result."""
    shape = (2, 4, 500)
    one = {"zeros": np.zeros(shape), "ones": np.ones(shape), "spread": np.linspace(-1, 1, 4000).reshape(shape)}[kind]
    layout = Layout.of({"p": shape})
    runs = everyone(4, lambda p: secure_mix(p, {"p": np.float32(one)}, 1.0, layout), deal_mix(4, layout))
    from_each = [[np.frombuffer(part, "<u8") for part in runs[0].taps[peer].received] for peer in ("s1", "s2", "s3")]
    own = [np.frombuffer(part, "<u8") for part in runs[1].taps["s0"].received]
    for messages in from_each:
        assert_uniform(messages)
    shares = [np.stack(parts) for parts in zip(own, *from_each, strict=True)]
    # Some are opened by addition, some by exclusive or: neither shows anything.
    for opened in (np.sum, np.bitwise_xor.reduce):
        how = [np.bitwise_xor.reduce if each.max() <= 1 else opened for each in shares]
        assert_uniform([join(each, axis=0) for join, each in zip(how[1:-1], shares[1:-1], strict=True)])


def test_what_is_revealed_is_blurred_below_the_precision_stated(everyone: Any) -> None:
    """Mixtures of nothing: not exactly nothing, since exact low bits could be factored, but within parties * 2^-25."""
    layout = Layout.of({"p": (4, 64)})
    found = mixed(everyone, [layout.zeros()] * 3, [0.5] * 3, layout)
    for result in found:
        assert 2.0**-27 < np.abs(result["p"]).max() <= 3 * 2.0**-25
        assert np.unique(result["p"]).size > 200


def test_the_relay_carries_no_marker(everyone: Any) -> None:
    """A number that fills a site's prompt shows in nothing that the relay sees, as float or in fixed point."""
    layout, value = Layout.of({"p": (4, 64)}), np.float32(0.123456)
    prompt = {"p": np.full((4, 64), value)}
    runs = everyone(3, lambda p: secure_mix(p, prompt, 0.5, layout), deal_mix(3, layout))
    markers = [
        value.tobytes(),
        np.float64(value).tobytes(),
        *(FixedPoint(b).encode(value).tobytes() for b in (20, 24, 26)),
    ]
    markers += [FixedPoint(26).encode(1 / 16).tobytes()]
    relayed = b"".join(message for run in runs for message in run.relayed)
    assert len(relayed) > 10_000 and not any(marker in relayed for marker in markers)


def test_two_runs_on_the_same_values_have_nothing_in_common(everyone: Any) -> None:
    """A repeated round shows fresh randomness only."""
    layout, tensors = Layout.of({"p": (8, 8)}), uploads(3, 3, {"p": (8, 8)})
    seen = [
        {
            message
            for run in everyone(3, lambda p: secure_mix(p, tensors[p.rank], 0.5, layout), deal_mix(3, layout))
            for tap in run.taps.values()
            for message in tap.received
            if len(message) >= 64
        }
        for _ in range(2)
    ]
    assert seen[0] and not seen[0] & seen[1]


def test_no_torch_or_numpy_generator_is_consulted(everyone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every source of torch's randomness replaced by an alarm, all protocols run; the global states stay."""

    def alarm(*_: Any, **__: Any) -> None:
        raise AssertionError("a torch generator was consulted")

    layout, tensors = Layout.of({"p": (2, 3)}), uploads(5, 3, {"p": (2, 3)})
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1]
    with monkeypatch.context() as patch:
        for name in ("rand", "randn", "randint", "randperm", "bernoulli", "normal", "Generator", "manual_seed", "seed"):
            patch.setattr(torch, name, alarm)
        for name in ("random_", "uniform_", "normal_", "bernoulli_"):
            patch.setattr(torch.Tensor, name, alarm)
        mixed(everyone, tensors, [0.5] * 3, layout)
    assert torch.equal(before, torch.get_rng_state()) and np.array_equal(numpy_before, np.random.get_state()[1])


def test_a_silent_party_is_named(everyone: Any) -> None:
    """The others can go on without it."""
    layout, tensors = Layout.of({"p": (2, 2)}), uploads(6, 3, {"p": (2, 2)})

    def work(party: Party) -> Any:
        if party.rank == 1:
            return "gone"
        for wire in party.communicator._wires.values():
            object.__setattr__(wire.link, "timeout", 0.3)
        with pytest.raises(SecureAggregationError, match="'s1' was silent") as raised:
            secure_mix(party, tensors[party.rank], 0.5, layout)
        return raised.value.site

    assert [run.result for run in everyone(3, work, deal_mix(3, layout))] == ["s1", "gone", "s1"]


def test_a_round_is_fast_enough(everyone: Any) -> None:
    """25,600 floats, three parties in one process: well below the targets of 0.3 s and 1.5 s for a round."""
    shapes = {"image": (50, 2, 128), "text": (50, 2, 128)}
    layout, tensors = Layout.of(shapes), uploads(7, 3, shapes)
    began = time.perf_counter()
    mixed(everyone, tensors, [0.5] * 3, layout)
    assert time.perf_counter() - began < 1.5
