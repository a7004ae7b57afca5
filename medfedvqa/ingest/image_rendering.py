"""Renders one frame of a DICOM image as the grey picture that a radiologist would see."""

from dataclasses import dataclass

import numpy as np
from pydicom.dataset import Dataset
from pydicom.encaps import get_frame
from pydicom.pixels.processing import apply_color_lut, apply_modality_lut
from pydicom.pixels.utils import pixel_array
from pydicom.uid import JPEGExtended12Bit

from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.refusal_reasons import Quarantined, Reason

Array = np.ndarray
LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601), as in DICOM's YBR."""
TAILS = (0.5, 99.5)
"""The percentiles that become black and white if a file names no window."""
COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "YBR_PARTIAL_420", "YBR_PARTIAL_422")


@dataclass(frozen=True)
class Rendered:
    """A rendered frame."""

    grey: Array
    """uint8 [height, width], black to white."""
    frame: int
    """The frame's number, from 0."""
    frames: int


def render(dataset: Dataset, options: Options) -> Rendered:
    """The chosen frame through modality LUT, VOI LUT or window, and photometric interpretation.

    Raises `Quarantined` if there is no decoder, or the picture cannot be decoded, has unknown colours or is blank;
    `MemoryError` if it is too large for this process.
    """
    frames = max(1, int(dataset.get("NumberOfFrames") or 1))
    frame = _frame_number(dataset, frames, options)
    try:
        grey = _grey(_decoded(dataset, frame, frames), dataset, frame)
    except (Quarantined, MemoryError):
        raise
    except NotImplementedError:
        raise Quarantined(Reason.NO_DECODER) from None
    except Exception as error:  # decoders raise errors of many kinds
        missing = isinstance(error, RuntimeError) and "missing dependencies" in str(error)
        raise Quarantined(Reason.NO_DECODER if missing else Reason.UNDECODABLE) from None
    if not np.isfinite(grey).all():
        raise Quarantined(Reason.UNDECODABLE)
    rendered = np.rint(np.clip(grey, 0, 1) * 255).astype(np.uint8)
    if rendered.min() == rendered.max():
        raise Quarantined(Reason.BLANK)
    return Rendered(rendered, frame, frames)


def window(values: Array, centre: float, width: float, function: str = "LINEAR") -> Array:
    """Values through a window, clipped to 0..1 (PS3.3 section C.11.2.1.2). Raises `Quarantined` for bad windows."""
    wide = width >= 1 if function == "LINEAR" else width > 0
    if not wide or not np.isfinite(centre) or not np.isfinite(width):
        raise Quarantined(Reason.UNDECODABLE)
    if function == "SIGMOID":
        return 1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -60, 60)))
    if function == "LINEAR_EXACT":
        return np.clip((values - centre) / width + 0.5, 0, 1)
    if width == 1:
        return (values > centre - 0.5).astype(np.float64)
    return np.clip((values - (centre - 0.5)) / (width - 1) + 0.5, 0, 1)


def _frame_number(dataset: Dataset, frames: int, options: Options) -> int:
    """The frame to render, from 0: the representative one if the file names it, else as the options say."""
    named = dataset.get("RepresentativeFrameNumber")
    if isinstance(named, int) and 1 <= named <= frames:
        return named - 1
    return frames // 2 if options.frame == "middle" else 0


def _decoded(dataset: Dataset, frame: int, frames: int) -> Array:
    """The stored values, [rows, columns] or [rows, columns, 3]; YBR is converted to RGB."""
    if dataset.file_meta.get("TransferSyntaxUID") == JPEGExtended12Bit and dataset.BitsStored != 8:
        return _twelve_bits(dataset, frame, frames)
    return pixel_array(dataset, index=frame)


def _twelve_bits(dataset: Dataset, frame: int, frames: int) -> Array:
    """The values of a grey JPEG of 12 bits. pydicom (3) does not pass it to GDCM, which can read it."""
    import gdcm

    fragment, fragments = gdcm.Fragment(), gdcm.SequenceOfFragments.New()
    fragment.SetByteStringValue(get_frame(dataset.PixelData, frame, number_of_frames=frames))
    fragments.AddFragment(fragment)
    element = gdcm.DataElement(gdcm.Tag(0x7FE0, 0x0010))
    element.SetValue(fragments.__ref__())
    image = gdcm.Image()
    image.SetNumberOfDimensions(2)
    image.SetDimensions((dataset.Columns, dataset.Rows, 1))
    image.SetDataElement(element)
    photometric = gdcm.PhotometricInterpretation.GetPIType(str(dataset.PhotometricInterpretation))
    image.SetPhotometricInterpretation(gdcm.PhotometricInterpretation(photometric))
    image.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.GetTSType(str(JPEGExtended12Bit))))
    image.SetPixelFormat(gdcm.PixelFormat(1, 16, 12, 11, 0))
    content = image.GetBuffer().encode("utf-8", "surrogateescape")
    return np.frombuffer(content, dtype="<u2").reshape(dataset.Rows, dataset.Columns)


