"""Finds text and codes that are burned into a picture, reads them, blanks what must go, and looks again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np

from medfedvqa.ingest.machine_codes import code_corners
from medfedvqa.ingest.refusal_reasons import Quarantined, Reason
from medfedvqa.ingest.text_finds import (
    Box,
    Decision,
    Find,
    Kind,
    Reading,
    decide,
    is_nothing,
    is_off_anatomy,
    surroundings,
)

Array = np.ndarray
SEARCHED_SIDE, FINEST = 1536, 4
"""Pictures are searched at full resolution up to this many pixels a side, or up to this many times the stored size if
that is more: letters that are lower than 8 pixels then are lower than 2 pixels in what is stored."""
SMALL = 1024
"""Pictures with fewer pixels a side are doubled before they are searched."""
LINE_HEIGHT = 0.10
"""Of finds whose short side is above this share of the picture's only those count in which letters are read: lines of
text are low, and the detector takes rings and bones for text, too."""
PIXEL_THRESHOLD, BOX_THRESHOLD = 0.2, 0.3
"""The detector's thresholds. Its defaults are 0.3 and 0.5; a missed text is worse than one find more to read."""
MARGIN = 3
"""Pixels of the stored picture that are blanked around a box."""
PASSES = 4
"""How often a picture is searched at most. The second pass looks for faint text, and is always made."""
MAX_BLANKED = 0.25
"""The largest share of the picture that may be blanked."""
READER_HEIGHT = 48
"""The height in pixels of the lines that the reader takes."""


@dataclass(frozen=True)
class CleanPicture:
    """A picture without its text."""

    grey: Array
    """uint8 [height, width]."""
    finds: tuple[Find, ...]

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The blanked boxes: left, top, right, bottom, in pixels of the stored picture."""
        return tuple(find.box for find in self.finds if find.decision == Decision.BLANKED)

    @property
    def flags(self) -> int:
        """The number of finds that wait for a person's decision."""
        return sum(find.decision == Decision.FLAGGED for find in self.finds)

    @property
    def share(self) -> float:
        """The share of the pixels that are blanked."""
        mask = np.zeros(self.grey.shape, dtype=bool)
        for left, top, right, bottom in self.boxes:
            mask[top:bottom, left:right] = True
        return float(mask.mean())


