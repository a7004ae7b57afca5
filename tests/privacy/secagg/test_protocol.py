"""The secure mean against the plain one, and what parties see of each other."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privacy.aggregation import mean
from privacy.secagg import Layout, RangeError, SecureAggregationError
from privacy.secagg.crypten_runtime import Party
from privacy.secagg.protocol import combine, masked, secure_mean
from privacy.secagg.randomness import Stream
from privacy.secagg.ring import FixedPoint

FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
shapes = st.dictionaries(st.sampled_from("abc"), st.tuples(*[st.integers(1, 4)] * 3), min_size=1)


def uploads(seed: int, size: int, shapes: dict[str, tuple[int, ...]], scale: float = 0.02) -> list[dict[str, Any]]:
    """Prompts that resemble each other, as those of one federation do."""
    rng = np.random.default_rng(seed)
    common = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return [{n: np.float32(scale * (common[n] + rng.normal(size=s))) for n, s in shapes.items()} for _ in range(size)]


@FEW
@given(st.integers(3, 5), shapes, st.integers(0, 99), st.floats(-20, 30), st.lists(st.integers(0, 4000), min_size=5))
def test_the_mean_is_the_weighted_mean(
    everyone: Any, size: int, shapes: dict[str, Any], seed: int, log_scale: float, weights: list[int]
) -> None:
    """For random shapes, weights and magnitudes up to the range, each site gets the float64 mean to 2^-24."""
    weights[0] += 1
    tensors = uploads(seed, size, shapes, 2.0 ** min(log_scale, 20))
    layout = Layout.of(shapes)
    runs = everyone(size, lambda p: secure_mean(p, tensors[p.rank], weights[p.rank], layout))
    plain = mean(dict(enumerate(tensors)), dict(enumerate(weights[:size])))
    for run in runs:
        for name, expected in plain.items():
            assert np.allclose(run.result[name], expected, rtol=1e-6, atol=2.0**-22)


@pytest.mark.parametrize("size", [3, 4])
def test_the_server_gets_the_mean_from_masked_uploads(everyone: Any, size: int) -> None:
    """Whoever receives all masked uploads learns the mean; the sum of ones shows whether they belong together."""
    layout, tensors = Layout.of({"x": (5,)}), uploads(1, size, {"x": (5,)})
    sent = [run.result for run in everyone(size, lambda p: masked(p, tensors[p.rank], 1 + p.rank, layout))]
    plain = mean(dict(enumerate(tensors)), {rank: 1 + rank for rank in range(size)})
    assert np.allclose(combine(sent, layout)["x"], plain["x"], atol=1e-6)
    again = [run.result for run in everyone(size, lambda p: masked(p, tensors[p.rank], 1, layout))]
    with pytest.raises(SecureAggregationError, match="not those of one attempt"):
        combine([*sent[:-1], again[-1]], layout)
    with pytest.raises(SecureAggregationError, match="another length"):
        combine([*sent[:-1], sent[-1][1:]], layout)
    with pytest.raises(SecureAggregationError, match="fewer than 3 sites"):
        combine(sent[:2], layout)


def test_a_mean_without_any_weight_is_refused(everyone: Any) -> None:
    """Zero rows at every site: there is nothing to divide by."""
    layout = Layout.of({"x": (1,)})
    with pytest.raises(SecureAggregationError, match="no mean"):
        everyone(3, lambda p: secure_mean(p, {"x": np.ones(1, np.float32)}, 0, layout))


def test_bad_input_is_refused_before_anything_is_shared(everyone: Any) -> None:
    """The site sends no message."""
    layout = Layout.of({"p": (2,)})

    def work(party: Party) -> int:
        for bad, weight in ((np.nan, 1), (np.inf, 0), (1.0, -1), (1.0, np.nan), (1e6, 1e6)):
            with pytest.raises(RangeError, match="nothing was shared"):
                masked(party, {"p": np.array([bad, 0])}, weight, layout)
        with pytest.raises(SecureAggregationError, match="not those of the job"):
            masked(party, {"q": np.ones(2, np.float32)}, 1, layout)
        return int(party.communicator.messages)

    assert [run.result for run in everyone(3, work)] == [0] * 3


def chi_square(data: bytes) -> float:
    """Over the values of bytes: mean 255, standard deviation 22.6 if they are uniform."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    return float(((counts - counts.mean()) ** 2).sum() / counts.mean())


@pytest.mark.parametrize("pair", list(combinations(range(4), 2)))
def test_two_of_four_parties_see_nothing_of_the_others_uploads_for_a_mean(everyone: Any, pair: tuple[int, int]) -> None:
    """All masks that two parties know, taken off another's upload, leave uniform bytes, whoever the two are.

    Neighbours in a ring of masks, as CrypTen has them, would be left with the values: the last assertion.
    """
    layout = Layout.of({"x": (20_000,)})
    values = {"x": np.full(20_000, 0.25, np.float32)}
    runs = everyone(4, lambda p: masked(p, values, 1, layout))
    for other in set(range(4)) - set(pair):
        upload = runs[other].result.copy()
        for knower in pair:
            key = runs[knower].taps[f"s{other}"].session.export(b"zero shares")
            mask = Stream(key).ring((layout.size + 2,))
            upload = upload - mask if knower > other else upload + mask
        assert chi_square(upload.tobytes()) < 400
    assert chi_square(FixedPoint(24).encode(values["x"]).tobytes()) > 10_000


def test_the_relay_carries_no_marker(everyone: Any) -> None:
    """A number that fills a site's prompt shows in nothing that the relay sees, as float or in fixed point."""
    layout, value = Layout.of({"p": (4, 64)}), np.float32(0.123456)
    prompt = {"p": np.full((4, 64), value)}
    runs = everyone(3, lambda p: secure_mean(p, prompt, 1, layout))
    markers = [
        value.tobytes(),
        np.float64(value).tobytes(),
        *(FixedPoint(b).encode(value).tobytes() for b in (20, 24, 26)),
    ]
    relayed = b"".join(message for run in runs for message in run.relayed)
    assert len(relayed) > 6_000 and not any(marker in relayed for marker in markers)


def test_no_torch_or_numpy_generator_is_consulted(everyone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every source of torch's randomness replaced by an alarm, it runs; the global states stay."""

    def alarm(*_: Any, **__: Any) -> None:
        raise AssertionError("a torch generator was consulted")

    layout, tensors = Layout.of({"p": (2, 3)}), uploads(5, 3, {"p": (2, 3)})
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1]
    with monkeypatch.context() as patch:
        for name in ("rand", "randn", "randint", "randperm", "bernoulli", "normal", "Generator", "manual_seed", "seed"):
            patch.setattr(torch, name, alarm)
        for name in ("random_", "uniform_", "normal_", "bernoulli_"):
            patch.setattr(torch.Tensor, name, alarm)
        everyone(3, lambda p: secure_mean(p, tensors[p.rank], 1, layout))
    assert torch.equal(before, torch.get_rng_state()) and np.array_equal(numpy_before, np.random.get_state()[1])
