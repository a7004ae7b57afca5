"""Detects lines of text in a picture, at full resolution and reduced, tile by tile."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import cv2
import numpy as np

from medfedvqa.ingest.text_gate import CELL, LEVELS

Array = np.ndarray
Box = tuple[int, int, int, int]
Detector = Callable[[Array], list[Array]]
"""Detects lines in a picture, uint8 [height, width]: the corners of each, float32 [4, 2]."""
AROUND = 48
"""Pixels around marked cells, at the scale of the search, that the detector sees with them."""
CUT = 0.7
"""Marked cells are searched in two rectangles instead of one if that leaves at most this share of the area."""
TILE, OVERLAP = 768, 160
"""The most pixels a side of a tile, which the detector sees at once, and those that two neighbours share. Small tiles
take less time per pixel than large ones, and their memory does not grow with the picture."""
STRIP_CELLS, ELONGATED = 4, 4
"""Marked cells that touch are level lines, and not searched for upright ones, if they form a row that has at most the
first number of cells of its level in height, and is at least the second number of times as long."""
REACH = 21
"""The window, in pixels at the scale of the search, within which contrast is equalised; an odd number."""
LEAST_DEVIATION = 3.0
"""A deviation below this, in grey levels, is grain."""
GROWTH, SPACE = 3.0, 0.8
"""In heights of a line: the most by which it grows at each end, and the widest gap within it."""
STRIP = 24
"""The height in pixels at which a line's structures are compared."""


@dataclass(frozen=True)
class Look:
    """How a search looks for text."""

    views: tuple[tuple[int, float], ...]
    """The levels of the gate whose cells are searched, as a sum, and the scale at which they are."""
    faint: bool
    """Whether the thin structures are searched, with equal contrast, instead of the picture as it is."""
    turned: bool
    """Whether the picture is searched a second time, turned by 90 degrees, for upright lines."""


def detected_lines(picture: Array, where: Array, look: Look, detect: Detector) -> list[Array]:
    """The corners of each line in a picture, uint8 [height, width], as float32 [4, 2] in its pixels, clockwise.

    `where`: the cells that may hold text, from `TextGate`. They are searched at a scale at which letters of their level
    have the height that detectors are made for.
    """

    def search(view: Array, cells: Array) -> list[Array]:
        lines, rest = list[Array](), cells.copy()
        for levels, scale in look.views:
            new = lines_at(view, rest & levels, scale, detect, look.faint)
            _clear(rest, new)
            lines += new
        return lines

    return level_and_upright(picture, where, search) if look.turned else merged(search(picture, where))


def level_and_upright(picture: Array, where: Array, search: Callable[[Array, Array], list[Array]]) -> list[Array]:
    """The corners of horizontal lines found in a picture, and of vertical lines found in the picture turned by 90
    degrees.

    The detector misses words and letters of vertical lines, which the turned picture makes horizontal. Horizontal lines
    are taken from the unturned picture only, because their corners would differ in the turned one.
    """
    lines, turned, rest = search(picture, where), np.ascontiguousarray(np.rot90(picture)), where.copy()
    for level in LEVELS:
        _, groups, stats, _ = cv2.connectedComponentsWithStats(where & level)
        rows = stats[:, cv2.CC_STAT_HEIGHT]
        is_level = (rows <= STRIP_CELLS * level) & (stats[:, cv2.CC_STAT_WIDTH] >= ELONGATED * rows)
        is_level[0] = False
        rest[is_level[groups]] &= ~np.uint8(level)
    _clear(rest, [corners for corners in lines if np.ptp(corners[:, 0]) > 2 * np.ptp(corners[:, 1])])
    for corners in search(turned, np.ascontiguousarray(np.rot90(rest))):
        width, height = np.ptp(corners, axis=0)
        if width >= height:
            x, y = picture.shape[1] - corners[:, 1], corners[:, 0]
            lines.append(np.stack([x, y], axis=1).astype(np.float32))
    return merged(lines)


def _clear(cells: Array, lines: list[Array]) -> None:
    """Marks the cells that these lines touch as without text."""
    for corners in lines:
        left, top = (corners.min(axis=0) / CELL).astype(int).clip(0)
        right, bottom = (corners.max(axis=0) / CELL).astype(int)
        cells[top : bottom + 1, left : right + 1] = 0


def lines_at(picture: Array, marks: Array, scale: float, detect: Detector, faint: bool) -> list[Array]:
    """The lines in the marked cells of a picture at a scale, in the picture's pixels."""
    lines = list[Array]()
    for corner, tile in marked_tiles(picture, marks, scale):
        outlines = detect(thin_structures(tile) if faint else tile)
        lines += [(corners / scale + corner).astype(np.float32) for corners in outlines]
    return lines


