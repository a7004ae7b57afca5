"""The probe of frozen descriptions finds what is in them, and nothing that is not."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from medfedvqa.data import phantom
from medfedvqa.errors import ConfigError
from medfedvqa.models import load_backbone
from medfedvqa.research.pretraining.answer_probes import (
    ProbedRows,
    _gaussian,
    answer_probe,
    compared,
    plain_descriptions,
    pooled,
    probed_rows,
)


@pytest.fixture(scope="module")
def rows() -> ProbedRows:
    """The phantom chest's rows, whose questions alone are right half of the time."""
    return probed_rows(phantom.read(("chest",)))


def test_the_question_alone_is_a_coin_and_edges_see_the_mass(rows: ProbedRows) -> None:
    """On balanced pairs words are right half of the time, and a description of edges far more often."""
    words, edges = (answer_probe(rows, "", each) for each in (None, plain_descriptions()["edges (HOG), 8 x 8 cells"]))
    assert 0.4 <= words.test <= 0.6 and edges.test > 0.8 and edges.validation > 0.8


def test_a_description_of_noise_is_worth_no_more_than_the_question(rows: ProbedRows) -> None:
    """Numbers that have nothing to do with the picture do not help on test rows."""
    noise = torch.Generator().manual_seed(0)
    probe = answer_probe(rows, "", lambda grey: torch.randn(len(grey), 32, generator=noise))
    assert 0.35 <= probe.test <= 0.65


def test_the_kernel_s_width_is_the_median_over_pairs_alone() -> None:
    """Far from 0 a distance to oneself is rounded to little more than 0, and is no distance between two pictures."""
    described = torch.randn(400, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 1000
    width = torch.nn.functional.pdist(described).square().median()
    kernel = _gaussian(described)
    assert -kernel[0, 1].log() * width == pytest.approx((described[0] - described[1]).square().sum(), rel=1e-6)
    assert torch.equal(kernel.diagonal(), torch.ones(400, dtype=torch.float64))


def test_test_rows_decide_nothing(rows: ProbedRows) -> None:
    """With other answers in the test rows, the choice of penalty and strength, and so validation, stay the same."""
    thumbnail = plain_descriptions()["thumbnail, 16 x 16"]
    targets = rows.targets.clone()
    targets[rows.parts["test"]] = -1
    changed = answer_probe(replace(rows, targets=targets), "", thumbnail)
    assert changed.test == 0.0 and changed.validation == answer_probe(rows, "", thumbnail).validation


def test_a_backbone_is_probed_by_its_pooled_features_and_by_its_places(places_backbone, single, rows) -> None:
    """The lines of a comparison, in order; the features are the tower's own."""
    small = replace(rows, pictures=torch.nn.functional.avg_pool2d(rows.pictures, 2).double())
    names = [each.name for each in compared(lambda size: small, {"x": places_backbone})]
    assert names == ["question alone", "x, pooled", "x, places"]
    tower = places_backbone.clip.visual
    expected = tower._pool(tower.transformer(tower._embeds(places_backbone.normalised(small.pictures[:2]))))[0]
    assert torch.allclose(pooled(places_backbone, small.pictures[:2]), expected, rtol=0, atol=1e-10)


def test_a_backbone_without_a_tower_for_pictures_is_refused(vilt, rows: ProbedRows) -> None:
    """ViLT sees a picture only with a question: the error says so before anything is computed."""
    with pytest.raises(ConfigError, match="one tower"):
        compared(lambda size: rows, {"vilt": vilt})


@pytest.mark.slow
def test_pooled_features_of_the_bundled_backbone_keep_place() -> None:
    """On the phantom set, whose answers are sides, sizes and counts, and which it never saw; the first edition, which
    pooled by a class token, had 82.0 %."""
    probe = answer_probe(probed_rows(phantom.read()), "", partial(pooled, load_backbone("medclip2-slake")))
    assert probe.test > 0.95
