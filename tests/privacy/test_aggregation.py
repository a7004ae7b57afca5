"""Card of the prompt method, equations 10 and 11: how the server mixes prompts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privacy import AggregationError, Reliability, Unit, mean, mix, reliability_weights

CLAMPED, PAPER = Reliability("clamped"), Reliability("paper")
SITES = ("a", "b", "c", "d")


def prompts(draw: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """One prompt per site from [sites, blocks, tokens, width]."""
    return {site: {"prompt": np.float32(prompt)} for site, prompt in zip(SITES, draw, strict=False)}


def random_uploads(seed: int, sites: int = 4) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, float]]:
    rng = np.random.default_rng(seed)
    return prompts(rng.normal(size=(sites, 3, 4, 8))), dict(zip(SITES, rng.uniform(0.1, 1, sites), strict=False))


def plane(cosine: float) -> np.ndarray:
    """A prompt whose cosine with (1, 0) is given."""
    return np.array([[[cosine, np.sqrt(1 - cosine**2)]]])


def test_raw_weights_of_the_card_s_example() -> None:
    """Accuracies (0.70, 0.80) and cosines (0.011, -0.010): Eq. 11 as printed gives about (-25.7, 26.7)."""
    scores = np.array([0.70 * 0.011, 0.80 * -0.010])
    assert scores / scores.sum() == pytest.approx([-25.667, 26.667], abs=1e-3)
    others = np.stack([plane(0.011), plane(-0.010)])
    with pytest.raises(AggregationError, match="is outside 0..1"):
        reliability_weights(plane(1.0), others, np.array([0.70, 0.80]), PAPER)
    assert reliability_weights(plane(1.0), others, np.array([0.70, 0.80]), CLAMPED).tolist() == [1.0, 0.0]


def test_two_sites_swap_their_prompts_whatever_accuracy_and_similarity() -> None:
    """T = 2: eta = 1 and S_1 = P_2, bit for bit, in both modes."""
    for mode in (CLAMPED, PAPER):
        uploads, accuracy = random_uploads(1, sites=2)
        shared = mix(uploads, accuracy, mode).shared
        assert np.array_equal(shared["a"]["prompt"], uploads["b"]["prompt"])
        assert np.array_equal(shared["b"]["prompt"], uploads["a"]["prompt"])


def test_equal_prompts_and_accuracies_give_equal_weights_and_the_prompt_itself() -> None:
    """Equal prompts and accuracies: eta uniform, S = P."""
    item = np.random.default_rng(0).normal(size=(2, 4, 8))
    uploads = prompts(np.stack([item] * 4))
    mixture = mix(uploads, dict.fromkeys(SITES, 0.5), CLAMPED)
    assert np.allclose(mixture.weights["prompt"], (1 - np.eye(4)) / 3)
    assert np.allclose(mixture.shared["a"]["prompt"], item, atol=1e-6)


@given(st.integers(0, 10_000), st.sampled_from(["prompt", "block", "upload"]), st.floats(0.5, 1), st.integers(3, 9))
def test_no_weight_is_above_the_largest_share(seed: int, unit: Unit, most_share: float, sites: int) -> None:
    """Whatever similarities and accuracies are; weights still sum to 1, and the order of weights stays."""
    rng = np.random.default_rng(seed)
    draw, accuracy = rng.normal(size=(sites, 3, 4, 8)), rng.uniform(0, 1, sites - 1)
    plain = reliability_weights(draw[0], draw[1:], accuracy, Reliability(unit=unit))
    weights = reliability_weights(draw[0], draw[1:], accuracy, Reliability(unit=unit, most_share=most_share))
    assert weights.max() <= most_share + 1e-12 and np.allclose(weights.sum(axis=0), 1)
    assert ((weights - 1 / (sites - 1)) * (plain - 1 / (sites - 1)) >= -1e-12).all()


def test_of_three_sites_one_is_handed_another_s_prompt_unless_weights_are_widened() -> None:
    """Two of three resemble each other: bit for bit without the rule; with it at least a quarter of what divides the
    other two stays between the mixture and either of them. Two sites have no other choice, and are refused."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(2, 4, 8))
    uploads = prompts(np.stack([sign * common + rng.normal(size=common.shape) for sign in (1, 1, -1)]))
    accuracy = dict.fromkeys("abc", 0.7)
    one, other = uploads["b"]["prompt"], uploads["c"]["prompt"]
    assert np.array_equal(mix(uploads, accuracy, CLAMPED).shared["a"]["prompt"], one)
    widened = mix(uploads, accuracy, Reliability(most_share=0.75)).shared["a"]["prompt"]
    apart = np.linalg.norm(one - other)
    assert min(np.linalg.norm(widened - one), np.linalg.norm(widened - other)) >= 0.249 * apart
    with pytest.raises(AggregationError, match="'most_share'"):
        mix({name: uploads[name] for name in "ab"}, accuracy, Reliability(most_share=0.75))


