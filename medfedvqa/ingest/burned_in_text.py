"""Text that is burned into a picture: found, blanked, and looked for again."""

from dataclasses import dataclass

import cv2
import numpy as np

from medfedvqa.ingest.refusal_reasons import Quarantined, Reason

Array = np.ndarray
SCALE = 2
"""Text is looked for at twice the size that is stored: what is then too small to find is too small to read."""
LOW = 0.10
"""A find whose short side is below this share of the picture's is blanked unread, as lines of text are low."""
SURE = 0.5
"""A larger find is blanked if at least two letters or digits are read in it at this confidence: rings and bones are
found as text, too, and read as nothing."""
DETECTED, BOXED = 0.2, 0.3
"""The detector's thresholds for pixels and boxes, below its defaults of 0.3 and 0.5: missing less counts for more."""
MARGIN = 3
"""Pixels of the stored picture that are blanked around a find."""
PASSES = 3
MOST = 0.25
"""Share of the picture that may be blanked."""
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Cleaned:
    """A picture without the text that was found in it."""

    grey: Array
    """uint8 [height, width]."""
    boxes: tuple[Box, ...]
    """What was blanked: left, top, right, bottom, in pixels of the stored picture."""

    @property
    def share(self) -> float:
        """Share of the pixels that were blanked."""
        blanked = np.zeros(self.grey.shape, dtype=bool)
        for left, top, right, bottom in self.boxes:
            blanked[top:bottom, left:right] = True
        return float(blanked.mean())


class TextFinder:
    """The offline text detector and reader, loaded once for a process."""

    def __init__(self) -> None:
        from rapidocr_onnxruntime import RapidOCR

        # Sizes are chosen here: the detector must not enlarge small pictures to 736 pixels by itself.
        self._ocr = RapidOCR(
            intra_op_num_threads=1,
            inter_op_num_threads=1,
            det_limit_side_len=32,
            det_limit_type="min",
            det_thresh=DETECTED,
            det_box_thresh=BOXED,
            max_side_len=8192,
        )

    def clean(self, grey: Array, side: int) -> Cleaned:
        """The picture, uint8 [height, width], fitted to `side` pixels and without the text that is found in it.

        Raises `Quarantined`: text remains, mostly text.
        """
        stored = fitted(grey, side)
        large = fitted(grey, SCALE * side)
        if large.shape[0] < SCALE * stored.shape[0]:
            large = cv2.resize(stored, None, fx=SCALE, fy=SCALE, interpolation=cv2.INTER_CUBIC)
        boxes: list[Box] = []
        for _ in range(PASSES):
            found = self.find(large, stored.shape)
            if not found:
                break
            stored = blanked(stored, found)
            large = cv2.resize(stored, None, fx=SCALE, fy=SCALE, interpolation=cv2.INTER_CUBIC)
            boxes += found
        else:
            if self.find(large, stored.shape):
                raise Quarantined(Reason.TEXT_REMAINS)
        cleaned = Cleaned(stored, tuple(boxes))
        if cleaned.share > MOST:
            raise Quarantined(Reason.MOSTLY_TEXT)
        return cleaned

    def find(self, large: Array, shape: tuple[int, ...]) -> list[Box]:
        """Boxes of text in an enlarged picture, in pixels of the picture of this shape, with a margin."""
        picture = np.repeat(large[..., None], 3, axis=2)
        finds, _ = self._ocr(picture, use_cls=False, use_rec=False)
        boxes = []
        factors = shape[1] / large.shape[1], shape[0] / large.shape[0]
        for corners in finds or ():
            left, top = np.floor(np.min(corners, axis=0)).astype(int).clip(0)
            right, bottom = np.ceil(np.max(corners, axis=0)).astype(int)
            if _short_side(corners) < LOW * min(large.shape) or self._reads(picture[top:bottom, left:right]):
                boxes.append(_widened((left, top, right, bottom), factors, shape))
        return boxes

    def _reads(self, crop: Array) -> bool:
        if not crop.size:
            return False
        lines, _ = self._ocr(crop, use_det=False, use_cls=False, use_rec=True)
        return any(score >= SURE and sum(map(str.isalnum, text)) >= 2 for text, score in lines or ())


def fitted(grey: Array, side: int) -> Array:
    """The picture with its longer side at most `side` pixels, aspect kept, never enlarged."""
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
