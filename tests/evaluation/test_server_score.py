"""The test of a server's own model: which partners are found, and how the figures are told."""

import pytest
import torch

from medfedvqa.evaluation import ServerScore
from medfedvqa.papers.caption_sites import found_first


def test_recall_is_the_place_of_the_right_partner_written_out() -> None:
    """Three captions, four pictures of which two share the last caption; places by hand."""
    cosines = torch.tensor([[0.9, 0.1, 0.2], [0.5, 0.4, 0.6], [0.0, 0.8, 0.7], [0.3, 0.2, 0.1]])
    captions = torch.tensor([0, 1, 2, 2])
    # Places of the pictures' captions: 1, 3, 2, 3. Of the captions' best pictures: 1 (0.9), 2 (0.4 after 0.8),
    # and for the last 1, as 0.7 is above 0.6 and 0.2.
    assert found_first(cosines, captions) == ((1, 4, 4), (2, 3, 3))


def test_a_model_that_tells_nothing_apart_finds_nothing() -> None:
    """Equal cosines count as nearer than the right one: ties are no find, however many places count."""
    images, texts = found_first(torch.zeros(24, 12), torch.arange(24) % 12)
    assert images == (0, 0, 0) and texts == (0, 0, 0)


def test_rsum_is_the_sum_of_the_six_recalls_in_per_cent() -> None:
    """From counts of pictures and of captions."""
    score = ServerScore(8, 4, pictures=10, captions=5, image_to_text=(1, 5, 10), text_to_image=(1, 2, 5))
    assert score.recalls == (0.1, 0.5, 1.0, 0.2, 0.4, 1.0) and score.rsum == pytest.approx(320.0)
    assert "rsum 320.0" in score.sentence and "50.0 % of 8 questions" in score.sentence


def test_a_model_without_a_common_space_has_no_recall() -> None:
    """Its sentence tells answers alone."""
    score = ServerScore(8, 6)
    assert score.recalls == () and "Recall" not in score.sentence and "75.0 % of 8 questions" in score.sentence
