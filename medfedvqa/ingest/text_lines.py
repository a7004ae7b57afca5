"""Detects lines of text in a picture, at full resolution and reduced, tile by tile."""

from collections.abc import Callable, Iterator

import cv2
import numpy as np

from medfedvqa.ingest.text_gate import CELL

Array = np.ndarray
Detector = Callable[[Array], list[Array]]
"""Detects lines in a picture, uint8 [height, width]: the corners of each, float32 [4, 2]."""
AROUND = 24
"""Pixels about a marked cell, at the scale of the search, that the detector sees with it."""
CLOSEST = 4.0
"""How many times the places of small text are enlarged: letters then have the height that the detector is made for."""
TILE, OVERLAP = 1024, 160
"""The most pixels a side of a tile, which the detector sees at once, and those that two neighbours share. Tiles of this
size take a third of the time per pixel of those of 1,536, and their memory does not grow with the picture."""
ENLARGED, ENLARGED_SIDE = 2.0, 3072
"""For thin structures a picture is enlarged up to this many times, up to this many pixels a side: letters of 8 pixels
with 30 grey levels are detected there as a rule, and at their own size half of the time."""
REACH = 21
"""The window, in pixels at the scale of the search, within which contrast is equalised; an odd number."""
LEAST_DEVIATION = 3.0
"""A deviation below this, in grey levels, is grain."""
GROWTH, SPACE = 3.0, 0.8
"""In heights of a line: the most by which it grows at each end, and the widest gap within it."""
STRIP = 24
"""The height in pixels at which a line's structures are compared."""


def detected_lines(picture: Array, where: Array, detect: Detector, faint: bool) -> list[Array]:
    """The corners of each line in a picture, uint8 [height, width], as float32 [4, 2] in its pixels, clockwise.

    `where`: the cells that may hold text, from `TextGate`. A picture larger than a tile is also searched reduced to a
    tile's size: large letters then have the height that detectors are made for, and long lines fit. The picture is
    searched a second time, turned by 90 degrees. `faint`: searches the thin structures instead, enlarged and with
    equalised contrast, and not turned: turning takes half as long again and found no further line.
    """

    def search(view: Array, cells: Array) -> list[Array]:
        return [line for scale in scales(view.shape, faint) for line in lines_at(view, cells, scale, detect, faint)]

    return merged(search(picture, where)) if faint else level_and_upright(picture, where, search)


def small_lines(picture: Array, where: Array, detect: Detector) -> list[Array]:
    """The lines of small text: searches the enlarged thin structures of the cells that may hold small text."""
    small = np.where(where == 2, where, 0)
    return level_and_upright(picture, small, lambda view, cells: lines_at(view, cells, CLOSEST, detect, True))


def level_and_upright(picture: Array, where: Array, search: Callable[[Array, Array], list[Array]]) -> list[Array]:
    """The corners of horizontal lines found in a picture, and of vertical lines found in the picture turned by 90
    degrees.

    The detector misses words and letters of vertical lines, which the turned picture makes horizontal. Horizontal lines
    are taken from the unturned picture only, because their corners would differ in the turned one.
    """
    lines, turned, rest = search(picture, where), np.ascontiguousarray(np.rot90(picture)), where.copy()
    for corners in lines:
        (left, top), (right, bottom) = (
            (corners.min(axis=0) / CELL).astype(int),
            (corners.max(axis=0) / CELL).astype(int),
        )
        if right - left > 2 * (bottom - top):
            rest[max(0, top) : bottom + 1, max(0, left) : right + 1] = 0
    for corners in search(turned, np.ascontiguousarray(np.rot90(rest))):
        width, height = np.ptp(corners, axis=0)
        if width >= height:
            x, y = picture.shape[1] - corners[:, 1], corners[:, 0]
            lines.append(np.stack([x, y], axis=1).astype(np.float32))
    return merged(lines)


def lines_at(picture: Array, where: Array, scale: float, detect: Detector, faint: bool) -> list[Array]:
    """The lines in a picture at a scale, in the picture's pixels."""
    lines = list[Array]()
    for corner, tile in marked_tiles(picture, where, scale):
        outlines = detect(thin_structures(tile) if faint else tile)
        lines += [(corners / scale + corner).astype(np.float32) for corners in outlines]
    return lines


def marked_tiles(picture: Array, where: Array, scale: float) -> Iterator[tuple[Array, Array]]:
    """The tiles of a picture at a scale that hold marked cells, with `AROUND` pixels about them: the place of their
    upper left corner in the picture, and their pixels."""
    reach = max(1, round(AROUND / scale / CELL))
    wide = cv2.dilate(np.minimum(where, 1), np.ones((2 * reach + 1, 2 * reach + 1), np.uint8))
    for left, top, width, height, _ in cv2.connectedComponentsWithStats(wide)[2][1:].tolist():
        marks = where[top : top + height, left : left + width]
        part = picture[CELL * top : CELL * (top + height), CELL * left : CELL * (left + width)]
        view = scaled(part, scale)
        for y, x, tile in tiles(view):
            (upper, lower), (start, end) = (
                (int(first / scale / CELL), int(np.ceil((first + size) / scale / CELL)))
                for first, size in zip((y, x), tile.shape, strict=True)
            )
            if marks[upper:lower, start:end].any():
                place = np.asarray((x / scale + CELL * left, y / scale + CELL * top), np.float32)
                yield place, np.ascontiguousarray(tile)


def scales(shape: tuple[int, ...], faint: bool) -> tuple[float, ...]:
    """The scales at which a picture of this shape is searched: one reduced to a tile, and the finest one."""
    longer = max(shape)
    finest = max(1.0, min(ENLARGED, ENLARGED_SIDE / longer)) if faint or ENLARGED * longer <= TILE else 1.0
    return (TILE / longer, finest) if TILE / longer < finest else (finest,)


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
    deviation = np.sqrt(cv2.GaussianBlur(difference**2, (0, 0), reach))
    return np.clip(128 + 50 * difference / np.maximum(deviation, LEAST_DEVIATION), 0, 255).astype(np.uint8)