class TextFinder:
    """An offline text detector and reader. A process loads it once."""

    def __init__(self) -> None:
        from rapidocr_onnxruntime import RapidOCR

        # Sizes are chosen here: the detector must not enlarge small pictures to 736 pixels by itself.
        self._ocr = RapidOCR(
            intra_op_num_threads=1,
            inter_op_num_threads=1,
            det_limit_side_len=32,
            det_limit_type="min",
            det_thresh=PIXEL_THRESHOLD,
            det_box_thresh=BOX_THRESHOLD,
            max_side_len=8192,
        )

    def clean(
        self,
        grey: Array,
        side: int,
        is_known: Callable[[str], bool] = lambda form: False,
        blank_unread: bool = True,
        kept: Sequence[Box] = (),
        removed: Sequence[Box] = (),
    ) -> CleanPicture:
        """The picture, uint8 [height, width], fitted to `side` pixels, without its text and codes.

        `is_known` and `blank_unread`: see `text_finds.decide`. `kept` and `removed`: boxes of the stored picture that a
        person decided to keep or to blank. Raises `Quarantined` if text remains, or most of the picture is text.
        """
        stored = fitted(grey, side)
        searched = fitted(grey, max(SEARCHED_SIDE, FINEST * side))
        factors = stored.shape[1] / searched.shape[1], stored.shape[0] / searched.shape[0]
        # What a person blanks is blanked whether or not it would be found again.
        finds = [_removed(box, _enlarged(box, factors), searched) for box in removed]
        searched = blanked(searched, [_enlarged(box, factors) for box in removed])
        stored = blanked(stored, list(removed))
        for number in range(PASSES):
            new = [
                Find(_widened(box, factors, stored.shape), kind, decision, reading, surroundings(box, searched))
                for box, kind, decision, reading in self._search(searched, number, is_known, blank_unread)
            ]
            new = list({find.box: find for find in (_kept_by_person(find, kept) for find in new)}.values())
            new = [find for find in new if not _is_decided(find, finds)]
            finds += new
            boxes = [find.box for find in new if find.decision == Decision.BLANKED]
            searched = blanked(searched, [_enlarged(box, factors) for box in boxes])
            stored = blanked(stored, boxes)
            if number and not boxes:
                break
        else:
            raise Quarantined(Reason.TEXT_REMAINS)
        picture = CleanPicture(stored, tuple(_not_covered(finds)))
        if picture.share > MAX_BLANKED:
            raise Quarantined(Reason.MOSTLY_TEXT)
        return picture

    def _search(
        self, searched: Array, number: int, is_known: Callable[[str], bool], blank_unread: bool
    ) -> list[tuple[Box, Kind, Decision, Reading]]:
        """The finds of a pass, with boxes in pixels of the searched picture."""
        results = []
        if number == 0:
            results = [(_box(corners), Kind.CODE, Decision.BLANKED, Reading()) for corners in code_corners(searched)]
        for corners in self._lines(searched, faint=number % 2 == 1):
            box, reading = _box(corners), self.read(searched, corners)
            square = max(box[2] - box[0], box[3] - box[1]) < 1.5 * min(box[2] - box[0], box[3] - box[1])
            kind, decision = decide(reading, is_known, is_off_anatomy(box, searched), blank_unread, square)
            is_low = _short_side(corners) < LINE_HEIGHT * min(searched.shape)
            if (kind != Kind.UNREAD or is_low) and not is_nothing(decision, reading):
                results.append((box, kind, decision, reading))
        return results

    def _lines(self, searched: Array, faint: bool) -> list[Array]:
        """The corners of each line of text, float32 [4, 2]. `faint`: in the picture with equal local contrast."""
        scale = 2 if max(searched.shape) < SMALL else 1
        view = local_contrast(searched) if faint else searched
        if scale != 1:
            view = cv2.resize(view, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
        quadrangles, _ = self._ocr(_coloured(view), use_cls=False, use_rec=False)
        return [np.asarray(corners, np.float32) / scale for corners in quadrangles or ()]

    def read(self, picture: Array, corners: Array) -> Reading:
        """The best reading of a line: in both polarities, with its contrast stretched, and turned by half a circle."""
        line = _straightened(picture, corners)
        if min(line.shape) < 4:
            return Reading()
        if line.shape[0] > 1.5 * line.shape[1]:
            line = np.rot90(line)
        line = _stretched(line)
        views = [_coloured(view) for turned in (line, np.rot90(line, 2)) for view in (turned, 255 - turned)]
        results, _ = self._ocr.text_rec(views)
        readings = [Reading(str(text), float(confidence)) for text, confidence in results]
        return max(readings, key=lambda reading: (reading.is_legible, reading.letters * reading.confidence**2))


def fitted(grey: Array, side: int) -> Array:
    """The picture, reduced so that its longer side has at most `side` pixels; it keeps its aspect."""
    factor = side / max(grey.shape)
    if factor >= 1:
        return grey
    height, width = (max(1, round(factor * length)) for length in grey.shape)
    return cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)


def blanked(grey: Array, boxes: list[Box]) -> Array:
    """A copy with the boxes filled with black."""
    copy = grey.copy()
    for left, top, right, bottom in boxes:
        copy[top:bottom, left:right] = 0
    return copy


def local_contrast(grey: Array) -> Array:
    """The picture with equal contrast everywhere: grey letters on a grey plate become black and white."""
    values = grey.astype(np.float32)
    reach = max(8, max(grey.shape) / 48)
    difference = values - cv2.GaussianBlur(values, (0, 0), reach)
    deviation = np.sqrt(cv2.GaussianBlur(difference**2, (0, 0), reach))
    return np.clip(128 + 50 * difference / np.maximum(deviation, 6), 0, 255).astype(np.uint8)


