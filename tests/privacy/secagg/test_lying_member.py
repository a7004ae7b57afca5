"""A site that shares what it likes in a mixture: what the other sites get, and what they notice."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from privacy.secagg import SecureAggregationError, TensorLayout, protocol
from privacy.secagg.layout import LARGEST_NORM, with_error
from privacy.secagg.reliability import ACCURACY_BITS, NORM_BITS
from privacy.secagg.ring import Ring

SHAPE = (2, 4, 8)
LAYOUT = TensorLayout.of({"p": SHAPE})
LIAR = 0.123
"""The accuracy by which the liar's input is known."""
LARGEST_COORDINATE = 2.0**11
"""What a result may stand for: 63 bits, of which 52 are behind the point."""

Lie = Callable[[Ring], Ring]


def fixed(value: float, bits: int) -> np.uint64:
    """A number as an element of the ring, however large."""
    return np.uint64(int(value * 2.0**bits) % 2**64)


def accuracy(value: float) -> Lie:
    return lambda ring: np.append(ring[:-1], fixed(value, ACCURACY_BITS))


def norm(value: float) -> Lie:
    return lambda ring: np.concatenate([ring[:-2], [fixed(value, NORM_BITS)], ring[-1:]])


def mixtures(together: Any, monkeypatch: pytest.MonkeyPatch, lie: Lie) -> tuple[list[dict[str, Any]], list[Any]]:
    """What three honest sites get, and what all four hold; the last one lies."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=SHAPE)
    tensors = [{"p": np.float32((common + rng.normal(size=SHAPE)) / 8)} for _ in range(4)]
    honest = protocol._encoded

    def encoded(prompts: Any, accuracy: float, layout: TensorLayout) -> Ring:
        ring = honest(prompts, accuracy, layout)
        return lie(ring) if accuracy == LIAR else ring

    with monkeypatch.context() as patch:
        patch.setattr(protocol, "_encoded", encoded)
        result = together(tensors, [0.5, 0.6, 0.7, LIAR], LAYOUT)
    return [site.mixture for site in list(result.values())[:3]], tensors


@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 999))
def test_whatever_a_site_shares_a_mixture_is_finite_and_within_the_encodings_range(
    together: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """No coordinate beyond 2048, for any elements of the ring; and what the check lets pass is not longer than honest
    uploads may be."""
    result, _ = mixtures(
        together, monkeypatch, lambda ring: np.random.default_rng(seed).integers(0, 2**64, ring.shape, np.uint64)
    )
    for mixture in result:
        assert np.isfinite(mixture["p"]).all() and np.abs(mixture["p"]).max() <= LARGEST_COORDINATE
        try:
            LAYOUT.check_mixture(mixture, None)
        except SecureAggregationError:
            continue
        assert np.linalg.norm(mixture["p"]) <= with_error(LARGEST_NORM)


@pytest.mark.parametrize(
    ("lie", "most_norm"),
    [(norm(2.0**20), None), (norm(-(2.0**20)), None), (norm(1024), 2.0), (accuracy(1e4), 2.0), (accuracy(-1e9), 2.0)],
    ids=["norm 2^20", "norm -2^20", "norm 1024", "accuracy 1e4", "accuracy -1e9"],
)
def test_a_mixture_that_is_too_long_gives_a_lie_away(
    together: Any, monkeypatch: pytest.MonkeyPatch, lie: Lie, most_norm: float | None
) -> None:
    """Longer than 1024 always, and than the job's norm where it names one. An honest mixture passes both."""
    result, _ = mixtures(together, monkeypatch, lie)
    for mixture in result:
        with pytest.raises(SecureAggregationError, match="above the limit for an upload"):
            LAYOUT.check_mixture(mixture, most_norm)
    honest, tensors = mixtures(together, monkeypatch, lambda ring: ring)
    longest = max(float(np.linalg.norm(held["p"])) for held in tensors)
    for mixture in honest:
        LAYOUT.check_mixture(mixture, longest)


@pytest.mark.parametrize("claim", [1.0, 4.0, 10.0])
def test_an_accuracy_that_is_too_high_draws_a_mixture_to_the_liars_prompt_and_nobody_notices(
    together: Any, monkeypatch: pytest.MonkeyPatch, claim: float
) -> None:
    """What remains, as documented: the mixture stays as long as an honest one, and turns to the liar's prompt."""
    result, tensors = mixtures(together, monkeypatch, accuracy(claim))
    honest, _ = mixtures(together, monkeypatch, lambda ring: ring)
    liar = tensors[3]["p"]
    for mixture, before in zip(result, honest, strict=True):
        LAYOUT.check_mixture(mixture, 2.0)
        assert cosine(mixture["p"], liar) > max(0.85, cosine(before["p"], liar))


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other))
