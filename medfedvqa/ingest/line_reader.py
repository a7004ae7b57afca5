"""An offline detector and reader of lines of text, RapidOCR with the models in its package."""

import hashlib
from collections.abc import Callable
from typing import Generic, TypeVar

import cv2
import numpy as np

from medfedvqa.ingest.text_finds import CERTAIN, DOUBTFUL, Reading
from medfedvqa.ingest.text_lines import thin_structures

Array = np.ndarray
Result = TypeVar("Result")
PIXEL_THRESHOLD, BOX_THRESHOLD = 0.2, 0.3
"""The detector's thresholds. Its defaults are 0.3 and 0.5; a missed text is worse than one find more to read."""
READER_HEIGHT = 48
"""The height in pixels of the lines that the reader takes."""
LEAST_WIDTH = 96
"""The width in pixels to which a line is filled up for the reader. Its default of 320 makes it take 2.3 times as long
over the finds of a film, most of which are short."""
READER_REACH = 21
"""Pixels in such a line within which contrast is made equal."""


class _Memo(Generic[Result]):
    """A function of a picture, computed once for each content: in a second search most of a picture is unchanged."""

    def __init__(self, function: Callable[[Array], Result]) -> None:
        self._function, self._results = function, dict[bytes, Result]()

    def __call__(self, picture: Array) -> Result:
        content = np.ascontiguousarray(picture)
        key = hashlib.blake2b(repr(content.shape).encode() + content.tobytes(), digest_size=16).digest()
        if key not in self._results:
            self._results[key] = self._function(picture)
        return self._results[key]

    def forget(self) -> None:
        """Forget all results."""
        self._results.clear()


class LineReader:
    """Loads both models. What it made of a picture is remembered until `forget`."""

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
            rec_img_shape=[3, READER_HEIGHT, LEAST_WIDTH],
        )
        self.detect = _Memo(self._detected)
        """The corners of each line in a picture, uint8 [height, width]: float32 [4, 2]."""
        self._read_upright = _Memo(self._upright)

    def forget(self) -> None:
        """Forget the pictures of one patient before those of the next."""
        self.detect.forget()
        self._read_upright.forget()

    def read(self, picture: Array, corners: Array) -> Reading:
        """The best reading of a line with its contrast stretched; if it is not legible, also of its thin structures."""
        line = _straightened(picture, corners)
        if min(line.shape) < 4:
            return Reading()
        if line.shape[0] > 1.5 * line.shape[1]:
            line = np.ascontiguousarray(np.rot90(line))
        reading = self._read_upright(_stretched(line))
        if reading.is_legible:
            return reading
        return max(reading, self._read_upright(thin_structures(line, READER_REACH)), key=_rank)

    def _detected(self, view: Array) -> list[Array]:
        quadrangles, _ = self._ocr(_coloured(view), use_cls=False, use_rec=False)
        return [np.asarray(corners, np.float32) for corners in quadrangles or ()]

    def _upright(self, line: Array) -> Reading:
        """The best reading in both polarities, as the line is and turned by half a circle; the first certain one."""
        readings = list[Reading]()
        for view in (view for turned in (line, np.rot90(line, 2)) for view in (turned, 255 - turned)):
            ((text, confidence),), _ = self._ocr.text_rec([_coloured(view)])
            readings.append(Reading(str(text), float(confidence)))
            if readings[-1].is_certain and confidence >= CERTAIN:
                break
        return max(readings, key=_rank)


def _rank(reading: Reading) -> tuple[bool, bool, float]:
    return reading.is_legible, reading.confidence >= DOUBTFUL, reading.letters * reading.confidence**2


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
