"""Finds text and codes that are burned into a picture, reads them, blanks what must go, and looks again."""

import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Generic, TypeVar

import cv2
import numpy as np

from medfedvqa.ingest.device_masks import area, common_area
from medfedvqa.ingest.find_list import (
    CERTAIN,
    DOUBTFUL,
    Box,
    Decision,
    Find,
    FindKind,
    Reading,
    decide,
    is_central,
    is_nothing,
    is_off_anatomy,
    surroundings,
)
from medfedvqa.ingest.refusal_reasons import Quarantined, Reason
from medfedvqa.ingest.text_gate import CELL, TextGate, network
from medfedvqa.ingest.text_lines import (
    Array,
    Look,
    bridge,
    detected_lines,
    grown,
    line_gap,
    short_side,
    thin_structures,
)

# An offline detector and reader of lines of text: the models in RapidOCR's package.

Result = TypeVar("Result")
MODELS = (
    ("rapidocr_onnxruntime", "ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx")
    if sys.version_info < (3, 13)
    else ("rapidocr", "PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx")
)
"""The package, the detector and the reader. The first package has no release for Python 3.13; the other's models take
1.3 times as long."""
PIXEL_THRESHOLD, BOX_THRESHOLD, UNCLIP = 0.2, 0.3, 1.6
"""The detector's thresholds. Its defaults are 0.3 and 0.5; a missed text is worse than a false find. The last is the
default: how far an outline grows, in areas by lengths."""
LEAST_SHORT = 4
"""The least whole pixels along a line and across it."""
READER_HEIGHT = 48
"""The height in pixels to which the reader scales a line."""
LEAST_WIDTH = 96
"""The width in pixels to which a short line is padded for the reader. RapidOCR's default of 320 takes 2.3 times as
long for the finds of a film, most of which are short."""
STEP = 32
"""The detector's pictures have sides that are multiples of this."""
READER_REACH = 21
"""The reach in pixels of the filter that isolates a line's thin structures."""


class _Memo(Generic[Result]):
    """Caches a function of a picture by the picture's content: most of a picture is unchanged in a second search."""

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
    """The text detector and the line reader. Their results are cached until `forget`."""

    def __init__(self) -> None:
        package, detector, reader = MODELS
        models = Path(*import_module(package).__path__, "models")
        # To give the detector's memory back after each tile takes as long again; the reader's grows with the lines.
        self._detector = network(models / detector, keeps_memory=True)
        self._reader = network(models / reader, keeps_memory=False)
        outlines = import_module(f"{package}.ch_ppocr_det.utils").DBPostProcess
        self._outlines = outlines(PIXEL_THRESHOLD, BOX_THRESHOLD, unclip_ratio=UNCLIP, use_dilation=True)
        letters = self._reader.get_modelmeta().custom_metadata_map["character"].splitlines()
        self._letters = np.asarray(["", *letters, " "])
        self.detect = _Memo(self._detected)
        """The corners of each line in a picture, uint8 [height, width]: float32 [4, 2]."""
        self._read_upright = _Memo(self._upright)

    def forget(self) -> None:
        """Clear the caches before the pictures of the next patient."""
        self.detect.forget()
        self._read_upright.forget()

    def read(self, picture: Array, corners: Array) -> Reading:
        """The reading of a line with stretched contrast. If illegible, its thin structures may give a better one."""
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
        # The detector's own preparation would enlarge small pictures, and stretch others to multiples of its step.
        missing = 0, -view.shape[0] % STEP, 0, -view.shape[1] % STEP
        whole = cv2.copyMakeBorder(view, *missing, cv2.BORDER_CONSTANT, value=float(np.median(view)))
        planes = np.repeat((whole / np.float32(127.5) - 1)[None, None], 3, axis=1)
        (values,) = self._detector.run(None, {"x": planes})
        most = np.asarray(view.shape[::-1]) - 1
        lines = [np.clip(corners, 0, most).astype(np.float32) for corners in self._outlines(values, whole.shape)[0]]
        return [corners for corners in lines if min(_sides(corners)) >= LEAST_SHORT]

    def _upright(self, line: Array) -> Reading:
        """The best reading in both polarities, upright and turned by 180 degrees; stops at the first certain one."""
        readings = list[Reading]()
        for view in (view for turned in (line, np.rot90(line, 2)) for view in (turned, 255 - turned)):
            readings.append(self._read_line(view))
            if readings[-1].is_certain and readings[-1].confidence >= CERTAIN:
                break
        return max(readings, key=_rank)

    def _read_line(self, line: Array) -> Reading:
        # Connectionist temporal classification: a letter's repetitions in neighbouring steps are one letter.
        width = int(np.ceil(READER_HEIGHT * line.shape[1] / line.shape[0]))
        scaled = cv2.resize(line, (width, READER_HEIGHT)) / np.float32(127.5) - 1
        padded = np.pad(scaled, ((0, 0), (0, max(0, LEAST_WIDTH - width))))
        (values,) = self._reader.run(None, {"x": np.repeat(padded[None, None], 3, axis=1)})
        steps = values[0].argmax(axis=1)
        chosen = (steps != 0) & (np.diff(steps, prepend=0) != 0)
        confidence = float(values[0].max(axis=1)[chosen].mean()) if chosen.any() else 0.0
        return Reading("".join(self._letters[steps[chosen]]), confidence)