def _coloured(grey: Array) -> Array:
    return np.repeat(np.ascontiguousarray(grey)[..., None], 3, axis=2)


def _stretched(line: Array) -> Array:
    low, high = np.percentile(line, (2, 98))
    stretched: Array = np.clip((line - low) * (255 / max(high - low, 1)), 0, 255).astype(np.uint8)
    return stretched


def _straightened(picture: Array, corners: Array) -> Array:
    """The line within these corners and a margin, turned upright."""
    centre = corners.mean(axis=0)
    width = float(np.linalg.norm(corners[1] - corners[0]))
    height = float(np.linalg.norm(corners[3] - corners[0]))
    margin = 0.15 * min(width, height)
    scale = READER_HEIGHT / max(min(width, height) + 2 * margin, 1)
    size = round(scale * (width + 2 * margin)), round(scale * (height + 2 * margin))
    if min(size) < 1 or max(size) > 8192:
        return np.zeros((0, 0), np.uint8)
    along = (corners[1] - corners[0]) / max(width, 1)
    across = (corners[3] - corners[0]) / max(height, 1)
    x, y = along * (width / 2 + margin), across * (height / 2 + margin)
    source = np.asarray([centre - x - y, centre + x - y, centre - x + y], np.float32)
    target = np.asarray([(0, 0), (size[0], 0), (0, size[1])], np.float32)
    transform = cv2.getAffineTransform(source, target)
    return cv2.warpAffine(picture, transform, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)


def _box(corners: Array) -> Box:
    left, top = np.floor(corners.min(axis=0)).astype(int).clip(0)
    right, bottom = np.ceil(corners.max(axis=0)).astype(int)
    return int(left), int(top), int(right), int(bottom)


def _short_side(corners: Array) -> float:
    return float(min(np.linalg.norm(corners[1] - corners[0]), np.linalg.norm(corners[2] - corners[1])))


def _widened(box: Box, factors: tuple[float, float], shape: tuple[int, ...]) -> Box:
    """A box of the searched picture in pixels of the stored one, with a margin."""
    left, top, right, bottom = box
    return (
        max(0, int(left * factors[0]) - MARGIN),
        max(0, int(top * factors[1]) - MARGIN),
        min(shape[1], int(np.ceil(right * factors[0])) + MARGIN),
        min(shape[0], int(np.ceil(bottom * factors[1])) + MARGIN),
    )


def _enlarged(box: Box, factors: tuple[float, float]) -> Box:
    """A box of the stored picture in pixels of the searched one."""
    left, top, right, bottom = box
    return int(left / factors[0]), int(top / factors[1]), round(right / factors[0]), round(bottom / factors[1])


def _removed(box: Box, searched_box: Box, searched: Array) -> Find:
    """The find of a box that a person blanks."""
    return Find(box, Kind.UNREAD, Decision.BLANKED, Reading(), surroundings(searched_box, searched))


def _kept_by_person(find: Find, kept: Sequence[Box]) -> Find:
    """The find as the box that a person keeps, if it mostly lies in one: so it has the same id as before."""
    box = next((box for box in kept if 2 * _common(find.box, box) > _area(find.box)), None)
    return find if box is None else replace(find, box=box, decision=Decision.KEPT)


def _is_decided(find: Find, earlier: list[Find]) -> bool:
    """Whether a find that stays lies mostly within one that was found before and stays."""
    if find.decision == Decision.BLANKED:
        return False
    kept = (other.box for other in earlier if other.decision != Decision.BLANKED)
    return any(2 * _common(find.box, box) > _area(find.box) for box in kept)


def _not_covered(finds: list[Find]) -> list[Find]:
    """The finds without those that stayed at first and were blanked with another one later."""
    boxes = [find.box for find in finds if find.decision == Decision.BLANKED]
    return [
        find
        for find in finds
        if find.decision == Decision.BLANKED or not any(2 * _common(find.box, box) > _area(find.box) for box in boxes)
    ]


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])


def _common(one: Box, other: Box) -> int:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0, width) * max(0, height)