def _grey(pixels: Array, dataset: Dataset, frame: int) -> Array:
    """The frame in greys from 0, black, to 1, white."""
    photometric = str(dataset.get("PhotometricInterpretation", ""))
    if photometric == "PALETTE COLOR":
        coloured = apply_color_lut(pixels, dataset)
        luminance: Array = coloured[..., :3] @ np.array(LUMINANCE) / np.iinfo(coloured.dtype).max
        return luminance
    if photometric in COLOURS and pixels.ndim == 3:
        luminance = pixels.astype(np.float64) @ np.array(LUMINANCE) / (2.0 ** int(dataset.BitsStored) - 1)
        return luminance
    if photometric not in ("MONOCHROME1", "MONOCHROME2") or pixels.ndim != 2:
        raise Quarantined(Reason.UNKNOWN_COLOURS)
    padding = _padding(pixels, dataset)
    grey = _before_inversion(pixels, dataset, frame, padding)
    inverted = 1 - grey if photometric == "MONOCHROME1" else grey
    return np.where(padding, 0.0, inverted)


def _before_inversion(pixels: Array, dataset: Dataset, frame: int, padding: Array) -> Array:
    """Stored values as greys from 0 to 1, before any inversion."""
    transformation = _of_frame(dataset, frame, "PixelValueTransformationSequence") or dataset
    values = apply_modality_lut(pixels, transformation).astype(np.float64)
    display = _of_frame(dataset, frame, "FrameVOILUTSequence") or dataset
    tables = display.get("VOILUTSequence")
    if tables:
        return _through_table(values, tables[0])
    centre, width = _first(display.get("WindowCenter")), _first(display.get("WindowWidth"))
    if centre is not None and width is not None and width > 0:
        return window(values, centre, width, str(display.get("VOILUTFunction") or "LINEAR"))
    recorded = values[~padding] if not padding.all() else values
    low, high = np.percentile(recorded, TAILS)
    if low == high:
        low, high = recorded.min(), recorded.max()
    greys: Array = np.clip((values - low) / max(high - low, np.finfo(np.float64).tiny), 0, 1)
    return greys


def _through_table(values: Array, table: Dataset) -> Array:
    """The values through a VOI LUT (PS3.3 section C.11.2.1.1)."""
    entries, first, bits = (int(number) for number in table.LUTDescriptor)
    entries = entries or 2**16
    data = table.LUTData
    if isinstance(data, bytes):
        data = np.frombuffer(data, dtype="<u2" if len(data) >= 2 * entries else "u1")
    data = np.asarray(data, dtype=np.float64)[:entries]
    places = np.clip(np.rint(values) - first, 0, len(data) - 1).astype(np.int64)
    greys: Array = data[places] / (2.0**bits - 1)
    return greys


def _padding(pixels: Array, dataset: Dataset) -> Array:
    """Which pixels are padding, bool, in the pixels' shape."""
    value, limit = dataset.get("PixelPaddingValue"), dataset.get("PixelPaddingRangeLimit")
    if not isinstance(value, int):
        return np.zeros(pixels.shape, dtype=bool)
    low, high = sorted((value, limit if isinstance(limit, int) else value))
    empty: Array = (pixels >= low) & (pixels <= high)
    return empty


def _of_frame(dataset: Dataset, frame: int, name: str) -> Dataset | None:
    """The functional group of this name, of one frame or else of all frames (PS3.3 section C.7.6.16); None without."""
    per_frame, shared = dataset.get("PerFrameFunctionalGroupsSequence"), dataset.get("SharedFunctionalGroupsSequence")
    groups = [per_frame[frame] if per_frame and frame < len(per_frame) else None, shared[0] if shared else None]
    sequences = (group.get(name) for group in groups if group is not None)
    return next((sequence[0] for sequence in sequences if sequence), None)


def _first(value: object) -> float | None:
    """The number, or the first of several; None if there is none."""
    if value is None or value == "":
        return None
    values = value if hasattr(value, "__iter__") and not isinstance(value, str) else [value]
    return next(map(float, values), None)