def _rank(reading: Reading) -> tuple[bool, bool, float]:
    return reading.is_legible, reading.confidence >= DOUBTFUL, reading.letters * reading.confidence**2


def _sides(corners: Array) -> tuple[int, int]:
    """The whole pixels along a line and across it."""
    return int(np.linalg.norm(corners[0] - corners[1])), int(np.linalg.norm(corners[0] - corners[3]))


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


# Finds QR codes and bar codes, which machines read and a text finder finds by luck alone.

TWO_LEVELS = 0.6
"""The least mean distance of a code's pixels from its middle grey, as a share of that to its black or white. It rejects
the teeth and ribs that OpenCV's finders read as codes."""
LEAST_SIDE = 12


def code_corners(picture: Array) -> list[Array]:
    """The corners of each code in a picture, uint8 [height, width], as float32 [4, 2] in its pixels."""
    quadrangles = []
    for view in (picture, 255 - picture):
        for finder in (cv2.QRCodeDetectorAruco(), cv2.QRCodeDetector(), cv2.barcode.BarcodeDetector()):
            try:
                any_found, corners = finder.detectMulti(view)
            except cv2.error:  # OpenCV (5.0) raises for some outlines that are not convex figures
                continue
            if any_found and corners is not None:
                quadrangles += list(np.asarray(corners, np.float32).reshape(-1, 4, 2))
    return [corners for corners in quadrangles if _has_two_levels(picture, corners)]


def _has_two_levels(picture: Array, corners: Array) -> bool:
    left, top = np.floor(corners.min(axis=0)).astype(int).clip(0)
    right, bottom = np.ceil(corners.max(axis=0)).astype(int)
    crop = picture[top:bottom, left:right].astype(np.float32)
    if min(crop.shape, default=0) < LEAST_SIDE:
        return False
    low, high = np.percentile(crop, (5, 95))
    if high - low < 20:
        return False
    distance = np.abs(crop.clip(low, high) - (low + high) / 2) / ((high - low) / 2)
    return float(distance.mean()) >= TWO_LEVELS


SEARCHED_SIDE, FINEST = 3072, 4
"""Pictures are searched at full resolution up to this many pixels a side, or up to this many times the stored size if
that is more."""
LINE_HEIGHT = 0.12
"""A find whose short side exceeds this share of the picture's counts only if letters are read in it: lines of text are
low, and the detector takes rings and bones for text."""
MARGIN = 3
"""Pixels of the stored picture that are blanked around a box."""
PASSES = 7
"""The most searches of a picture. Each look is taken once, then again in turn as long as text is found."""
TOUCHING, WORDS_APART = 0.5, 3.0
"""Gaps in a line, in heights of its letters. Up to the first, any mark belongs to the text beside it. Up to the second,
a number, a mark that is blanked anyway, or a mark between two texts does."""
MAX_BLANKED = 0.25
"""The largest share of the picture that may be text."""


