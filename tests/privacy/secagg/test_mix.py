"""The secure mixture against the plain one: all sites as members, and committees."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from privacy.aggregation import Reliability, Unit, mix
from privacy.secagg import Group, RangeError, SecureAggregationError, TensorLayout
from privacy.secagg.cut_and_choose import new_seed
from privacy.secagg.protocol import deal_mix, secure_mix

FEW = settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
shapes = st.dictionaries(st.sampled_from("abc"), st.tuples(*[st.integers(1, 4)] * 3), min_size=1)


def uploads(seed: int, size: int, shapes: dict[str, tuple[int, ...]], log_norm: float = 0) -> list[dict[str, Any]]:
    """Prompts that resemble each other, as those of one federation do; the norm of each block is about 2^log_norm."""
    rng = np.random.default_rng(seed)
    common = {name: rng.normal(size=shape) for name, shape in shapes.items()}

    def item(name: str) -> np.ndarray:
        prompt = common[name] + rng.normal(size=shapes[name])
        lengths = np.linalg.norm(prompt.reshape(len(prompt), -1), axis=1).reshape(-1, *[1] * (prompt.ndim - 1))
        return np.float32(prompt / lengths * 2.0 ** (log_norm + rng.uniform(-0.3, 0.3)))

    return [{name: item(name) for name in shapes} for _ in range(size)]


def assert_as_in_clear(
    found: dict[str, Any],
    tensors: list[dict[str, Any]],
    accuracy: list[float],
    unit: Unit = "prompt",
    most_share: float = 1.0,
) -> None:
    """Every site's within 1e-3 of the plain mixture, relative to its norm."""
    prompts = dict(zip(found, tensors, strict=True))
    expected = mix(prompts, dict(zip(found, accuracy, strict=True)), Reliability(unit=unit, most_share=most_share))
    for name, site in found.items():
        for tensor, plain in expected.shared[name].items():
            assert np.linalg.norm(site.mixture[tensor] - plain) <= 1e-3 * np.linalg.norm(plain)


def one_alike() -> list[np.ndarray]:
    """Three prompts, [1, 4, 64] each, of which only the first two have a positive cosine."""
    rng = np.random.default_rng(3)
    common = rng.normal(size=(1, 4, 64))
    return [np.float32(sign * common + rng.normal(size=common.shape)) for sign in (1, 1, -1)]


def unread(mixture: np.ndarray, prompt: np.ndarray) -> float:
    """What the best multiple of a mixture leaves of a prompt, relative to the prompt's norm."""
    unit = mixture / np.linalg.norm(mixture)
    return float(np.linalg.norm(prompt - (prompt * unit).sum() * unit) / np.linalg.norm(prompt))


accuracies = st.lists(st.floats(0.01, 1), min_size=12, max_size=12)
log_norms = st.floats(-4, 8)
units = st.sampled_from(["prompt", "block", "upload"])


@FEW
@given(st.integers(3, 8), shapes, st.integers(0, 999), units, accuracies, log_norms)
def test_the_mixture_is_that_of_the_plain_computation(
    together: Any, size: int, shapes: Any, seed: int, unit: Unit, accuracy: list[float], log_norm: float
) -> None:
    """3 to 8 sites that all compute, random shapes, whole prompts and blocks, norms over the range."""
    tensors, layout = uploads(seed, size, shapes, log_norm), TensorLayout.of(shapes, unit)
    result = together(tensors, accuracy[:size], layout)
    assert_as_in_clear(result, tensors, accuracy[:size], unit)


@FEW
@given(st.integers(3, 8), shapes, st.integers(0, 999), accuracies, log_norms, st.floats(0.5, 1))
def test_a_widened_mixture_is_that_of_the_plain_computation(
    together: Any, size: int, shapes: Any, seed: int, accuracy: list[float], log_norm: float, most_share: float
) -> None:
    """The members widen the weights, which none of them knows, as the server does in clear."""
    tensors, layout = uploads(seed, size, shapes, log_norm), TensorLayout.of(shapes)
    result = together(tensors, accuracy[:size], layout, most_share=most_share)
    assert_as_in_clear(result, tensors, accuracy[:size], most_share=most_share)


