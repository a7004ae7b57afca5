"""Lines of text: detected at full resolution and on plates, joined across tiles, and blanked as whole lines."""

from dataclasses import replace
from itertools import pairwise

import cv2
import numpy as np
import pytest

from medfedvqa.ingest.burned_in_text import TextFinder, _Hit, _with_rest_of_line
from medfedvqa.ingest.find_list import Decision, FindKind, Reading, decide
from medfedvqa.ingest.text_lines import OVERLAP, TILE, bridge, grown, level_and_upright, line_gap, merged, tiles


@pytest.fixture(scope="module")
def finder() -> TextFinder:
    return TextFinder()


def line(left: float, right: float, top: float = 0, height: float = 20) -> np.ndarray:
    """The corners of an upright line."""
    return np.float32([(left, top), (right, top), (right, top + height), (left, top + height)])


def left_of(finder: TextFinder, film: np.ndarray, plain: np.ndarray) -> float:
    """The share of the pixels by which the film differs from `plain` that stay, in the film's own size."""
    side = max(film.shape)
    boxes = finder.clean(film, min(side, 1024)).boxes
    scale = max(1.0, side / 1024)
    kept = film != plain
    total = kept.sum()
    for box in boxes:
        x0, y0, x1, y1 = (round(value * scale) for value in box)
        kept[y0:y1, x0:x1] = False
    return float(kept.sum() / total)


@pytest.mark.parametrize("length", [16, 700, TILE, TILE + 1, 1536, 3072, 9000])
def test_tiles_cover_a_picture_and_overlap(length: int) -> None:
    """Every column is in a tile, no tile is larger than the detector takes, and neighbours share letters and words."""
    spans = [(left, left + tile.shape[1]) for _, left, tile in tiles(np.zeros((8, length), np.uint8))]
    assert spans[0][0] == 0 and spans[-1][1] == length and max(right - left for left, right in spans) <= TILE
    assert all(before[1] - after[0] >= OVERLAP - 1 for before, after in pairwise(spans))


def test_what_two_tiles_have_of_one_line_becomes_one_and_two_lines_stay_two() -> None:
    """A line that is cut between tiles is whole afterwards; the line below it is another one."""
    whole = merged([line(0, 500), line(380, 900), line(0, 500, top=24)])
    assert sorted((round(corners[:, 0].min()), round(corners[:, 0].max())) for corners in whole) == [(0, 500), (0, 900)]


def test_gaps_are_measured_along_a_line_and_between_lines_there_is_none() -> None:
    """In heights of the line, also for vertical lines; the bridge lies between both parts."""
    assert line_gap(line(0, 100), line(140, 240)) == pytest.approx(2)
    assert line_gap(line(0, 100)[:, ::-1], line(140, 240)[:, ::-1]) == pytest.approx(2)
    assert line_gap(line(0, 100), line(140, 240, top=24)) == line_gap(line(0, 100), line(140, 240, height=60)) == np.inf
    corners = bridge(line(0, 100), line(140, 240))
    assert corners[:, 0].min() == pytest.approx(100) and corners[:, 0].max() == pytest.approx(140)


def test_a_line_grows_over_the_letters_that_the_detector_left_out_and_no_further() -> None:
    """The box covers `NE DAVID`; the line is as long as its letters afterwards, and a complete one stays as it is."""
    picture = np.full((100, 500), 60, np.uint8)
    cv2.putText(picture, "JANE DAVIDSON", (100, 60), cv2.FONT_HERSHEY_SIMPLEX, 0.8, 120, 2)
    columns = np.flatnonzero((picture != 60).any(axis=0))
    corners = grown(picture, line(140, 240, top=40, height=24))
    assert abs(corners[:, 0].min() - columns[0]) < 4 and abs(corners[:, 0].max() - columns[-1]) < 4
    assert np.allclose(grown(picture, corners), corners, atol=3)


@pytest.mark.parametrize("text", ["04.05", "07", "31.12 19"])
def test_parts_of_a_date_are_no_settings(text: str) -> None:
    """The reader may read a date in two parts, and neither is kept as a number of the device."""
    assert decide(Reading(text, 0.95), lambda form: False, True, True)[1] == Decision.BLANKED


def test_three_letters_in_anatomy_are_text_only_if_they_are_certain() -> None:
    """A rib may be read as three letters with some confidence: that is flagged there, and blanked near the border."""
    reading = Reading("CUA", 0.75)
    assert decide(reading, lambda form: False, False, True) == (FindKind.UNREAD, Decision.FLAGGED)
    assert decide(reading, lambda form: False, True, True) == (FindKind.TEXT, Decision.BLANKED)
    assert decide(Reading("EVA", 0.95), lambda form: False, False, True) == (FindKind.TEXT, Decision.BLANKED)