# The gate's network knows letters of 4 to 18 pixels at level 1, and twice as large ones at each further level. In plain
# views they have 4 to 72 pixels, in the others 8 to 72.
PLAIN = Look(((1 | 2, 1.0), (4 | 8, 0.5)), faint=False, turned=True)
SMALL = Look(((1, 4.0),), faint=True, turned=True)
THIN = Look(((1 | 2, 2.0), (4, 1.0), (8, 0.5)), faint=True, turned=False)
LOOKS = PLAIN, SMALL, THIN
"""The looks of the passes, which take turns."""


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
        return self._share_of(self.boxes)

    @property
    def share_of_text(self) -> float:
        """The share of the pixels that are blanked for text or codes found, not for a mask, a person or the device."""
        found = (find for find in self.finds if find.kind != FindKind.REGION)
        return self._share_of(tuple(find.box for find in found if find.decision == Decision.BLANKED))

    def _share_of(self, boxes: Sequence[Box]) -> float:
        mask = np.zeros(self.grey.shape, dtype=bool)
        for left, top, right, bottom in boxes:
            mask[top:bottom, left:right] = True
        return float(mask.mean())


@dataclass(frozen=True)
class _Hit:
    """A line or a code in the searched picture, and the decision about it."""

    corners: Array
    """float32 [4, 2], in pixels of the searched picture."""
    kind: FindKind
    decision: Decision
    reading: Reading = Reading()

    @property
    def is_blanked(self) -> bool:
        """Whether its place is blanked."""
        return self.decision == Decision.BLANKED

    @property
    def is_text(self) -> bool:
        """Whether legible text is blanked."""
        return self.is_blanked and self.kind in (FindKind.TEXT, FindKind.IDENTIFIER)


