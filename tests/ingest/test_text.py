"""Burned-in text: found, blanked, looked for again."""

import cv2
import numpy as np
import pytest

from medfedvqa.ingest.burned_in_text import TextFinder, fitted
from medfedvqa.ingest.refusal_reasons import Quarantined


@pytest.fixture(scope="module")
def finder() -> TextFinder:
    return TextFinder()


def written(text: str, place: tuple[int, int], shade: int = 255, size: float = 0.8, background: int = 0) -> np.ndarray:
    """A blob with a line of text, uint8 [256, 320]."""
    y, x = np.mgrid[0:256, 0:320]
    blob = 180 * np.exp(-(((x - 160) / 60) ** 2) - ((y - 140) / 50) ** 2) + background
    return cv2.putText(blob.clip(0, 255).astype(np.uint8), text, place, cv2.FONT_HERSHEY_SIMPLEX, size, shade, 2)


@pytest.mark.parametrize(
    ("place", "shade", "background"),
    [((5, 24), 255, 0), ((120, 250), 255, 0), ((60, 150), 255, 0), ((5, 24), 0, 200), ((100, 24), 110, 0)],
    ids=["corner", "edge", "over anatomy", "black on bright", "faint"],
)
def test_text_is_blanked_wherever_it_stands(
    finder: TextFinder, place: tuple[int, int], shade: int, background: int
) -> None:
    """No pixel of it is left but what the box's margin leaves: compared with the picture without text."""
    with_text, without = written("DOE JANE", place, shade, 0.8, background), written("", place, shade, 0.8, background)
    cleaned = finder.clean(with_text, 320)
    letters = with_text != without
    assert cleaned.boxes and (cleaned.grey[letters] == 0).mean() > 0.99
    kept = cleaned.grey != 0
    assert np.array_equal(cleaned.grey[kept], with_text[kept])


def test_vertical_text_is_blanked(finder: TextFinder) -> None:
    turned = np.rot90(written("DOE JANE 1970", (40, 24))).copy()
    letters = turned != np.rot90(written("", (0, 0)))
    assert (finder.clean(turned, 320).grey[letters] == 0).mean() > 0.99


def test_a_picture_without_text_stays_as_it_is(finder: TextFinder) -> None:
    plain = written("", (0, 0))
    cleaned = finder.clean(plain, 320)
    assert not cleaned.boxes and cleaned.share == 0 and np.array_equal(cleaned.grey, plain)


def test_pictures_are_fitted_to_a_side_and_never_enlarged(finder: TextFinder) -> None:
    assert finder.clean(written("", (0, 0)), 160).grey.shape == (128, 160)
    assert fitted(written("", (0, 0)), 4000).shape == (256, 320)


def test_a_page_of_text_is_quarantined(finder: TextFinder) -> None:
    page = np.zeros((256, 320), np.uint8)
    for line in range(12):
        cv2.putText(page, "DOE JANE 1970 WARD SEVEN", (2, 18 + 21 * line), cv2.FONT_HERSHEY_SIMPLEX, 0.7, 255, 2)
    with pytest.raises(Quarantined, match="mostly_text"):
        finder.clean(page, 320)


def test_text_that_stays_is_quarantined(finder: TextFinder, monkeypatch: pytest.MonkeyPatch) -> None:
    """If blanking does not help, for whatever reason, the picture is not passed on."""
    monkeypatch.setattr("medfedvqa.ingest.burned_in_text.blanked", lambda grey, boxes: grey)
    with pytest.raises(Quarantined, match="text_remains"):
        finder.clean(written("DOE JANE", (5, 24)), 320)
