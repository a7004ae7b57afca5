"""The list of what was found in pictures: a file for each picture, in a folder beside the store.

It holds what was read, and crops of pictures as they were: **it never leaves the site.** The folder has mode 0700, the
files have mode 0600, and a store that is handed on does not contain it.
"""

import base64
import hashlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import cv2
import numpy as np
from pydantic import Field, ValidationError

from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.store import Count, Keyed, StrictModel
from medfedvqa.ingest.text_finds import Box, Decision, Find, FindKind

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