class TextFinder:
    """Cleans pictures. A process loads it once."""

    def __init__(self) -> None:
        self._reader, self._gate = LineReader(), TextGate()

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
        person decided to keep, and that a person or a device's mask blanks. Raises `Quarantined` if text remains, or
        most of the picture is text.
        """
        self._reader.forget()
        stored = fitted(grey, side)
        searched = fitted(grey, max(SEARCHED_SIDE, FINEST * side))
        factors = stored.shape[1] / searched.shape[1], stored.shape[0] / searched.shape[0]
        # What a person or a mask blanks is blanked whether or not it would be found again.
        finds = [_removed(box, _enlarged(box, factors), searched) for box in removed]
        searched = blanked(searched, [_enlarged(box, factors) for box in removed])
        stored = blanked(stored, list(removed))
        earlier, stays, where = list[_Hit](), list[_Hit](), self._gate(searched)
        for number in range(PASSES):
            look = LOOKS[number % len(LOOKS)]
            if number == len(LOOKS):
                where |= self._gate(searched)
            hits = _no_part_of_marker(self._search(searched, where, look, is_known, blank_unread), stays)
            hits += (
                [] if number else [_Hit(corners, FindKind.CODE, Decision.BLANKED) for corners in code_corners(searched)]
            )
            hits = _with_rest_of_line(searched, [*hits, *stays], earlier)
            stays = [hit for hit in hits if not hit.is_blanked]
            earlier += [hit for hit in hits if hit.is_blanked]
            new = [_find(hit, factors, searched, stored.shape) for hit in hits]
            new = list({find.box: find for find in (_kept_by_person(find, kept) for find in new)}.values())
            new = [find for find in new if not _is_decided(find, finds)]
            finds += new
            boxes = [find.box for find in new if find.decision == Decision.BLANKED]
            searched = blanked(searched, [_enlarged(box, factors) for box in boxes])
            stored = blanked(stored, boxes)
            for left, top, right, bottom in (_enlarged(box, factors) for box in boxes):
                where[round(top / CELL) : round(bottom / CELL), round(left / CELL) : round(right / CELL)] = 0
            if number + 1 >= len(LOOKS) and not any(find.is_text for find in new):
                break
        else:
            raise Quarantined(Reason.TEXT_REMAINS)
        if any(stored[find.box[1] : find.box[3], find.box[0] : find.box[2]].any() for find in finds if find.is_text):
            raise Quarantined(Reason.TEXT_REMAINS)
        picture = CleanPicture(stored, tuple(_not_covered(finds)))
        if picture.share_of_text > MAX_BLANKED:
            raise Quarantined(Reason.MOSTLY_TEXT)
        return picture

    def _search(
        self, searched: Array, where: Array, look: Look, is_known: Callable[[str], bool], blank_unread: bool
    ) -> list[_Hit]:
        """The lines that a pass finds, without those that count as nothing."""
        lines, faint = detected_lines(searched, where, look, self._reader.detect), look.faint
        hits = []
        for corners in lines:
            box, reading = _box(corners), self._reader.read(searched, corners)
            square = max(box[2] - box[0], box[3] - box[1]) < 2 * min(box[2] - box[0], box[3] - box[1])
            unread_goes = blank_unread and not is_central(box, searched)
            kind, decision = decide(reading, is_known, is_off_anatomy(box, searched), unread_goes, square, faint)
            is_low = short_side(corners) < LINE_HEIGHT * min(searched.shape)
            # A row of marks in which the detector sees a line is something, whether or not it is legible.
            nothing = look is not SMALL and is_nothing(kind, decision, reading, faint)
            if (kind != FindKind.UNREAD or is_low) and not nothing:
                hits.append(_Hit(corners, kind, decision, reading))
        return hits


def _no_part_of_marker(hits: list[_Hit], earlier: Sequence[_Hit]) -> list[_Hit]:
    """The hits without parts of a marker that was read as a whole; an identifier counts wherever it is read."""
    markers = [_box(hit.corners) for hit in earlier if hit.kind == FindKind.MARKER]
    return [hit for hit in hits if hit.kind == FindKind.IDENTIFIER or not _lies_in(_box(hit.corners), markers)]


def _with_rest_of_line(searched: Array, hits: list[_Hit], earlier: Sequence[_Hit]) -> list[_Hit]:
    """The hits, with text extended along its line: to marks touching it, numbers near it, and marks between two parts.

    `earlier`: the hits that are blanked already.
    """
    hits = [_grown(searched, hit) if hit.is_text else hit for hit in hits]
    texts = [hit.corners for hit in (*earlier, *hits) if hit.is_text]

    def belongs(hit: _Hit) -> bool:
        is_number = hit.reading.text and not any(map(str.isalpha, hit.reading.text))
        apart = WORDS_APART if hit.is_blanked or is_number else TOUCHING
        return hit.kind != FindKind.CODE and any(line_gap(hit.corners, text) <= apart for text in texts)

    whole = [
        _grown(searched, replace(hit, kind=FindKind.TEXT, decision=Decision.BLANKED))
        if not hit.is_text and belongs(hit)
        else hit
        for hit in hits
    ]
    lines = [hit.corners for hit in (*earlier, *whole) if hit.is_blanked and hit.kind != FindKind.CODE]
    between = [
        _Hit(bridge(hit.corners, line), FindKind.TEXT, Decision.BLANKED)
        for hit in whole
        for line in lines
        if hit.is_text and 0 < line_gap(hit.corners, line) <= WORDS_APART
    ]
    return [*whole, *between]


def _grown(searched: Array, hit: _Hit) -> _Hit:
    return replace(hit, corners=grown(searched, hit.corners))


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


def _box(corners: Array) -> Box:
    left, top = np.floor(corners.min(axis=0)).astype(int).clip(0)
    right, bottom = np.ceil(corners.max(axis=0)).astype(int)
    return int(left), int(top), int(right), int(bottom)


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


def _find(hit: _Hit, factors: tuple[float, float], searched: Array, stored: tuple[int, ...]) -> Find:
    """The hit in pixels of the stored picture, with its surroundings as they are before anything is blanked."""
    box = _box(hit.corners)
    return Find(_widened(box, factors, stored), hit.kind, hit.decision, hit.reading, surroundings(box, searched))


def _removed(box: Box, searched_box: Box, searched: Array) -> Find:
    """The find of a box that a person or a mask blanks."""
    return Find(box, FindKind.REGION, Decision.BLANKED, Reading(), surroundings(searched_box, searched))


def _kept_by_person(find: Find, kept: Sequence[Box]) -> Find:
    """The find; if it mostly lies in a box that a person keeps, with that box, so that its id stays the same."""
    box = next((box for box in kept if _lies_in(find.box, [box])), None)
    return find if box is None else replace(find, box=box, decision=Decision.KEPT)


def _is_decided(find: Find, earlier: list[Find]) -> bool:
    """Whether a find that stays lies mostly within one that was found before and stays."""
    kept = [other.box for other in earlier if other.decision != Decision.BLANKED]
    return find.decision != Decision.BLANKED and _lies_in(find.box, kept)


def _not_covered(finds: list[Find]) -> list[Find]:
    """The finds without unblanked ones that a blanked find mostly covers."""
    boxes = [find.box for find in finds if find.decision == Decision.BLANKED]
    return [find for find in finds if find.decision == Decision.BLANKED or not _lies_in(find.box, boxes)]


def _lies_in(box: Box, others: Iterable[Box]) -> bool:
    """Whether more than half of a box lies in one of the others."""
    return any(2 * common_area(box, other) > area(box) for other in others)
