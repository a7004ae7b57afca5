"""Fixed point and randomness."""

import math
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privacy.secagg import RangeError
from privacy.secagg.ring import FixedPoint, Stream, ZeroShares, packed, secret_stream, unpacked


@given(arrays(np.float64, st.integers(0, 20), elements=st.floats(-(2.0**30), 2.0**30)), st.integers(0, 31))
def test_encoding_errs_by_half_a_step_at_most(values: np.ndarray, bits: int) -> None:
    """Precision as stated: 2^-(bits+1)."""
    fixed = FixedPoint(bits)
    assert np.abs(fixed.decode(fixed.encode(values)) - values).max(initial=0) <= 2.0 ** -(bits + 1)


@pytest.mark.parametrize("terms", [1, 3, 5])
def test_a_sum_at_the_limit_is_exact_and_one_beyond_is_refused(terms: int) -> None:
    """Range as stated: `terms` numbers of the largest magnitude do not wrap; anything larger is not shared."""
    fixed = FixedPoint(24, terms)
    for sign in (1, -1):
        edge = np.array([sign * fixed.limit])
        total = np.sum([fixed.encode(edge)] * terms, axis=0, dtype=np.uint64)
        assert fixed.decode(total) == pytest.approx(terms * edge, rel=1e-15)
        with pytest.raises(RangeError, match="exceeds .* nothing was shared"):
            fixed.encode(edge * (1 + 1e-12))


@given(st.integers(1, 8), st.integers(1, 9), st.integers(0, 99), st.booleans())
def test_a_sum_in_words_of_few_bytes_is_exact_below_its_limit(word: int, terms: int, seed: int, at_limit: bool) -> None:
    """Under masks of all bits, sent as the lowest bytes, from none to the largest magnitude; what is above is not."""
    fixed, rng = FixedPoint(0, terms, word), np.random.default_rng(seed)
    if fixed.limit < 1:
        return
    numbers = np.rint(rng.uniform(-1, 1, (terms, 7)) * fixed.limit).clip(-fixed.limit, fixed.limit)
    numbers = np.trunc(np.sign(numbers) * fixed.limit if at_limit else numbers)
    masks = rng.integers(0, 2**64, (terms, 7), dtype=np.uint64)
    masks[0] -= masks.sum(axis=0, dtype=np.uint64)
    sent = [packed(fixed.encode(row) + mask, word) for row, mask in zip(numbers, masks, strict=True)]
    total = np.sum([unpacked(words) for words in sent], axis=0, dtype=np.uint64)
    assert {words.shape for words in sent} == {(7, word)} and {words.dtype for words in sent} == {np.dtype(np.uint8)}
    exact = [float(sum(map(int, column))) for column in numbers.T]  # numpy would round between the terms
    assert fixed.decode(total) == pytest.approx(exact, rel=1e-12, abs=0)
    with pytest.raises(RangeError):
        fixed.encode(np.array([fixed.limit * 1.001 + 1]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_finite_number_is_refused(value: float) -> None:
    """Nothing is shared, and the error names no value."""
    with pytest.raises(RangeError, match="not a finite number"):
        FixedPoint(16).encode(np.array([0.0, value]))


def test_the_stream_is_chacha20() -> None:
    """RFC 8439, appendix A.1, test vector 1: key, nonce and counter zero."""
    block = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    stream = Stream(bytes(32))
    assert (stream.ring((1,)).tobytes() + stream.ring((7,)).tobytes()) == block


def test_secret_streams_differ() -> None:
    """Two streams of the operating system's entropy never meet."""
    assert not np.array_equal(secret_stream().ring((4,)), secret_stream().ring((4,)))


def chi_square(elements: np.ndarray) -> float:
    """Over the values of bytes: mean 255, standard deviation 22.6 if they are uniform."""
    counts = np.bincount(np.frombuffer(elements.tobytes(), np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2).sum() / expected)


@pytest.mark.parametrize("parties", [3, 4, 5])
def test_zero_shares_are_uniform_and_sum_to_zero(parties: int) -> None:
    """In the ring and bit by bit; the sum of all but one party's is as uniform as one."""
    keys = {pair: secret_stream().ring((4,)).tobytes() for pair in combinations(range(parties), 2)}
    own = [{a + b - rank: key for (a, b), key in keys.items() if rank in (a, b)} for rank in range(parties)]
    zero = [ZeroShares(rank, mine) for rank, mine in enumerate(own)]
    added = [shares.additive((20_000,)) for shares in zero]
    mixed = [shares.binary((20_000,)) for shares in zero]
    assert not np.sum(added, axis=0, dtype=np.uint64).any()
    assert not np.bitwise_xor.reduce(mixed).any()
    for elements in (*added, *mixed, added[0] + added[1], mixed[0] ^ mixed[1]):
        assert chi_square(elements) < 400
    assert chi_square(FixedPoint(24).encode(np.linspace(-1, 1, 20_000))) > 10_000


def test_a_stream_is_the_ciphers_key_stream_however_it_is_read() -> None:
    """Long reads, made of pieces, and many short ones give the elements of ChaCha20 (RFC 8439) in order."""
    key, count = bytes(range(32)), 20_011
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    expected = np.frombuffer(encryptor.update(bytes(8 * count)), "<u8")
    assert np.array_equal(Stream(key).ring((count,)), expected)
    stream, sizes = Stream(key), [1, 0, 7, 8192, 8193, 3000, 618]
    assert np.array_equal(np.concatenate([stream.ring((size,)) for size in sizes]), expected[: sum(sizes)])
    assert Stream(key).ring((2, 3, 5)).tolist() == expected[:30].reshape(2, 3, 5).tolist()