def marked_tiles(picture: Array, marks: Array, scale: float) -> Iterator[tuple[Array, Array]]:
    """The tiles of a picture at a scale that hold marked cells, with `AROUND` pixels about them: the place of their
    upper left corner in the picture, and their pixels."""
    reach = max(1, round(AROUND / scale / CELL))
    for top, left, bottom, right in regions(marks, reach):
        start, upper = CELL * (left - reach), CELL * (top - reach)
        part = _with_ground(picture, (start, upper, CELL * (right + reach), CELL * (bottom + reach)))
        for y, x, tile in tiles(scaled(part, scale)):
            yield np.asarray((x / scale + start, y / scale + upper), np.float32), np.ascontiguousarray(tile)


def _with_ground(picture: Array, box: Box) -> Array:
    """A box of a picture, which may lie partly outside: there it is as grey as the median within. Letters that touch
    the edge of what the detector sees are not detected."""
    left, top, right, bottom = box
    (height, width), inside = picture.shape, picture[max(0, top) : bottom, max(0, left) : right]
    outside = max(0, -top), max(0, bottom - height), max(0, -left), max(0, right - width)
    whole: Array = cv2.copyMakeBorder(inside, *outside, cv2.BORDER_CONSTANT, value=float(np.median(inside)))
    return whole


def regions(marks: Array, reach: int) -> list[Box]:
    """Rectangles that hold all marked cells and few others: top, left, bottom, right, in cells.

    Marks within twice `reach` of each other are together, unless two rectangles have much less area.
    """
    wide = cv2.dilate(np.minimum(marks, 1), np.ones((2 * reach + 1, 2 * reach + 1), np.uint8))
    count, groups = cv2.connectedComponents(wide)
    groups = np.where(marks > 0, groups, 0)
    found = list[Box]()
    for number in range(1, count):
        found += _cut(groups == number, reach, 0, 0)
    return found


def _cut(marks: Array, reach: int, top: int, left: int) -> list[Box]:
    """The marks' rectangle, or those of its two parts at the best cut if these have much less area."""
    rows, columns = (np.flatnonzero(marks.any(axis)) for axis in (1, 0))
    marks = marks[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    top, left = top + int(rows[0]), left + int(columns[0])
    height, width = marks.shape
    least, axis, place = CUT * (height + 2 * reach) * (width + 2 * reach), 0, 0
    for along, turned in enumerate((marks, marks.T)):
        areas = _areas(turned, reach)[:-1] + _areas(turned[::-1], reach)[::-1][1:]
        if areas.size and areas.min() < least:
            least, axis, place = float(areas.min()), along, int(areas.argmin()) + 1
    if not place:
        return [(top, left, top + height, left + width)]
    if axis == 0:
        return _cut(marks[:place], reach, top, left) + _cut(marks[place:], reach, top + place, left)
    return _cut(marks[:, :place], reach, top, left) + _cut(marks[:, place:], reach, top, left + place)


def _areas(marks: Array, reach: int) -> Array:
    """The areas of the rectangles of the marks in the first rows, for each number of rows, with their surroundings."""
    columns = np.arange(marks.shape[1])
    firsts = np.minimum.accumulate(np.where(marks, columns, marks.shape[1]).min(axis=1))
    lasts = np.maximum.accumulate(np.where(marks, columns, -1).max(axis=1))
    areas: Array = (np.arange(1, len(marks) + 1) + 2 * reach) * (lasts - firsts + 1 + 2 * reach)
    return areas


def scaled(picture: Array, scale: float) -> Array:
    """The picture at a scale; unchanged at 1."""
    if scale == 1:
        return picture
    return cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)


def tiles(view: Array) -> Iterator[tuple[int, int, Array]]:
    """Tiles of at most `TILE` pixels a side that overlap: top, left, pixels."""
    for top, bottom in _spans(view.shape[0]):
        for left, right in _spans(view.shape[1]):
            yield top, left, view[top:bottom, left:right]


