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

from privacy.noise import HALF, NoiseError, Randomness, RepeatableRandomness, SecureRandomness, keystream

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
print(SecureRandomness().normal((4,), 1.0).tolist(), SecureRandomness().uniform(4).tolist())
"""


@pytest.fixture(scope="module")
def normals() -> np.ndarray:
    return SecureRandomness().normal((DRAWS,), 1.0).numpy().astype(np.float64)


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


@pytest.mark.parametrize("std", [1e-3, 0.5, 250.0])
def test_std_scales(std: float) -> None:
    """`std` is the standard deviation of what comes back."""
    values = SecureRandomness().normal((100_000,), std).numpy().astype(np.float64)
    assert stats.kstest(values / std, "norm").pvalue > RARE


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3), (2 * HALF,), (3, 2 * HALF - 1)])
def test_shape_and_dtype(shape: tuple[int, ...]) -> None:
    """Every shape is filled with its own values, the empty ones included, in float32 on the CPU."""
    values = SecureRandomness().normal(shape, 1.0)
    assert values.shape == shape and values.dtype == torch.float32 and values.device.type == "cpu"
    assert values.unique().numel() > 0.999 * values.numel() - 1
    assert SecureRandomness().uniform(0).shape == (0,)


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf")])
def test_noise_that_protects_nothing_is_refused(std: float) -> None:
    """No call returns silently without noise."""
    with pytest.raises(NoiseError, match="finite and above 0"):
        SecureRandomness().normal((3,), std)


def test_processes_with_equal_seeds_never_repeat() -> None:
    """Two fresh processes with the same seeds everywhere draw different noise."""
    processes = [subprocess.Popen([sys.executable, "-c", DRAW], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate()[0] for process in processes)
    assert first.count(",") == second.count(",") == 6
    assert not set(first.split()) & set(second.split())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("draw", [lambda source: source.normal((4,), 1.0).numpy(), lambda source: source.uniform(4)])
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
        drawn.append((SecureRandomness().normal((64,), 1.0), SecureRandomness().uniform(64)))
        assert torch.equal(before[0], torch.get_rng_state())
        assert (before[1] == np.random.get_state()[1]).all()
        assert before[2] == random.getstate()
    (normal, uniform), (other_normal, other_uniform) = drawn
    assert not (normal == other_normal).any() and not (uniform == other_uniform).any()


def test_repeatable_randomness_repeats_and_says_so() -> None:
    """Equal seeds give equal series, calls within a series differ, and what it protects counts as void."""
    item, same, other = RepeatableRandomness(1), RepeatableRandomness(1), RepeatableRandomness(2)
    series = [item.normal((5,), 1.0) for _ in range(3)]
    assert all(torch.equal(drawn, same.normal((5,), 1.0)) for drawn in series)
    assert not torch.equal(series[0], series[1]) and not torch.equal(series[0], other.normal((5,), 1.0))
    assert (item.uniform(5) == same.uniform(5)).all()
    assert item.void and not SecureRandomness().void


def test_repeatable_randomness_has_the_same_distribution() -> None:
    """What is tested with repeatable noise is the noise of the real source."""
    assert stats.kstest(RepeatableRandomness(0).normal((DRAWS,), 1.0).numpy(), "norm").pvalue > RARE
