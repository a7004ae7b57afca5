"""How images are made ready: what a user may choose, and which codes say so in every file."""

import hashlib
import json
from dataclasses import asdict, dataclass

from medfedvqa.errors import ConfigError

RECIPE = 1
"""Raised whenever the same file and options would give another picture or header: older records are made anew."""
FRAMES = ("middle", "first")
RETAINABLE = ("characteristics", "dates")

BASIC_PROFILE = ("113100", "Basic Application Confidentiality Profile")
CLEAN_PIXELS = ("113101", "Clean Pixel Data Option")
RETAIN_DATES = ("113107", "Retain Longitudinal Temporal Information Modified Dates Option")
RETAIN_CHARACTERISTICS = ("113108", "Retain Patient Characteristics Option")
Code = tuple[str, str]


@dataclass(frozen=True)
class Options:
    """What shapes the store; all of it is written into the manifest."""

    side: int = 384
    """Most pixels along the longer side of a stored picture; text is looked for at twice as many."""
    frame: str = "middle"
    """Which frame of several, where the file names no representative one: `middle` or `first`."""
    retain: tuple[str, ...] = ()
    """Of `RETAINABLE`: age, sex, size, weight, smoking and pregnancy; dates, shifted by patient."""
    max_pixels: int = 64 * 2**20
    """Most rows times columns that a file may declare."""
    memory: int = 3072
    """MiB of address space that a worker may use, at least 1536: text recognition alone takes most of that."""
    seconds: int = 120
    """Most time for one file."""

    def __post_init__(self) -> None:
        if not 64 <= self.side <= 1024:
            raise ConfigError("the side of stored pictures is 64 to 1024 pixels")
        if self.frame not in FRAMES:
            raise ConfigError(f"the frame is one of: {', '.join(FRAMES)}")
        if set(self.retain) - set(RETAINABLE):
            raise ConfigError(f"what can be retained is: {', '.join(RETAINABLE)}")
        if self.max_pixels < 2**16 or self.memory < 1536 or self.seconds < 5:
            raise ConfigError("limits are at least 65536 pixels, 1536 MiB and 5 seconds")

    @property
    def max_bytes(self) -> int:
        """Most bytes of a file, and of what a deflated one inflates to."""
        return self.memory * 2**20 // 4

    @property
    def codes(self) -> tuple[Code, ...]:
        """What was done, as codes of DICOM's context group 7050."""
        codes = [BASIC_PROFILE, CLEAN_PIXELS]
        if "dates" in self.retain:
            codes.append(RETAIN_DATES)
        if "characteristics" in self.retain:
            codes.append(RETAIN_CHARACTERISTICS)
        return tuple(codes)

    def recipe(self, versions: dict[str, str]) -> str:
        """A digest of all that decides what becomes of a file, tools included, hex."""
        facts = json.dumps([RECIPE, asdict(self), versions], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:16]