def _spans(length: int) -> Iterator[tuple[int, int]]:
    """Spans of equal length that cover this many pixels and overlap their neighbours."""
    count = max(1, -(-(length - OVERLAP) // (TILE - OVERLAP)))
    size = -(-(length + (count - 1) * OVERLAP) // count)
    for number in range(count):
        start = min(number * (size - OVERLAP), length - size)
        yield start, start + size


def merged(lines: list[Array]) -> list[Array]:
    """The lines without duplicates: parts of the same line, from two tiles or two scales, become one."""
    whole = list[Array]()
    for line in sorted(lines, key=_area, reverse=True):
        parts, rest = list[Array](), list[Array]()
        for other in whole:
            (parts if _is_same_line(other, line) else rest).append(other)
        whole = [*rest, _around(np.concatenate([line, *parts])) if parts else line]
    return whole


def _is_same_line(one: Array, other: Array) -> bool:
    """Whether two quadrangles have the same direction and height, and overlap by at least half of that height."""
    heights = sorted((short_side(one), short_side(other)))
    if heights[1] > 1.6 * heights[0]:
        return False
    kind, common = cv2.rotatedRectangleIntersection(cv2.minAreaRect(one), cv2.minAreaRect(other))
    if kind == cv2.INTERSECT_NONE or common is None:
        return False
    across = _across(one)
    if abs(float(across @ _across(other))) < 0.97:
        return False
    offsets = common.reshape(-1, 2) @ across
    return float(np.ptp(offsets)) >= 0.5 * heights[0]


def line_gap(one: Array, other: Array) -> float:
    """The gap between two parts of a line, in heights of the line; infinite if they are not in one line."""
    longer, shorter = sorted((one, other), key=_long_side, reverse=True)
    height, across = short_side(longer), _across(longer)
    if not 1 / 1.6 <= short_side(shorter) / max(height, 1e-6) <= 1.6:
        return float("inf")
    if _long_side(shorter) > 1.8 * short_side(shorter) and abs(float(across @ _across(shorter))) < 0.97:
        return float("inf")
    if abs(float((shorter.mean(axis=0) - longer.mean(axis=0)) @ across)) > 0.5 * height:
        return float("inf")
    along = np.asarray((across[1], -across[0]))
    first, second = sorted((longer @ along, shorter @ along), key=lambda places: float(places.min()))
    return max(0.0, float(second.min() - first.max())) / height


def bridge(one: Array, other: Array) -> Array:
    """The corners of the gap between two parts of a line."""
    along = (other.mean(axis=0) - one.mean(axis=0)).astype(np.float32)
    nearest = [corners[np.argsort(corners @ direction)[2:]] for corners, direction in ((one, along), (other, -along))]
    return _around(np.concatenate(nearest))


def grown(picture: Array, corners: Array) -> Array:
    """The corners of a line, extended at each end along its structures by at most `GROWTH` heights.

    A detector often leaves out the letters at an end that stand on another ground than the rest.
    """
    across, height = _across(corners), short_side(corners)
    along = np.asarray((across[1], -across[0]))
    centre, half = corners.mean(axis=0), _long_side(corners) / 2
    reach = half + GROWTH * height
    columns, rows = max(1, round(STRIP * 2 * reach / max(height, 1e-6))), STRIP
    source = np.asarray(
        [centre - reach * along - height / 2 * across, centre + reach * along - height / 2 * across,
         centre - reach * along + height / 2 * across], np.float32,
    )  # fmt: skip
    target = np.asarray([(0, 0), (columns, 0), (0, rows)], np.float32)
    strip = cv2.warpAffine(picture, cv2.getAffineTransform(source, target), (columns, rows))
    thin = cv2.absdiff(strip, cv2.medianBlur(strip, REACH)).mean(axis=0)
    first = round(STRIP * GROWTH)
    least = max(LEAST_DEVIATION, thin[first : columns - first].mean() / 3)
    left, right = (_steps(side, least) / STRIP * height for side in (thin[:first][::-1], thin[columns - first :]))
    start, end = centre - (half + left) * along, centre + (half + right) * along
    offset = height / 2 * across
    return _around(np.asarray([start - offset, end - offset, end + offset, start + offset]))


def _steps(profile: Array, least: float) -> int:
    """How many columns belong to the line: the last one of at least this strength before a gap as wide as a space."""
    steps = 0
    for column in np.flatnonzero(profile >= least):
        if column - steps > SPACE * STRIP:
            break
        steps = int(column) + 1
    return steps


def _across(corners: Array) -> Array:
    """The unit vector across a line."""
    sides = corners[1] - corners[0], corners[2] - corners[1]
    shorter: Array = min(sides, key=lambda side: float(np.linalg.norm(side)))
    return shorter / max(float(np.linalg.norm(shorter)), 1e-6)


def _around(points: Array) -> Array:
    """The corners of the smallest rectangle around points, clockwise from the one at its upper left."""
    corners = cv2.boxPoints(cv2.minAreaRect(points.astype(np.float32)))
    first = int(corners.sum(axis=1).argmin())
    return np.roll(corners, -first, axis=0).astype(np.float32)


def short_side(corners: Array) -> float:
    """The height of a line, in pixels."""
    return float(min(np.linalg.norm(corners[1] - corners[0]), np.linalg.norm(corners[2] - corners[1])))


def _long_side(corners: Array) -> float:
    return float(max(np.linalg.norm(corners[1] - corners[0]), np.linalg.norm(corners[2] - corners[1])))


def _area(corners: Array) -> float:
    return float(cv2.contourArea(corners.astype(np.float32)))


def thin_structures(grey: Array, reach: int = REACH) -> Array:
    """The structures thinner than half of `reach` pixels, with equal contrast everywhere, on middle grey.

    The local median leaves letters out and keeps the edges of plates and organs, so the difference from it shows faint
    letters even on a bright plate on black ground.
    """
    difference = grey.astype(np.float32) - cv2.medianBlur(grey, reach)
    # A wide blur of a picture of a quarter of the sides is nearly the same, and takes a tenth of the time.
    small = cv2.resize(difference**2, [-(-length // 4) for length in grey.shape[::-1]], interpolation=cv2.INTER_AREA)
    deviation = np.sqrt(cv2.resize(cv2.GaussianBlur(small, (0, 0), reach / 4), grey.shape[::-1]))
    return np.clip(128 + 50 * difference / np.maximum(deviation, LEAST_DEVIATION), 0, 255).astype(np.uint8)
