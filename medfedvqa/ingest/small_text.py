"""Detects small and faint text: first cheaply where rows of marks are, then closely, there alone."""

from collections.abc import Iterator

import cv2
import numpy as np

from medfedvqa.ingest.text_lines import Array, Detector, level_and_upright, scaled, thin_structures, tiles

HEIGHTS = (5, 9, 17, 33)
"""The heights in pixels of the rows that are looked for: letters of 4 to 48 pixels make them."""
FOLDED = 16
"""The height from which rows are looked for in blocks of 2 by 2 pixels, and from twice of it on in blocks of 4 by 4."""
STRONGEST, LEAST = 60.0, 1.5
"""Grey levels of a pixel's deviation from its neighbours: more does not count, and a row has this much on average."""
EXCESS = 0.3
"""By which share the deviation within a row exceeds that above and below it."""
AROUND = 12
"""Pixels around a row that are searched with it."""
CLOSEST, LETTERS = 4.0, 32.0
"""A row is enlarged up to this many times, up to this height in pixels: letters then have the height that the detector
is made for."""


def small_lines(picture: Array, detect: Detector) -> list[Array]:
    """The corners of lines of text in a picture, uint8 [height, width], as float32 [4, 2] in its pixels."""
    return level_and_upright(picture, lambda view: _level_lines(view, detect))


def _level_lines(picture: Array, detect: Detector) -> list[Array]:
    """The lines in level rows of marks."""
    lines = list[Array]()
    for height in HEIGHTS:
        rows, scale = rows_of_marks(picture, height), min(CLOSEST, LETTERS / height)
        for left, top, right, bottom in _places(rows):
            place = scaled(np.ascontiguousarray(picture[top:bottom, left:right]), scale)
            marked = cv2.resize(rows[top:bottom, left:right], place.shape[::-1], interpolation=cv2.INTER_NEAREST)
            for (y, x, tile), (*_, marks) in zip(tiles(place), tiles(marked), strict=True):
                if marks.any():
                    outlines = detect(thin_structures(np.ascontiguousarray(tile)))
                    lines += [((corners + (x, y)) / scale + (left, top)).astype(np.float32) for corners in outlines]
    return lines


def rows_of_marks(picture: Array, height: int) -> Array:
    """Where level rows of marks of this height lie in a picture, uint8 [height, width]: 1 there, else 0.

    Strokes of letters follow each other closely along a row, and above and below it there are fewer: an edge of an
    organ crosses a row once, and grain is the same everywhere. So strokes are strong in three neighbouring places, and
    stronger than on both sides, which are looked at twice: at a distance, and close to the letters, where a narrow
    plate still is flat. Rows of `FOLDED` pixels or more are looked for in the mean strength of blocks of pixels.
    """
    strokes = np.minimum(np.abs(cv2.filter2D(picture, cv2.CV_32F, np.array([[-1, 2, -1]], np.float32))), STRONGEST)
    if fold := height // FOLDED:
        strokes = cv2.resize(strokes, None, fx=1 / (2 * fold), fy=1 / (2 * fold), interpolation=cv2.INTER_AREA)
        height = round(height / (2 * fold))
    within = cv2.erode(cv2.blur(strokes, (2 * height, height)), _points(2 * height, True)[None])
    apart = cv2.dilate(cv2.blur(strokes, (6 * height, max(2, height // 2))), _points(3 * height // 2, False)[:, None])
    close = cv2.dilate(cv2.blur(strokes, (6 * height, 2)), _points(height // 2 + 2, False)[:, None])
    beside = np.minimum(apart, close)
    rows = ((within >= LEAST) & (within - beside > EXCESS * (beside + 1))).astype(np.uint8)
    opened = cv2.morphologyEx(rows, cv2.MORPH_OPEN, np.ones((2, 2), np.uint8))
    return cv2.resize(opened, picture.shape[::-1], interpolation=cv2.INTER_NEAREST)


def _points(distance: int, middle: bool) -> Array:
    """A kernel of one point at this distance on each side, and of the middle if asked for."""
    kernel = np.zeros(2 * distance + 1, np.uint8)
    kernel[[0, -1]], kernel[distance] = 1, middle
    return kernel


def _places(rows: Array) -> Iterator[tuple[int, int, int, int]]:
    """Left, top, right and bottom of each group of rows with its surroundings."""
    wide = cv2.dilate(rows, np.ones((2 * AROUND + 1, 2 * AROUND + 1), np.uint8))
    for left, top, width, height, _ in cv2.connectedComponentsWithStats(wide)[2][1:].tolist():
        yield left, top, left + width, top + height