@pytest.mark.parametrize(("most_share", "least", "most"), [(1.0, 0.0, 1e-3), (0.75, 0.15, 1.0), (0.5, 0.5, 1.0)])
def test_a_mixture_on_shares_is_no_other_site_s_prompt_where_it_is_widened(
    together: Any, most_share: float, least: float, most: float
) -> None:
    """Three sites, of which the second alone resembles the first: without the rule it is handed over."""
    tensors, layout = [{"p": prompt} for prompt in one_alike()], TensorLayout.of({"p": (1, 4, 64)})
    mixture = together(tensors, [0.7, 0.7, 0.7], layout, most_share=most_share)["s000"].mixture["p"]
    assert least <= unread(mixture, tensors[1]["p"]) <= most


@FEW
@given(st.integers(4, 12), shapes, st.integers(0, 999), units, accuracies, log_norms)
def test_a_committee_of_three_gives_every_site_the_same_mixture(
    together: Any, size: int, shapes: Any, seed: int, unit: Unit, accuracy: list[float], log_norm: float
) -> None:
    """4 to 12 sites of which 3 compute; the others send one message to each of these and receive one."""
    tensors, layout = uploads(seed, size, shapes, log_norm), TensorLayout.of(shapes, unit)
    result = together(tensors, accuracy[:size], layout, members=3)
    assert_as_in_clear(result, tensors, accuracy[:size], unit)
    for site in list(result.values())[3:]:
        assert [len(tap.received) for tap in site.taps.values()] == [1, 1, 1]


@pytest.mark.parametrize("norm", [0.05, 1.0, 1000.0])
def test_the_mixture_holds_over_the_stated_range_of_norms(together: Any, norm: float) -> None:
    """0.05 to 1024, long vectors whose directions are all but orthogonal."""
    rng = np.random.default_rng(4)
    shape = (2, 4, 256)
    raw = [rng.normal(size=shape) + 0.05 * np.ones(shape) for _ in range(4)]
    tensors = [{"p": np.float32(norm * prompt / np.linalg.norm(prompt))} for prompt in raw]
    accuracy = [0.9, 0.02, 0.5, 0.7]
    assert_as_in_clear(together(tensors, accuracy, TensorLayout.of({"p": shape})), tensors, accuracy)


AXES = [np.float32(np.eye(4)[axis] + shift).reshape(1, 1, 4) for axis, shift in ((0, 0), (1, 0), (2, 0), (3, 0))]


@pytest.mark.parametrize("members", [None, 3])
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
def test_fall_backs_are_those_of_the_plain_mixture(
    together: Any, prompts: list[Any], accuracy: list[float], members: int | None
) -> None:
    """No positive similarity: by accuracy; no accuracy: equal weights; negative similarity counts as none."""
    tensors = [{"p": prompt} for prompt in prompts]
    assert_as_in_clear(together(tensors, accuracy, TensorLayout.of({"p": (1, 1, 4)}), members), tensors, accuracy)


@pytest.mark.parametrize(
    ("cosine", "accuracy"), [(2.0**-14, 1.0), (2.0**-9, 1.0), (2.0**-9, 2.0**-6), (0.01, 1.0), (1.0, 2.0**-6)]
)
def test_small_sums_of_scores_are_divided_as_exactly_as_large_ones(
    together: Any, cosine: float, accuracy: float
) -> None:
    """Down to the threshold below which they count as none, 2^-16, with a factor of 2 to spare here."""
    prompts = [np.float32(row).reshape(1, 1, 3) for row in ([1, 0, 0], [cosine, 1, 0], [0.3 * cosine, 0, 1])]
    tensors, values = [{"p": prompt} for prompt in prompts], [accuracy] * 3
    result = together(tensors, values, TensorLayout.of({"p": (1, 1, 3)}))
    plain = mix(dict(zip(result, tensors, strict=True)), dict(zip(result, values, strict=True)), Reliability())
    expected = plain.shared["s000"]["p"]
    assert np.linalg.norm(result["s000"].mixture["p"] - expected) <= 1e-3 * np.linalg.norm(expected)


