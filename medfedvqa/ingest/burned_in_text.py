"""Finds text that is burned into a picture, blanks it, and looks again."""

from dataclasses import dataclass

import cv2
import numpy as np

from medfedvqa.ingest.refusal_reasons import Quarantined, Reason

Array = np.ndarray
SCALE = 2
"""The detector sees twice the size that is stored: text that is too small to detect then is too small to read."""
LINE_HEIGHT = 0.10
"""A box whose short side is below this share of the picture's is blanked unread, since lines of text are low."""
CONFIDENCE = 0.5
"""A larger box is blanked if at least two letters or digits are read in it at this confidence: the detector takes rings
and bones for text, too, and the reader reads nothing in them."""
PIXEL_THRESHOLD, BOX_THRESHOLD = 0.2, 0.3
"""The detector's thresholds. Its defaults are 0.3 and 0.5; a missed text is worse than a needless blank."""
MARGIN = 3
"""Pixels of the stored picture that are blanked around a box."""
PASSES = 3
"""How often text is detected and blanked at most."""
MAX_BLANKED = 0.25
"""The largest share of the picture that may be blanked."""
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class CleanPicture:
    """A picture whose text is blanked."""

    grey: Array
    """uint8 [height, width]."""
    boxes: tuple[Box, ...]
    """The blanked boxes: left, top, right, bottom, in pixels of the stored picture."""

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

    def clean(self, grey: Array, side: int) -> CleanPicture:
        """The picture, uint8 [height, width], fitted to `side` pixels, with its text blanked.

        Raises `Quarantined` if text remains, or most of the picture is text.
        """
        stored = fitted(grey, side)
        large = fitted(grey, SCALE * side)
        if large.shape[0] < SCALE * stored.shape[0]:
            large = cv2.resize(stored, None, fx=SCALE, fy=SCALE, interpolation=cv2.INTER_CUBIC)
        boxes: list[Box] = []
        for _ in range(PASSES):
            text_boxes = self.find(large, stored.shape)
            if not text_boxes:
                break
            stored = blanked(stored, text_boxes)
            large = cv2.resize(stored, None, fx=SCALE, fy=SCALE, interpolation=cv2.INTER_CUBIC)
            boxes += text_boxes
        else:
            if self.find(large, stored.shape):
                raise Quarantined(Reason.TEXT_REMAINS)
        picture = CleanPicture(stored, tuple(boxes))
        if picture.share > MAX_BLANKED:
            raise Quarantined(Reason.MOSTLY_TEXT)
        return picture

    def find(self, large: Array, shape: tuple[int, ...]) -> list[Box]:
        """The boxes of text in an enlarged picture, in pixels of the picture of this shape, with a margin."""
        picture = np.repeat(large[..., None], 3, axis=2)
        quadrangles, _ = self._ocr(picture, use_cls=False, use_rec=False)
        boxes = []
        factors = shape[1] / large.shape[1], shape[0] / large.shape[0]
        for corners in quadrangles or ():
            left, top = np.floor(np.min(corners, axis=0)).astype(int).clip(0)
            right, bottom = np.ceil(np.max(corners, axis=0)).astype(int)
            if _short_side(corners) < LINE_HEIGHT * min(large.shape) or self._reads(picture[top:bottom, left:right]):
                boxes.append(_widened((left, top, right, bottom), factors, shape))
        return boxes

    def _reads(self, crop: Array) -> bool:
        """Whether the reader reads at least two letters or digits in this part of a picture."""
        if not crop.size:
            return False
        lines, _ = self._ocr(crop, use_det=False, use_cls=False, use_rec=True)
        return any(score >= CONFIDENCE and sum(map(str.isalnum, text)) >= 2 for text, score in lines or ())


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


def _short_side(corners: object) -> float:
    points = np.asarray(corners, dtype=np.float32)
    return float(min(np.linalg.norm(points[1] - points[0]), np.linalg.norm(points[2] - points[1])))


def _widened(box: Box, factors: tuple[float, float], shape: tuple[int, ...]) -> Box:
    left, top, right, bottom = box
    return (
        max(0, int(left * factors[0]) - MARGIN),
        max(0, int(top * factors[1]) - MARGIN),
        min(shape[1], int(np.ceil(right * factors[0])) + MARGIN),
        min(shape[0], int(np.ceil(bottom * factors[1])) + MARGIN),
    )
