"""How a server combines uploads of which some are lies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audits import Tensors
from privacy import AggregationError, Gathering, mean

LIES = st.sampled_from([1e30, -1e30, 3.4e38, 1e9, 0.0, -5.0])


def uploads(honest: int, liars: int, seed: int) -> dict[str, Tensors]:
    """The liars come last."""
    rng = np.random.default_rng(seed)
    return {f"s{number}": {"x": np.float32(rng.normal(size=(3, 4)))} for number in range(honest + liars)}


def most_liars(rule: str, sites: int) -> int:
    """As documented: a fifth, rounded up, for `trimmed`; fewer than half for `median`."""
    return (sites - 1) // 2 if rule == "median" else -(-sites // 5)


@given(st.sampled_from(["trimmed", "median"]), st.integers(3, 25), st.integers(0, 999), st.lists(LIES, min_size=12))
def test_liars_do_not_move_the_result_out_of_the_honest_range(
    rule: str, sites: int, seed: int, lies: list[float]
) -> None:
    """Coordinate by coordinate, with as many liars as the rule bears, whatever they send and claim to weigh."""
    liars = most_liars(rule, sites)
    sent = uploads(sites - liars, liars, seed)
    honest = np.stack([sent[f"s{number}"]["x"] for number in range(sites - liars)])
    for number, lie in zip(range(sites - liars, sites), lies * 2, strict=False):
        sent[f"s{number}"]["x"] = np.full((3, 4), lie, np.float32)
    weights = {site: 1e30 if int(site[1:]) >= sites - liars else 1.0 for site in sent}
    result = Gathering(rule).gathered(sent, weights)["x"]
    assert (honest.min(axis=0) <= result).all() and (result <= honest.max(axis=0)).all()


@pytest.mark.parametrize(("sites", "liars"), [(5, 1), (6, 2), (10, 2), (11, 3)])
@pytest.mark.parametrize("lie", [1e9, -1e9])
def test_the_trimmed_mean_bears_one_liar_in_five_rounded_up_and_no_more(sites: int, liars: int, lie: float) -> None:
    """At either end: as many lies leave it among the honest values, and one more pulls it away."""

    def gathered(lying: int) -> float:
        sent = {f"{place:02d}": {"x": np.array([lie if place < lying else 1.0])} for place in range(sites)}
        return float(Gathering("trimmed").gathered(sent)["x"][0])

    assert gathered(liars) == 1.0
    assert abs(gathered(liars + 1)) > 1e6


@pytest.mark.parametrize("rule", ["trimmed", "median"])
def test_one_liar_more_than_the_rule_bears_moves_it(rule: str) -> None:
    """The bound that is stated is the one that holds."""
    liars = most_liars(rule, 10) + 1
    sent = uploads(10 - liars, liars, 1)
    for number in range(10 - liars, 10):
        sent[f"s{number}"]["x"] = np.full((3, 4), 1e30, np.float32)
    assert np.abs(Gathering(rule).gathered(sent)["x"]).max() > 1e28


def test_a_plain_mean_is_moved_by_one_value_and_a_robust_one_is_not() -> None:
    """What the option is for."""
    sent = uploads(4, 1, 0)
    sent["s4"]["x"] = np.full((3, 4), 1e30, np.float32)
    assert np.abs(Gathering().gathered(sent)["x"]).max() > 1e29
    assert all(np.abs(Gathering(rule).gathered(sent)["x"]).max() < 4 for rule in ("trimmed", "median"))


@pytest.mark.parametrize("count", [3, 4, 5, 10])
def test_the_rules_are_those_of_the_paper(count: int) -> None:
    """The coordinate-wise median, and the mean without the smallest and largest fifth; dtypes stay."""
    sent = uploads(count, 0, 3)
    stack = np.sort(np.stack([tensors["x"] for tensors in sent.values()]).astype(np.float64), axis=0)
    cut = {3: 1, 4: 1, 5: 1, 10: 2}[count]
    expected = {"median": np.median(stack, axis=0), "trimmed": stack[cut : count - cut].mean(axis=0)}
    for rule, array in expected.items():
        result = Gathering(rule).gathered(sent)["x"]
        assert result.dtype == np.float32 and np.allclose(result, array, rtol=1e-6)


def test_without_a_rule_weights_count_as_before() -> None:
    """`mean` is the default."""
    sent = uploads(3, 0, 5)
    weights = {"s0": 1.0, "s1": 2.0, "s2": 3.0}
    assert np.array_equal(Gathering().gathered(sent, weights)["x"], mean(sent, weights)["x"])


@pytest.mark.parametrize("rule", ["trimmed", "median"])
def test_two_uploads_are_too_few_to_tell_who_lies(rule: str) -> None:
    """Refused in one sentence."""
    assert Gathering(rule).least_sites == 3
    with pytest.raises(AggregationError, match="needs 3 uploads"):
        Gathering(rule).gathered(uploads(2, 0, 0))


@pytest.mark.parametrize("norm", [0, -1.0, np.inf, np.nan])
def test_a_norm_is_a_positive_number(norm: float) -> None:
    """Nothing else bounds anything; and a rule has a name."""
    with pytest.raises(AggregationError, match="positive number"):
        Gathering(most_norm=norm)
    with pytest.raises(AggregationError, match="must be one of mean, trimmed, median"):
        Gathering("krum")  # type: ignore[arg-type]
