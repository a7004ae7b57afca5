"""Finds in pictures, the decision about each, and their list: a file for each picture, in a folder beside the store.

It holds what was read, and crops of pictures as they were: **it never leaves the site.** The folder has mode 0700, the
files have mode 0600, and a store that is handed on does not contain it.
"""

import base64
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import cv2
import numpy as np
from pydantic import Field, ValidationError

from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.identifier_search import identifiers_in
from medfedvqa.ingest.name_forms import MARKERS, folded
from medfedvqa.ingest.store import Count, Keyed, StrictModel

Array = np.ndarray
Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels."""
LEGIBLE, SINGLE, DOUBTFUL, NOTHING = 0.70, 0.85, 0.30, 0.20
"""The least confidences at which a line is legible, a line of two letters is, and a reading may name the patient. Below
the last one, a find in anatomy is not text: there the reader sees a letter in any edge of an organ."""
FAINT, CERTAIN = 0.50, 0.90
"""The confidences from which an unread find among thin structures may be text, and from which three or four letters are
text among thin structures or in anatomy."""
BORDER, DARK_BORDER = 0.12, 0.25
"""The borders, as shares of a picture's sides, within which a mark is not anatomy: anywhere, and on black ground."""
CENTRE = 0.2
"""The share of a picture's sides, from each end, that lies outside of its centre. In the centre nothing is blanked
unread, not even on black ground: a mark there may belong to the table, beside the anatomy."""
BLACK = 24
"""The grey up to which ground is black."""
_SETTING = re.compile(r"(?:[a-z]{0,3}[:=]?)?[+-]?\d{1,3}(?:[.,]\d{1,3})?(?:cm|mm|%|kv|kvp|ma|mas|x|hu)?", re.IGNORECASE)
_PART_OF_DATE = re.compile(r"0\d|\d\d\.\d\d")
"""Numbers that settings of a device are seldom and parts of dates often: the reader may read a date in two parts."""


class FindKind(StrEnum):
    """The kind of a find."""

    IDENTIFIER = "identifier"
    TEXT = "text"
    CODE = "code"
    MARKER = "marker"
    UNREAD = "unread"
    REGION = "region"
    """Not found: a person or the mask of a device blanks it."""


class Decision(StrEnum):
    """The decision about a find."""

    BLANKED = "blanked"
    KEPT = "kept"
    FLAGGED = "flagged"
    """Kept, and open for a person's decision."""


@dataclass(frozen=True)
class Reading:
    """The reader's result for a line of text. Its repr shows no text, which may name a patient."""

    text: str = field(default="", repr=False)
    confidence: float = 0.0

    @property
    def letters(self) -> int:
        """The number of letters and digits."""
        return sum(map(str.isalnum, self.text))

    @property
    def is_legible(self) -> bool:
        """Whether these are certainly letters. A bone may look like one letter, but seldom like three."""
        return self.letters >= 3 and self.confidence >= LEGIBLE or self.letters == 2 and self.confidence >= SINGLE

    @property
    def is_certain(self) -> bool:
        """Whether these are letters also where ribs, vessels and grain may look like three of them."""
        return self.is_legible and (self.letters >= 5 or self.letters >= 3 and self.confidence >= CERTAIN)


@dataclass(frozen=True)
class Find:
    """A text or a code in a picture, in pixels of the stored picture."""

    box: Box
    kind: FindKind
    decision: Decision
    reading: Reading
    crop: Array = field(repr=False, compare=False)
    """The find and its surroundings as they were, uint8 [height, width]."""

    @property
    def is_text(self) -> bool:
        """Whether it is legible text, or a code, that is blanked."""
        return self.decision == Decision.BLANKED and self.kind in (FindKind.IDENTIFIER, FindKind.TEXT, FindKind.CODE)