def test_small_letters_are_blanked_on_a_large_film(finder: TextFinder) -> None:
    """Capitals of 8 pixels in the middle of a film of 2,600: reduced to 1,536 pixels nobody could detect them."""
    noise = cv2.GaussianBlur(np.random.default_rng(3).normal(size=(320, 2600)).astype(np.float32), (0, 0), 25)
    plain = np.clip(110 + 25 * noise / noise.std(), 0, 255).astype(np.uint8)
    film = cv2.putText(plain.copy(), "JANE DAVIDSON", (1180, 160), cv2.FONT_HERSHEY_SIMPLEX, 8 / 21, 200, 1)
    assert left_of(finder, film, plain) < 0.05


def test_faint_letters_on_a_bright_plate_on_black_ground_are_blanked(finder: TextFinder) -> None:
    """Grey 238 on a plate of 250: the plate's edge has twenty times the contrast of the letters."""
    plain = np.zeros((400, 600), np.uint8)
    plain[180:220, 180:420] = 250
    film = cv2.putText(plain.copy(), "JANE DAVIDSON", (190, 208), cv2.FONT_HERSHEY_SIMPLEX, 0.5, 238, 1)
    assert left_of(finder, film, plain) < 0.05


def test_what_is_between_two_parts_of_a_line_is_blanked_with_them(finder: TextFinder) -> None:
    """Between a name and a date stand letters of 4 grey levels, which the detector cannot see."""
    film = np.full((300, 700), 60, np.uint8)
    for text, left, shade in (("DAVIDSON", 40, 255), ("ANN", 180, 64), ("1931-05-07", 250, 255)):
        cv2.putText(film, text, (left, 160), cv2.FONT_HERSHEY_SIMPLEX, 0.8, shade, 2)
    assert (finder.clean(film, 700).grey[145:160, 180:245] == 0).all()


def bright_boxes(picture: np.ndarray) -> list[np.ndarray]:
    """The corners of each bright box."""
    boxes = cv2.connectedComponentsWithStats((picture > 0).astype(np.uint8))[2][1:, :4].tolist()
    return [line(left, left + width, top, height) for left, top, width, height in boxes]


def test_upright_lines_of_the_turned_picture_count_and_level_ones_do_not() -> None:
    """At their places in the picture; a level line has the corners of the picture as it is, and these alone, and its
    cells are not searched again."""
    picture = np.zeros((60, 200), np.uint8)
    picture[10:50, 150:158] = 255
    picture[20:26, 20:90] = 255

    where, seen = np.ones((8, 25), np.uint8), list[np.ndarray]()

    def level_lines(view: np.ndarray, cells: np.ndarray) -> list[np.ndarray]:
        seen.append(cells if view.shape == picture.shape else np.rot90(cells, -1))
        return [box for box in bright_boxes(view) if np.ptp(box[:, 0]) > np.ptp(box[:, 1])]

    level, upright = level_and_upright(picture, where, level_lines)
    assert np.array_equal(level, line(20, 90, 20, 6)) and np.array_equal(seen[0], where)
    assert not seen[1][2:4, 2:12].any() and np.array_equal(seen[1][:, 12:], where[:, 12:])
    assert upright.min(axis=0).tolist() == [150, 10] and upright.max(axis=0).tolist() == [158, 50]
    row = np.zeros_like(where)
    row[2:4, 1:12], row[1:7, 18] = 1, 1
    level_and_upright(picture, row, level_lines)
    assert not seen[3][:, :12].any() and np.array_equal(seen[3][:, 12:], row[:, 12:])

    def coarse_if_turned(view: np.ndarray, _: np.ndarray) -> list[np.ndarray]:
        return [box + np.float32(2 * (view.shape != picture.shape)) for box in bright_boxes(view)]

    lines = level_and_upright(picture, where, coarse_if_turned)
    assert any(np.array_equal(corners, level) for corners in lines) and len(lines) == 2


@pytest.mark.parametrize("text_first", [True, False])
def test_what_is_between_two_blanked_parts_of_a_line_is_blanked(text_first: bool) -> None:
    """One of which is legible, in whichever pass it was found; two marks without text are no line."""
    picture = np.zeros((60, 300), np.uint8)
    mark = _Hit(line(10, 60, 20), FindKind.UNREAD, Decision.BLANKED, Reading("nAnA", 0.4))
    text = _Hit(line(110, 200, 20), FindKind.TEXT, Decision.BLANKED, Reading("SMITH", 0.9))
    first, second = (text, mark) if text_first else (mark, text)
    hits = _with_rest_of_line(picture, [second], [first])
    covered = {x for hit in hits for x in range(int(hit.corners[:, 0].min()), int(hit.corners[:, 0].max()) + 1)}
    assert set(range(62, 108)) <= covered
    assert len(_with_rest_of_line(picture, [mark], [replace(mark, corners=line(110, 200, 20))])) == 1