@given(st.integers(0, 10_000), st.sampled_from(["prompt", "block", "upload"]))
def test_clamped_weights_are_a_convex_combination(seed: int, unit: Unit) -> None:
    """Weights lie in 0..1 and sum to 1, so each mixed entry lies between the others' extremes."""
    uploads, accuracy = random_uploads(seed)
    mixture = mix(uploads, accuracy, Reliability("clamped", unit))
    weights = mixture.weights["prompt"]
    assert weights.min() >= 0 and np.allclose(weights.sum(axis=1), 1) and np.all(np.diag(weights) == 0)
    others = np.stack([uploads[site]["prompt"] for site in SITES[1:]])
    shared = mixture.shared["a"]["prompt"]
    assert np.all(shared <= others.max(axis=0) + 1e-5) and np.all(shared >= others.min(axis=0) - 1e-5)


@given(st.integers(0, 10_000), st.permutations(range(4)))
def test_synchronous_mixing_does_not_depend_on_the_order_of_sites(seed: int, order: list[int]) -> None:
    """Permuting the sites permutes the results and changes none."""
    uploads, accuracy = random_uploads(seed)
    expected = mix(uploads, accuracy, CLAMPED).shared
    shuffled = {SITES[i]: uploads[SITES[i]] for i in order}
    given_back = mix(shuffled, accuracy, CLAMPED).shared
    for site in SITES:
        assert np.allclose(given_back[site]["prompt"], expected[site]["prompt"], atol=1e-6)


def test_without_positive_similarity_accuracy_decides_and_then_nothing() -> None:
    """All cosines negative: weights by accuracy; all accuracies zero too: equal weights."""
    others = np.stack([plane(-0.5), plane(-0.2)])
    assert reliability_weights(plane(1.0), others, np.array([0.2, 0.6]), CLAMPED).tolist() == pytest.approx(
        [0.25, 0.75]
    )
    assert reliability_weights(plane(1.0), others, np.zeros(2), CLAMPED).tolist() == [0.5, 0.5]
    similar = np.stack([plane(0.5), plane(0.2)])
    assert reliability_weights(plane(1.0), similar, np.zeros(2), CLAMPED).tolist() == [0.5, 0.5]


def test_zero_prompts_are_similar_to_nothing() -> None:
    """A zero prompt neither divides by zero nor gets weight through similarity."""
    others = np.stack([np.zeros((1, 1, 2)), plane(0.3)])
    weights = reliability_weights(plane(1.0), others, np.array([0.9, 0.5]), CLAMPED)
    assert weights.tolist() == [0.0, 1.0]


def test_by_block_weighs_each_block_by_itself() -> None:
    """A source that is similar in one block and opposed in the other gives the first and not the second."""
    own = np.array([[[1.0, 0.0]], [[1.0, 0.0]]])
    mixed_source, steady = np.array([[[1.0, 0.0]], [[-1.0, 0.0]]]), np.array([[[0.0, 1.0]], [[1.0, 0.0]]])
    weights = reliability_weights(own, np.stack([mixed_source, steady]), np.ones(2), Reliability(unit="block"))
    assert weights.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_the_whole_upload_has_one_weight_that_follows_from_all_its_prompts() -> None:
    """A source that is similar in one prompt and opposed in the other, as much, weighs nothing in either."""
    uploads = {
        "a": {"image": plane(1.0), "text": plane(1.0)},
        "b": {"image": plane(1.0), "text": plane(-1.0)},
        "c": {"image": plane(0.5), "text": plane(0.5)},
    }
    accuracy = dict.fromkeys(uploads, 0.5)
    together = mix(uploads, accuracy, Reliability(unit="upload")).weights
    assert together["image"][0].tolist() == together["text"][0].tolist() == pytest.approx([0, 0, 1])
    assert mix(uploads, accuracy, Reliability()).weights["image"][0, 1] > 0.5


def test_sharing_needs_two_sites() -> None:
    """One site has nobody to receive from."""
    uploads, accuracy = random_uploads(0, sites=1)
    with pytest.raises(AggregationError, match="at least 2 sites"):
        mix(uploads, accuracy, CLAMPED)


@given(
    arrays(np.float32, (4, 2, 3), elements=st.floats(-1e3, 1e3, width=32)),
    st.lists(st.integers(1, 99), min_size=4, max_size=4),
)
def test_weighted_mean_equals_a_float64_reference(values: np.ndarray, rows: list[int]) -> None:
    """The row-weighted mean equals a float64 computation; order of sites does not matter."""
    uploads = {site: {"w": value} for site, value in zip(SITES, values, strict=True)}
    weights = {site: float(count) for site, count in zip(SITES, rows, strict=True)}
    reference = np.average(values.astype(np.float64), axis=0, weights=rows)
    assert np.allclose(mean(uploads, weights)["w"], reference, rtol=1e-5, atol=1e-5)
    backwards = {site: uploads[site] for site in reversed(SITES)}
    assert np.allclose(mean(backwards, weights)["w"], mean(uploads, weights)["w"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", [{"a": -1.0, "b": 2.0}, {"a": 0.0, "b": 0.0}])
def test_means_without_meaning_are_refused(weights: dict[str, float]) -> None:
    """Negative or vanishing weights raise instead of dividing by zero."""
    uploads = {site: {"w": np.ones(2, np.float32)} for site in ("a", "b")}
    with pytest.raises(AggregationError):
        mean(uploads, weights)