def decide(
    reading: Reading,
    is_known: Callable[[str], bool],
    off_anatomy: bool,
    blank_unread: bool,
    square: bool = False,
    faint: bool = False,
) -> tuple[FindKind, Decision]:
    """Classifies a find and decides about it.

    `is_known`: whether the patient's header has a form of an identifier. `off_anatomy`: the find is near the border.
    `blank_unread`: what is not legible there is blanked; else it is flagged. In anatomy nothing is blanked unread.
    `square`: the find has room for one letter only. A single letter identifies nobody and is kept: most are electrodes,
    vessels and bones. `faint`: it was found among thin structures.
    """
    if reading.confidence >= DOUBTFUL and identifiers_in(reading.text, is_known, doubtful=True):
        return FindKind.IDENTIFIER, Decision.BLANKED
    if is_marker(reading):
        return FindKind.MARKER, Decision.KEPT
    if reading.is_legible and (off_anatomy and not faint or reading.is_certain):
        return FindKind.TEXT, Decision.BLANKED
    if square and reading.letters == 1:
        return FindKind.UNREAD, Decision.KEPT
    return FindKind.UNREAD, Decision.BLANKED if off_anatomy and blank_unread else Decision.FLAGGED


def is_nothing(kind: FindKind, decision: Decision, reading: Reading, faint: bool) -> bool:
    """Whether an unread find is not text. `faint`: it is a thin structure alone, of which anatomy is full: there single
    letters and doubtful readings, and in the centre two letters, are vessels, ribs and grain."""
    if faint:
        least = 3 if decision == Decision.FLAGGED else 2
        return kind == FindKind.UNREAD and (reading.letters < least or reading.confidence < FAINT)
    return decision == Decision.FLAGGED and reading.confidence < NOTHING


def is_marker(reading: Reading) -> bool:
    """Whether a line consists of markers of side, view or scale, and of settings of the device, alone."""
    words = re.findall(r"[^\s/|,;()\[\]-]+", reading.text)
    if not words or reading.confidence < LEGIBLE:
        return False
    if any(_PART_OF_DATE.fullmatch(word) for word in words):
        return False
    return all(folded(word) in MARKERS or _SETTING.fullmatch(word) for word in words)


def is_off_anatomy(box: Box, picture: Array) -> bool:
    """Whether a box lies within the picture's border; on black ground a wider border counts."""
    distance = _distance(box, picture)
    return distance < BORDER or (distance < DARK_BORDER and _is_on_black(box, picture))


def is_central(box: Box, picture: Array) -> bool:
    """Whether the middle of a box lies in the central 60 % of the picture's width and height."""
    return _distance(box, picture) > CENTRE


def _distance(box: Box, picture: Array) -> float:
    """The distance of a box's middle from the nearest side of the picture, as a share of its width or height."""
    height, width = picture.shape
    left, top, right, bottom = box
    x, y = (left + right) / 2 / width, (top + bottom) / 2 / height
    return float(min(x, 1 - x, y, 1 - y))


