"""The embedding keeps neighbours together, goes downhill, and is the same each time."""

import numpy as np
import pytest

from medfedvqa.evaluation.tsne import Floats, tsne


def clusters(count: int = 5, points: int = 12, width: int = 40) -> tuple[Floats, Floats]:
    """Well-separated clusters [count * points, width], and which point is of which."""
    generator = np.random.default_rng(3)
    centres = 10 * generator.normal(size=(count, 1, width))
    return (centres + generator.normal(size=(count, points, width))).reshape(-1, width), np.arange(count).repeat(points)


def test_well_separated_clusters_stay_apart() -> None:
    """Every point's eleven nearest in the plane are the others of its cluster."""
    points, cluster = clusters()
    positions = tsne(points, perplexity=8).positions
    distances = np.linalg.norm(positions[:, None] - positions[None, :], axis=2)
    nearest = np.argsort(distances, axis=1)[:, 1:12]
    assert (cluster[nearest] == cluster[:, None]).all()


def test_the_divergence_falls() -> None:
    points, _ = clusters()
    start, middle, end = (tsne(points, perplexity=8, iterations=count).divergence for count in (0, 500, 1000))
    assert 0 < end < middle < start / 4


def test_the_divergence_is_that_of_the_definition() -> None:
    """Four corners of a square, where p and q are known: each row's two near and one far, q from the kernel."""
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    embedding = tsne(corners, perplexity=1.0, iterations=0)
    positions = embedding.positions
    kernel = 1 / (1 + ((positions[:, None] - positions[None, :]) ** 2).sum(axis=2)) * (1 - np.eye(4))
    near = np.roll(np.eye(4), 1, axis=1) + np.roll(np.eye(4), -1, axis=1)
    affinities = near / 8
    expected = (affinities[near > 0] * np.log(affinities[near > 0] / (kernel / kernel.sum())[near > 0])).sum()
    assert embedding.divergence == pytest.approx(expected, abs=1e-6)


def test_a_seed_is_a_picture() -> None:
    points, _ = clusters(2, 6, 10)
    first, again, other = (tsne(points, seed=seed, iterations=60).positions for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)


def test_scale_and_place_of_the_points_do_not_matter() -> None:
    """Bandwidths adapt, so that prompts of any size give the same affinities."""
    points, _ = clusters(2, 6, 10)
    plain, moved = (tsne(p, iterations=0).divergence for p in (points, 1e-4 * points + 7e-4))
    assert plain == pytest.approx(moved, rel=1e-6)


def test_equal_points_have_a_picture_too() -> None:
    assert np.isfinite(tsne(np.ones((8, 3)), iterations=300).positions).all()


@pytest.mark.parametrize("points", [np.zeros((3, 2)), np.full((5, 2), np.nan)])
def test_what_cannot_be_embedded_is_refused(points: Floats) -> None:
    with pytest.raises(ValueError, match="at least 4 points, all of them finite"):
        tsne(points)
