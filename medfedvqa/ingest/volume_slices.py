"""Cuts the slices that a table of questions names out of NIfTI volumes, into pictures for the ingestion.

A slice of `scans/a.nii.gz` is named `scans/a.nii.gz@axial-80.png`. Slices count from 0 along the patient's axis: axial
ones from the feet, coronal ones from the back, sagittal ones from the left, however the file stores them; oblique
volumes by their nearest axes.
"""

import gzip
import re
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from PIL import Image

from audits.bounded_files import open_plain
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import DataError
from medfedvqa.ingest.organs import checked_organs
from medfedvqa.ingest.picture_levels import square_pixels
from medfedvqa.ingest.questions import named_images

NAME = re.compile(r"(?P<volume>.+\.nii(?:\.gz)?)@(?P<plane>axial|coronal|sagittal)-(?P<number>\d{1,5})\.png")
PLANES = ("sagittal", "coronal", "axial")
"""By the axis of the patient that they cut: to the right, to the front, to the head."""
MOST_VOXELS = 2**31
MOST_PIXELS = 2**24
Watch = Callable[[int, int], None]
"""A function that receives the number of slices done, and their total."""


class SliceOutcome(StrEnum):
    """The outcome of cutting the slice that a name means."""

    CUT = "cut"
    PRESENT = "present"
    NO_VOLUME = "no volume"
    NO_SLICE = "no slice"
    NO_ORIENTATION = "no orientation"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Window:
    """The values that become black and white, as a radiologist sets them; CT has Hounsfield units."""

    black: float
    white: float

    def __post_init__(self) -> None:
        """Raises `DataError` for a window without values between."""
        if not np.isfinite([self.black, self.white]).all() or self.black >= self.white:
            raise DataError("a window must be two numbers, the second one larger: -160,240")


def cut_slices(
    volumes: Path,
    questions: Path,
    folder: Path,
    watch: Watch,
    organs: Collection[str] = (),
    window: Window | None = None,
) -> Counter[SliceOutcome]:
    """Write each slice that a question names into the folder, and count the outcomes; other names are left alone.

    A slice lies as radiologists look at it: the patient's right, or front, on the left, and the head, or front, above.
    Pixels are square. Without a window levels have 16 bits, from the slice's lowest value to its highest; with one 8.
    Slices that the folder has are not cut again. `organs`: the hospital's own, which the questions may name. Raises
    `DataError`, which repeats no name.
    """
    images = named_images(questions, checked_organs(organs))
    names = [match for name in images if (match := NAME.fullmatch(name))]
    if not volumes.is_dir():
        raise DataError("the folder of volumes does not exist: check its path")
    outcomes = Counter[SliceOutcome]()
    for done, match in enumerate(names, 1):
        outcomes[_write_slice(volumes, folder / match.group(), match, window)] += 1
        watch(done, len(names))
    return outcomes


def _write_slice(volumes: Path, path: Path, name: re.Match[str], window: Window | None) -> SliceOutcome:
    if path.exists():
        return SliceOutcome.PRESENT
    levels = _slice_of(volumes / name["volume"], PLANES.index(name["plane"]), int(name["number"]))
    if isinstance(levels, SliceOutcome):
        return levels
    content = BytesIO()
    Image.fromarray(_grey(levels, window)).save(content, "PNG")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, content.getvalue(), PRIVATE)
    return SliceOutcome.CUT


def _slice_of(path: Path, axis: int, number: int) -> np.ndarray | SliceOutcome:
    """The values of a slice, float32 [rows, columns] as they are looked at, or why there are none."""
    with ExitStack() as stack:
        try:
            file: Any = stack.enter_context(open_plain(path))
        except OSError:
            return SliceOutcome.NO_VOLUME
        if path.suffix == ".gz":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        try:
            volume = _opened(file)
            values = _read_slice(volume, axis, number)
            return values if _is_whole(file, volume) else SliceOutcome.DAMAGED
        except MemoryError:
            raise
        except Exception:  # nibabel, gzip and numpy raise errors of many kinds for damaged files
            return SliceOutcome.DAMAGED


def _opened(file: Any) -> Any:
    """The volume in a NIfTI-1 or NIfTI-2 file that is open for reading bytes; reads its header alone."""
    start = file.read(4)
    file.seek(0)
    header_bytes = {int.from_bytes(start, "little"), int.from_bytes(start, "big")}
    kind = nib.Nifti2Image if 540 in header_bytes else nib.Nifti1Image
    return kind.from_stream(file)


def _is_whole(file: Any, volume: Any) -> bool:
    """Whether the file has all voxels. Reading past the last one makes gzip compare the checksum."""
    size = np.prod(volume.shape, dtype=np.int64) * volume.get_data_dtype().itemsize
    file.seek(int(volume.dataobj.offset + size - 1))
    return bool(file.read(2))


def _read_slice(volume: Any, axis: int, number: int) -> np.ndarray | SliceOutcome:
    """See `_slice_of`. `axis`: the one of the patient that the slice cuts."""
    shape = volume.shape[:3]
    if any(length != 1 for length in volume.shape[3:]) or len(shape) != 3 or np.prod(shape, dtype=float) > MOST_VOXELS:
        return SliceOutcome.DAMAGED
    if volume.get_data_dtype().kind not in "iuf":
        return SliceOutcome.DAMAGED
    if not volume.header["sform_code"] and not volume.header["qform_code"]:
        return SliceOutcome.NO_ORIENTATION
    orientation = nib.io_orientation(volume.affine)
    if np.isnan(orientation).any():
        return SliceOutcome.NO_ORIENTATION
    stored = {int(patient): place for place, (patient, _) in enumerate(orientation)}
    directions = {int(patient): direction for patient, direction in orientation}
    if number >= shape[stored[axis]] or np.prod(shape, dtype=float) / shape[stored[axis]] > MOST_PIXELS:
        return SliceOutcome.NO_SLICE
    place = number if directions[axis] > 0 else shape[stored[axis]] - 1 - number
    chosen = [slice(None)] * 3 + [0] * (len(volume.shape) - 3)
    chosen[stored[axis]] = place
    values = np.asarray(volume.dataobj[tuple(chosen)], dtype=np.float32)
    # Columns go from the patient's right, or front, and rows from the head, or front: against these axes.
    columns, rows = [left for left in range(3) if left != axis]
    if stored[columns] < stored[rows]:
        values = values.T
    values = values[:: -int(directions[rows]), :: -int(directions[columns])]
    spacing = nib.affines.voxel_sizes(volume.affine)
    finite = np.nan_to_num(values, nan=0, posinf=0, neginf=0)
    squared = square_pixels(finite, spacing[stored[rows]], spacing[stored[columns]], MOST_PIXELS)
    return values if squared is finite else squared


def _grey(values: np.ndarray, window: Window | None) -> np.ndarray:
    """Levels of 8 bits within the window, else of 16 bits from the lowest value to the highest; NaN is black."""
    finite, levels = values[np.isfinite(values)], np.iinfo(np.uint8 if window else np.uint16)
    if window is None:
        window = Window(finite.min(), finite.max()) if finite.size and np.ptp(finite) else Window(0, 1)
    shares = (values.astype(np.float64) - window.black) / (window.white - window.black)
    return np.rint(np.nan_to_num(np.clip(shares, 0, 1)) * levels.max).astype(levels.dtype)