def _is_on_black(box: Box, picture: Array) -> bool:
    """Whether nine of ten pixels around a box are black."""
    left, top, right, bottom = box
    reach = max(2, (bottom - top) // 3)
    outer = picture[max(0, top - reach) : bottom + reach, max(0, left - reach) : right + reach]
    inner = picture[top:bottom, left:right]
    around = outer.size - inner.size
    black = int((outer <= BLACK).sum()) - int((inner <= BLACK).sum())
    return around > 0 and black >= 0.9 * around


def surroundings(box: Box, picture: Array) -> Array:
    """A copy of a box of a picture, with a margin as wide as its shorter side, or 8 pixels if that is more."""
    left, top, right, bottom = box
    reach = max(8, min(bottom - top, right - left))
    return picture[max(0, top - reach) : bottom + reach, max(0, left - reach) : right + reach].copy()


SUFFIX = ".review"
"""The end of the name of the folder beside a store."""
_FINDS = ".finds.json"
MOST_WIDTH = 480
"""The most pixels along a side of a crop."""
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$", repr=False)]
FindId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class RecordedFind(StrictModel):
    """One find."""

    id: FindId
    box: Annotated[list[Count], Field(min_length=4, max_length=4)]
    kind: FindKind = Field(strict=False)
    decision: Decision = Field(strict=False)
    reading: str = Field(repr=False)
    confidence: float
    crop: Base64
    """The find and its surroundings as they were: PNG in base64."""


class RecordedFinds(StrictModel):
    """The finds in a picture of the store."""

    format: Literal["medfedvqa-finds/1"] = "medfedvqa-finds/1"
    image: Keyed
    before: Base64
    """The picture before anything was blanked, in the stored size: JPEG in base64."""
    device: Annotated[list[str], Field(min_length=2, max_length=2, repr=False)]
    """Manufacturer and model."""
    size: Annotated[list[Count], Field(min_length=2, max_length=2)]
    """Rows and columns of the original."""
    finds: list[RecordedFind]


def folder_of_finds(store: Path) -> Path:
    """The folder beside a store."""
    place = store.resolve()
    return place.with_name(f"{place.name}{SUFFIX}")


@dataclass(frozen=True)
class Origin:
    """A picture before cleaning, with its device and its original size."""

    before: np.ndarray
    """In the stored size, uint8 [height, width]."""
    device: tuple[str, str]
    """Manufacturer and model."""
    size: tuple[int, ...]
    """Rows and columns of the original."""


def make_folder_of_finds(store: Path) -> Path:
    """The folder beside a store, made with mode 0700 if it is new. Raises `ConfigError`."""
    folder = folder_of_finds(store)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chmod(folder, 0o700)
    except OSError:
        raise ConfigError("the folder of finds beside the store cannot be made: check --out's folder") from None
    return folder


def find_id(image: str, box: Box) -> str:
    """The name of a find: a digest of picture and box, which are the same in every ingestion with the same options."""
    return hashlib.sha256(f"{image} {' '.join(map(str, box))}".encode()).hexdigest()[:16]


def write_finds(folder: Path, image: str, finds: Collection[Find], origin: Origin) -> None:
    """Write the finds in a picture, and its origin; nothing if there are no finds."""
    if not finds:
        (folder / f"{image}{_FINDS}").unlink(missing_ok=True)
        return
    recorded = [
        RecordedFind(
            id=find_id(image, find.box),
            box=list(find.box),
            kind=find.kind,
            decision=find.decision,
            reading=find.reading.text,
            confidence=round(find.reading.confidence, 3),
            crop=_png(find.crop),
        )
        for find in finds
    ]
    before, device, size = encoded(origin.before, ".jpg"), list(origin.device), list(origin.size)
    whole = RecordedFinds(image=image, before=before, device=device, size=size, finds=recorded)
    content = whole.model_dump_json().encode() + b"\n"
    write_whole(folder / f"{image}{_FINDS}", content, PRIVATE)


def read_finds(folder: Path) -> Iterator[RecordedFinds]:
    """All finds, picture by picture. Raises `DataError`."""
    for path in sorted(folder.glob(f"*{_FINDS}")):
        try:
            yield RecordedFinds.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            raise DataError("the list of finds beside the store is damaged: run medfedvqa ingest again") from None


def keep_finds(folder: Path, images: Collection[str]) -> None:
    """Remove the finds of all pictures but these."""
    for path in folder.glob(f"*{_FINDS}"):
        if path.name.removesuffix(_FINDS) not in images:
            path.unlink()


def _png(crop: np.ndarray) -> str:
    factor = min(1.0, MOST_WIDTH / max(*crop.shape, 1))
    if factor < 1:
        crop = cv2.resize(crop, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
    return encoded(crop, ".png")


def encoded(picture: np.ndarray, suffix: str) -> str:
    """A picture, uint8 [height, width] or [height, width, 3], as PNG or JPEG in base64."""
    written, content = cv2.imencode(suffix, picture)
    if not written:
        raise ValueError("a picture cannot be encoded")
    return base64.b64encode(content.tobytes()).decode()
