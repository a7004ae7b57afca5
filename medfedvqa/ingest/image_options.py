"""Options of the preparation of images, and the DICOM codes that record them in every file."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from medfedvqa.errors import ConfigError

RECIPE = 5
"""Increase this number when the same file and options give another picture or header: old records are then renewed."""
FRAMES = re.compile(r"all|middle|first|every:[1-9]\d{0,8}", re.ASCII)
ONE_FRAME = ("middle", "first")
"""The choices of frames that keep one frame of a file."""
UNREAD_POLICIES = ("blank", "flag")
TEXT_POLICIES = ("leave-out", "replace")
RETAINABLE = ("characteristics", "dates")
_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
ASSUMPTION = re.compile(
    rf"window(?:\.[A-Z]{{2,16}})?={_NUMBER},(?!0+(?:\.0+)?$|-){_NUMBER}|meta=[0-9.]{{1,64}}|uid=content", re.ASCII
)
"""What can be assumed of a header: a window, for all modalities or one; the transfer syntax of compressed pixel data; a
SOP instance UID that is made of the pixel data."""

BASIC_PROFILE = ("113100", "Basic Application Confidentiality Profile")
CLEAN_PIXELS = ("113101", "Clean Pixel Data Option")
RETAIN_DATES = ("113107", "Retain Longitudinal Temporal Information Modified Dates Option")
RETAIN_CHARACTERISTICS = ("113108", "Retain Patient Characteristics Option")
Code = tuple[str, str]


class Cleaning(StrEnum):
    """How far the pixels of a picture are cleaned, as its header says it in (0012,0063)."""

    MACHINE = "Pixels cleaned by machine, not reviewed"
    REVIEWED = "Pixels cleaned by machine, reviewed by a person"
    OPEN = "Pixels cleaned by machine, marks wait for review"


@dataclass(frozen=True)
class Options:
    """The options that decide what the store holds. The manifest records them."""

    side: int = 384
    """The most pixels along the longer side of a stored picture; text is searched at up to four times as many."""
    frames: str = "middle"
    """Which frames of several are kept: `all`; `every:N`, from the first on; or one, the representative frame if the
    file names it, else the `middle` or the `first`."""
    retain: tuple[str, ...] = ()
    """Members of `RETAINABLE`: age, sex, size, weight, smoking and pregnancy; and dates, shifted by patient."""
    max_pixels: int = 64 * 2**20
    """The most pixels, rows times columns, that a file may declare."""
    memory: int = 3072
    """MiB of address space that a worker may use, at least 2048: finding and reading text takes most of that."""
    seconds: int = 120
    """The most time for one picture."""
    identifiers: str = "leave-out"
    """How to treat a question that holds an identifier: `leave-out`, or `replace` it by a placeholder."""

    unread: str = "blank"
    """How to treat unread marks near the border: `blank`, or `flag` them for review."""
    masks: str = ""
    """The script of the regions that are blanked by device: see `medfedvqa.ingest.device_masks`."""
    assume: tuple[str, ...] = ()
    """What is taken where a DICOM header lacks it; each matches `ASSUMPTION`."""

    def __post_init__(self) -> None:
        if not 64 <= self.side <= 1024:
            raise ConfigError("the side of stored pictures must be 64 to 1024 pixels")
        if not FRAMES.fullmatch(self.frames):
            raise ConfigError("--frames must be one of: all, middle, first, every:N with N of at least 1")
        if set(self.retain) - set(RETAINABLE):
            raise ConfigError(f"--retain must be one of: {', '.join(RETAINABLE)}")
        if self.identifiers not in TEXT_POLICIES:
            raise ConfigError(f"--identifiers must be one of: {', '.join(TEXT_POLICIES)}")
        if self.unread not in UNREAD_POLICIES:
            raise ConfigError(f"--unread must be one of: {', '.join(UNREAD_POLICIES)}")
        if not all(map(ASSUMPTION.fullmatch, self.assume)):
            raise ConfigError(
                "--assume must be one of: window=CENTRE,WIDTH, window.MODALITY=CENTRE,WIDTH, meta=TRANSFER-SYNTAX-UID, "
                "uid=content"
            )
        if self.max_pixels < 2**16 or self.memory < 2048 or self.seconds < 5:
            raise ConfigError("the limits must be at least 65536 pixels, 2048 MiB and 5 seconds")

    def kept(self, frames: int) -> range:
        """The frames that are kept, from 0, of a file that has this many and names no representative frame."""
        kind, _, step = self.frames.partition(":")
        first = frames // 2 if kind == "middle" else 0
        return range(first, first + 1) if kind in ONE_FRAME else range(0, frames, int(step or 1))

    @property
    def assumed(self) -> dict[str, str]:
        """What is assumed, by its name: `window`, `window.MODALITY`, `meta`, `uid`."""
        return {name: value for name, _, value in (text.partition("=") for text in self.assume)}

    @property
    def max_bytes(self) -> int:
        """The largest size of a file in bytes, also after inflating a deflated file."""
        return self.memory * 2**20 // 4

    def codes(self, is_clean: bool) -> tuple[Code, ...]:
        """The de-identification options in force, as codes of DICOM's context group 7050.

        `is_clean`: no mark in the pixels waits for a person's decision.
        """
        codes = [BASIC_PROFILE, *([CLEAN_PIXELS] if is_clean else [])]
        if "dates" in self.retain:
            codes.append(RETAIN_DATES)
        if "characteristics" in self.retain:
            codes.append(RETAIN_CHARACTERISTICS)
        return tuple(codes)

    def recorded(self) -> dict[str, Any]:
        """The options for the manifest: masks as their SHA-256 alone, since their comments are the site's own."""
        return asdict(self) | {"masks": hashlib.sha256(self.masks.encode()).hexdigest() if self.masks else ""}

    def recipe(self, versions: dict[str, str]) -> str:
        """A digest of all that decides the outcome for an image: options and versions of tools, hex."""
        options = {name: value for name, value in asdict(self).items() if name != "identifiers"}
        facts = json.dumps([RECIPE, options, versions], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:16]