class NoLink(dict[str, Any]):
    """Links of which none may be used."""

    def __missing__(self, peer: str) -> Any:
        raise AssertionError("a message was about to be sent")


@pytest.mark.parametrize(
    ("value", "accuracy"), [(np.nan, 0.5), (np.inf, 0.5), (1e4, 0.5), (1.0, 1.01), (1.0, -0.1), (1.0, np.nan)]
)
def test_bad_input_is_refused_before_anything_is_shared(value: float, accuracy: float) -> None:
    """Not finite, longer than 1024, an accuracy outside 0..1: the site sends no message."""
    layout, sites = TensorLayout.of({"p": (2,)}), ("a", "b", "c")
    seeds = {site: new_seed() for site in sites}
    dealt = deal_mix(sites, sites, layout, seeds)
    with pytest.raises(RangeError, match="nothing was shared"):
        prompt = {"p": np.array([value, 0], np.float32)}
        secure_mix(Group("a", sites, sites), NoLink(), dealt["a"], prompt, accuracy, layout, seeds["a"])
    with pytest.raises(SecureAggregationError, match="not those of the job"):
        secure_mix(Group("a", sites, sites), NoLink(), dealt["a"], {"q": np.zeros(2)}, 0.5, layout, seeds["a"])
    with pytest.raises(SecureAggregationError, match="another computation"):
        secure_mix(Group("a", sites, sites), NoLink(), b"", {"p": np.zeros(2)}, 0.5, layout, seeds["a"])


def test_what_is_revealed_is_blurred_below_the_precision_stated(together: Any) -> None:
    """Mixtures of nothing: not exactly nothing, since exact low bits could be factored, but within members * 2^-25."""
    layout = TensorLayout.of({"p": (4, 64)})
    for site in together([layout.zeros()] * 3, [0.5] * 3, layout).values():
        assert 2.0**-27 < np.abs(site.mixture["p"]).max() <= 3 * 2.0**-25
        assert np.unique(site.mixture["p"]).size > 200


def test_ten_exchanges_among_the_members(together: Any) -> None:
    """And one message to each of them with the input, one from each with the mixture: over FLARE each costs 60 ms."""
    shapes = {"p": (2, 4, 8)}
    result = together(uploads(1, 5, shapes), [0.5] * 5, TensorLayout.of(shapes))
    assert {len(tap.received) for site in result.values() for tap in site.taps.values()} == {12}


def test_more_sites_than_fit_the_ring_are_refused() -> None:
    """By the dealer, before anything is sent: the sums of 513 scores would leave too few bits to compare."""
    sites = tuple(f"s{rank:03}" for rank in range(513))
    with pytest.raises(SecureAggregationError, match="more than 512 sites"):
        deal_mix(sites, sites[:3], TensorLayout.of({"p": (1,)}), {site: new_seed() for site in sites[:3]})


def sent_bytes(site: Any) -> int:
    return sum(map(len, site.relayed))


@pytest.mark.release
def test_two_hundred_sites_with_a_committee_of_three(together: Any) -> None:
    """Right for every site; who is no member sends and receives as much among 200 sites as among 50, members linearly.

    So does the dealer's message to it; the members' traffic and the dealer's messages to them grow with the sites.
    """
    shapes = {"image": (2, 2, 8), "text": (2, 2, 8)}
    layout, seen = TensorLayout.of(shapes), []
    for size in (50, 200):
        tensors = uploads(size, size, shapes)
        accuracy = np.random.default_rng(size).uniform(0.2, 0.9, size).tolist()
        result = together(tensors, accuracy, layout, members=3)
        assert_as_in_clear(result, tensors, accuracy)
        outsiders = list(result.values())[3:]
        received = {sum(len(part) for tap in site.taps.values() for part in tap.received) for site in outsiders}
        seen.append((received, {sent_bytes(site) for site in outsiders}, {len(site.dealt) for site in outsiders}))
        assert all(len(figure) == 1 for figure in seen[-1])
    assert seen[0] == seen[1]
