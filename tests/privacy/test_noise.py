"""Noise that no seed repeats, and that has the distribution it claims."""

import os
import random
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from privacy import noise
from privacy.noise import (
    FURTHER_BITS,
    HALF,
    NoiseError,
    Randomness,
    RepeatableRandomness,
    SecureRandomness,
    _exact_pair,
    _rounded_gaussians,
    keystream,
)

DRAWS = 1_000_000
RARE = 1e-6
"""Chance at which a test of fresh randomness may fail although all is well."""

NOTHING = "00" * 32
RFC_8439 = [
    # Appendix A.1: key, block, keystream of that block; vectors 1 to 4, whose nonce is 0 as ours.
    (
        NOTHING,
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        NOTHING,
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        NOTHING[:-1] + "1",
        1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        "00ff" + NOTHING[4:],
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
]
DRAW = """
import random, numpy, torch
random.seed(7), numpy.random.seed(7), torch.manual_seed(7)
from privacy.noise import SecureRandomness
print(SecureRandomness().rounded_normal(4, 1e9).tolist(), SecureRandomness().uniform(4).tolist())
"""


@pytest.fixture(scope="module")
def normals() -> np.ndarray:
    return SecureRandomness().rounded_normal(DRAWS, 2.0**20).numpy() / 2.0**20


@pytest.mark.parametrize(("key", "block", "expected"), RFC_8439)
def test_the_keystream_is_chacha20(key: str, block: int, expected: str) -> None:
    """The words are the blocks of RFC 8439's test vectors, across chunks and within one."""
    by_block = keystream(bytes.fromhex(key), 8)
    for _ in range(block):
        next(by_block)
    assert next(by_block).numpy().tobytes().hex() == expected
    whole = next(keystream(bytes.fromhex(key), 24)).numpy().tobytes()
    assert whole[64 * block : 64 * (block + 1)].hex() == expected


def test_normal_is_gaussian(normals: np.ndarray) -> None:
    """A million draws pass Kolmogorov-Smirnov; mean, variance, skew and kurtosis are within five standard errors."""
    assert stats.kstest(normals, "norm").pvalue > RARE
    assert abs(normals.mean()) < 5 / DRAWS**0.5
    assert abs(normals.var() - 1) < 5 * (2 / DRAWS) ** 0.5
    assert abs(stats.skew(normals)) < 5 * (6 / DRAWS) ** 0.5
    assert abs(stats.kurtosis(normals)) < 5 * (24 / DRAWS) ** 0.5


def test_tails_are_gaussian(normals: np.ndarray) -> None:
    """Values beyond four standard deviations are as frequent as they should be: noise is not cut off."""
    beyond = int((np.abs(normals) > 4).sum())
    assert stats.binomtest(beyond, DRAWS, 2 * stats.norm.sf(4)).pvalue > RARE


@pytest.mark.parametrize("lag", [1, 2, 4, HALF, 2 * HALF])
@pytest.mark.parametrize("power", [1, 2])
def test_values_are_uncorrelated(normals: np.ndarray, lag: int, power: int) -> None:
    """Neither neighbours nor the sines and cosines of one pair (`HALF` apart) correlate, nor do their squares."""
    values = normals**power
    assert abs(np.corrcoef(values[lag:], values[:-lag])[0, 1]) < 5 / (DRAWS - lag) ** 0.5


def test_a_pairs_sine_and_cosine_are_independent(normals: np.ndarray) -> None:
    """The angle of two values made from the same words is uniform, as it is for independent Gaussians only."""
    cosines, sines = normals[: DRAWS // (2 * HALF) * 2 * HALF].reshape(-1, 2, HALF).swapaxes(0, 1)
    angles = np.arctan2(sines, cosines).ravel() / (2 * np.pi) + 0.5
    assert stats.kstest(angles, "uniform").pvalue > RARE


def test_uniform_is_uniform() -> None:
    """A million draws in [0, 1) pass Kolmogorov-Smirnov, hold 53 bits each, and neighbours do not correlate."""
    values = SecureRandomness().uniform(DRAWS)
    assert values.dtype == np.float64 and values.shape == (DRAWS,)
    assert values.min() >= 0 and values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > RARE
    bits = (values * 2.0**53).astype(np.uint64)
    assert (bits == values * 2.0**53).all() and 0.49 < (bits & np.uint64(1)).mean() < 0.51
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 5 / DRAWS**0.5


@pytest.mark.parametrize("deviation", [0.3, 1.0, 2.5])
def test_each_whole_number_is_as_frequent_as_its_part_of_the_gaussian(deviation: float) -> None:
    """k has the probability of k - 1/2 to k + 1/2, by a chi-squared test; also where hardly a value is not 0."""
    values = SecureRandomness().rounded_normal(DRAWS, deviation).numpy()
    most = int(4 * deviation) + 1
    edges = np.r_[-np.inf, np.arange(-most, most + 1) + 0.5, np.inf]
    counts = np.histogram(values, edges)[0]
    expected = DRAWS * np.diff(stats.norm.cdf(edges / deviation))
    enough = expected >= 5
    rest = expected[~enough].sum()
    observed = np.r_[counts[enough], counts[~enough].sum()] if rest else counts[enough]
    assert stats.chisquare(observed, np.r_[expected[enough], rest] if rest else expected[enough]).pvalue > RARE


@pytest.mark.parametrize("edge", [False, True], ids=["anywhere", "next to 0 and 1"])
def test_double_precision_decides_a_value_only_where_no_further_digit_could_change_it(edge: bool) -> None:
    """The smallest and the largest further digits give the same whole numbers, in 384 bits; else they are drawn.

    The deviation is chosen so that the value lies some units in the last place from where rounding turns. `edge`: where
    a uniform number is next to 0, and so the value far out, or next to 1, and so the value next to 0.
    """
    none, all_ones = (torch.full((2 * FURTHER_BITS // 64,), digits, dtype=torch.int64) for digits in (0, -1))
    source = np.random.default_rng(20261127)
    for number in range(500):
        first, second = source.integers(-(2**63), 2**63 - 1, 2).tolist()
        if edge:
            first = (-(2**63) + (first >> 38 & 2**21 - 1)) if number % 2 else 2**63 - 1 - (first >> 32 & 2**31 - 1)
        value = abs(_exact_pair(first, second, 2.0**60, none)[number % 3 == 0]) / 2.0**60
        deviation = (int(2 ** source.uniform(0, 40)) + 0.5) / value * (1 + int(source.integers(-9, 9)) * 2.0**-52)
        drawn = []
        further = iter(lambda drawn=drawn: drawn.append(1) or none, None)
        values = tuple(_rounded_gaussians(torch.tensor([first, second]), deviation, further).tolist())
        assert values == _exact_pair(first, second, deviation, none)
        assert drawn or values == _exact_pair(first, second, deviation, all_ones)


def test_values_that_double_precision_does_not_decide_are_drawn_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fine grid some are, and these get their digits from a stream of their own: no value is 0 for want of one."""
    exact, digits = noise._exact_pair, list[bytes]()

    def counted(first: int, second: int, deviation: float, more: torch.Tensor) -> tuple[float, float]:
        digits.append(more.numpy().tobytes())
        return exact(first, second, deviation, more)

    monkeypatch.setattr(noise, "_exact_pair", counted)
    values = RepeatableRandomness(0).rounded_normal(20_000, 2.0**38).numpy()
    assert 10 < len(digits) == len(set(digits)) < 1000
    assert stats.kstest(values / 2.0**38, "norm").pvalue > RARE


@pytest.mark.parametrize("deviation", [0.05, 1000.0])
def test_the_tails_have_no_end(deviation: float) -> None:
    """Where all first digits of the uniform number are 0, further ones take the value beyond what they could give."""
    word, further = -(2**63), torch.tensor([0] * 3 + [5] * 3)
    values = _rounded_gaussians(torch.tensor([word, 0]), deviation, iter([further]))
    assert values.tolist() == list(_exact_pair(word, 0, deviation, further))
    assert values[0] > deviation * (2 * 244 * 0.69) ** 0.5 - 0.5


@pytest.mark.parametrize("count", [0, 1, 2 * HALF, 6 * HALF - 3])
def test_counts_and_types(count: int) -> None:
    """As many whole numbers as asked for, each one its own, in float64 on the CPU."""
    values = SecureRandomness().rounded_normal(count, 2.0**40)
    assert values.shape == (count,) and values.dtype == torch.float64 and values.device.type == "cpu"
    assert torch.equal(values, values.round()) and values.unique().numel() > 0.999 * count - 1
    assert SecureRandomness().uniform(0).shape == (0,)


@pytest.mark.parametrize("deviation", [0.0, -1.0, float("nan"), float("inf"), 2.0**47])
def test_noise_that_protects_nothing_or_is_not_exact_is_refused(deviation: float) -> None:
    """No call returns silently without noise."""
    with pytest.raises(NoiseError, match="deviation above 0"):
        SecureRandomness().rounded_normal(3, deviation)


def test_processes_with_equal_seeds_never_repeat() -> None:
    """Two fresh processes with the same seeds everywhere draw different noise."""
    processes = [subprocess.Popen([sys.executable, "-c", DRAW], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate()[0] for process in processes)
    assert first.count(",") == second.count(",") == 6
    assert not set(first.split()) & set(second.split())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("draw", [lambda source: source.rounded_normal(4, 1e9).numpy(), lambda s: s.uniform(4)])
def test_forked_processes_never_repeat(draw: Callable[[Randomness], np.ndarray]) -> None:
    """A source used before a fork gives parent and children values of their own."""
    source = SecureRandomness()
    seen = [draw(source).tobytes()]
    for _ in range(3):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writer, draw(source).tobytes())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader, "rb") as pipe:
            seen.append(pipe.read())
        assert os.waitpid(child, 0)[1] == 0
        seen.append(draw(source).tobytes())
    assert len(set(seen)) == len(seen) == 7 and all(seen)


def test_seeds_are_neither_consulted_nor_changed() -> None:
    """Seeding torch, NumPy and Python changes no draw, and no draw moves their generators."""
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())  # type: ignore[union-attr]
        drawn.append((SecureRandomness().rounded_normal(64, 1e9), SecureRandomness().uniform(64)))
        assert torch.equal(before[0], torch.get_rng_state())
        assert (before[1] == np.random.get_state()[1]).all()
        assert before[2] == random.getstate()
    (normal, uniform), (other_normal, other_uniform) = drawn
    assert not (normal == other_normal).any() and not (uniform == other_uniform).any()


def test_repeatable_randomness_repeats_and_says_so() -> None:
    """Equal seeds give equal series, calls within a series differ, and what it protects counts as void."""
    item, same, other = RepeatableRandomness(1), RepeatableRandomness(1), RepeatableRandomness(2)
    series = [item.rounded_normal(5, 1e9) for _ in range(3)]
    assert all(torch.equal(drawn, same.rounded_normal(5, 1e9)) for drawn in series)
    assert not torch.equal(series[0], series[1]) and not torch.equal(series[0], other.rounded_normal(5, 1e9))
    assert (item.uniform(5) == same.uniform(5)).all()
    assert item.void and not SecureRandomness().void


def test_repeatable_randomness_has_the_same_distribution() -> None:
    """What is tested with repeatable noise is the noise of the real source."""
    assert stats.kstest(RepeatableRandomness(0).rounded_normal(DRAWS, 2.0**20).numpy() / 2.0**20, "norm").pvalue > RARE
