"""Renders one frame of a DICOM image as the grey picture that a radiologist would see."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydicom.dataset import Dataset
from pydicom.encaps import get_frame
from pydicom.pixels.processing import apply_color_lut
from pydicom.pixels.utils import pixel_array
from pydicom.uid import JPEGExtended12Bit

from medfedvqa.ingest.dicom_reading import first_window, numbers
from medfedvqa.ingest.image_options import ONE_FRAME, Options
from medfedvqa.ingest.picture_levels import square_pixels
from medfedvqa.ingest.refusal_reasons import Quarantined, Reason

# The stored values of a DICOM frame, and which of them are padding, whatever bits around them hold.
#
# A value lies in the `BitsStored` bits below `HighBit` (PS3.5 section 8.1.1); overlays or rubbish may lie in the
# others.

Array = np.ndarray


def stored_values(dataset: Dataset, frame: int, frames: int, intercept: float) -> tuple[Array, Array]:
    """The values, [rows, columns] or [rows, columns, 3] with YBR as RGB, and which pixels are padding, bool.

    `intercept`: the rescale intercept, which reveals a CT that declares unsigned values but holds negative ones. Raises
    `Quarantined` for bits that contradict each other.
    """
    pixels = _decoded(dataset, frame, frames)
    if pixels.dtype.kind == "f" or dataset.BitsAllocated == 1:
        return pixels, ~np.isfinite(pixels)
    allocated, stored = 8 * pixels.itemsize, int(dataset.BitsStored)
    high, is_signed = dataset.get("HighBit"), bool(dataset.get("PixelRepresentation"))
    spare = (stored - 1 if high is None else int(high)) + 1 - stored
    words = pixels.astype(np.int32 if allocated < 32 else np.int64) & (2**allocated - 1)
    if not 0 <= spare <= allocated - stored:
        raise Quarantined(Reason.BAD_BITS)
    if spare and words.max() < 2**stored and (words & (2**spare - 1)).any():
        raise Quarantined(Reason.BAD_BITS)
    if dataset.get("LossyImageCompression") == "01" and not is_signed:
        values = np.minimum(words >> spare, 2**stored - 1)  # what exceeds the range is noise of the compression
    else:
        values = _wrapped(words >> spare, stored, is_signed)
    padding = _padding(dataset, words >> spare, values, allocated)
    if not is_signed and stored == allocated == 16 and values.ndim == 2:
        is_ct = intercept < 0 or dataset.get("Modality") == "CT"
        values = _wrapped(values, 16, is_signed=is_ct and _holds_negatives(values))
    return values, padding


def _decoded(dataset: Dataset, frame: int, frames: int) -> Array:
    """The frame's values as the decoder gives them."""
    syntax = dataset.file_meta.TransferSyntaxUID
    if syntax == JPEGExtended12Bit and dataset.BitsStored != 8:
        return _twelve_bits(dataset, frame, frames)
    is_halved = dataset.PhotometricInterpretation == "YBR_FULL_422" and not syntax.is_encapsulated
    if is_halved and len(dataset.PixelData) >= dataset.Rows * dataset.Columns * 3 * frames:
        dataset.PhotometricInterpretation = "YBR_FULL"  # every pixel has its own colour, against the header
    return pixel_array(dataset, index=frame, correct_unused_bits=False)


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


def _wrapped(values: Array, bits: int, is_signed: bool) -> Array:
    """The lowest bits of each value, as signed or unsigned numbers."""
    low: Array = values & (2**bits - 1)
    return (low ^ 2 ** (bits - 1)) - 2 ** (bits - 1) if is_signed else low


def _padding(dataset: Dataset, words: Array, values: Array, allocated: int) -> Array:
    """Which pixels are padding, bool. The padding value may have the other sign, and lie beyond the stored bits."""
    value, limit = dataset.get("PixelPaddingValue"), dataset.get("PixelPaddingRangeLimit")
    if not isinstance(value, int):
        return np.zeros(values.shape, dtype=bool)
    ends = np.array([value, limit if isinstance(limit, int) else value], dtype=np.int64)
    is_signed = bool(dataset.get("PixelRepresentation"))
    whole = np.sort(_wrapped(ends, allocated, is_signed))
    stored = np.sort(_wrapped(ends, int(dataset.BitsStored), is_signed))
    if (whole != stored).any():
        unmasked = _wrapped(words, allocated, is_signed)
        empty: Array = (unmasked >= whole[0]) & (unmasked <= whole[1])
        if empty.any():
            return empty
    return np.asarray((values >= stored[0]) & (values <= stored[1]))


def _holds_negatives(values: Array) -> bool:
    """Whether 16-bit values look like negative ones: none in the middle half of the range, and some above but 65535."""
    high = values[values >= 2**14]
    return high.size > 0 and high.min() >= 2**16 - 2**14 and high.min() < 2**16 - 1


# Lookup tables (PS3.3 sections C.7.6.3.1.5 and C.11.2.1.1); what an entry needs counts, not what is declared.

DEPTHS = (8, 10, 12, 14, 16)
"""The depths in bits that equipment has."""


def depth_of(values: np.ndarray) -> int:
    """The least of `DEPTHS` that holds the values. Devices declare 16 bits for smaller entries: they would be black."""
    bits = int(values.max()).bit_length()
    return next((depth for depth in DEPTHS if depth >= bits), bits)


def looked_up(values: np.ndarray, descriptor: Sequence[int], data: bytes | Sequence[int]) -> tuple[np.ndarray, int]:
    """Looks values of any shape up in the table; returns float64 and the table's depth. Ends of the table are repeated.

    Some files write the table's first value unsigned where pixel values are signed, or the reverse. It is corrected by
    2**16 where else no value would lie in the table.
    """
    count, first = int(descriptor[0]) % 2**16 or 2**16, int(descriptor[1])
    content = data if isinstance(data, bytes) else np.asarray(data, dtype=np.int64).astype("<u2").tobytes()
    entries = np.frombuffer(content, dtype="<u2" if len(content) >= 2 * count else "u1")[:count]
    if first >= 2**15 and values.max() < first:
        first -= 2**16
    elif first < 0 and values.min() >= first + len(entries):
        first += 2**16
    places = np.clip(np.rint(values) - first, 0, len(entries) - 1).astype(np.int64)
    return entries[places].astype(np.float64), depth_of(entries)


LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601), as in DICOM's YBR."""
TAILS = (0.5, 99.5)
"""The percentiles that become black and white if a file names no window."""
OUTLYING = 1.25
"""If the whole range is at most this many times that between the percentiles, nothing is cut off."""
FEWEST_GREYS, MOST_WHITE = 16, 0.5
"""Below this number of greys, or with more than this share of white pixels, a picture is not what a radiologist saw. Of
7,537 films, slices and drawings from open sets none has fewer than 104 greys, or more than 0.21 of its pixels white.
Black does not count: it is what lies around a body."""
LONGEST = 8
"""The largest ratio of a pixel's longer side to its shorter one."""
SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "YBR_PARTIAL_420", "YBR_PARTIAL_422")


@dataclass(frozen=True)
class Rendered:
    """A rendered frame."""

    grey: Array
    """uint8 [height, width], black to white, of square pixels."""
    frame: int
    """The frame's number, from 0."""
    frames: int
    original: tuple[int, int]
    """Rows and columns before pixels became square."""


def render(dataset: Dataset, options: Options, frame: int | None = None) -> Rendered:
    """A frame through modality LUT, VOI LUT or window, and photometric interpretation. No other frame is decoded.

    `frame`: its number from 0; without it the frame that stands for the file. Raises `Quarantined` if there is no
    decoder, or the picture cannot be decoded, has unknown colours, few greys or much white; `MemoryError` if it is too
    large for this process.
    """
    try:
        frames = max(1, int(numbers(dataset, "NumberOfFrames")[0] or 1))
        frame = _main_frame(dataset, frames, options) if frame is None else frame
        grey, padding = _grey(dataset, frame, frames)
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
    _check_greys(rendered, padding)
    return Rendered(_squared(rendered, dataset, frame, options), frame, frames, (grey.shape[0], grey.shape[1]))


def _check_greys(rendered: Array, padding: Array) -> None:
    """Raises `Quarantined` if the picture is not what a radiologist saw."""
    greys, recorded = np.count_nonzero(np.bincount(rendered.ravel(), minlength=256)), rendered[~padding]
    if greys == 1:
        raise Quarantined(Reason.BLANK)
    if greys < FEWEST_GREYS:
        raise Quarantined(Reason.FEW_GREYS)
    if (recorded == 255).mean() > MOST_WHITE:
        raise Quarantined(Reason.SATURATED)


def _squared(rendered: Array, dataset: Dataset, frame: int, options: Options) -> Array:
    """The picture with square pixels, by the first spacing or ratio of `SPACINGS` that the header has."""
    measures = _of_frame(dataset, frame, "PixelMeasuresSequence")
    sources = [numbers(measures, "PixelSpacing"), *(numbers(dataset, name) for name in SPACINGS)]
    pairs = ((pair[0], pair[1]) for pair in sources if len(pair) == 2)
    height, width = next(((high, wide) for high, wide in pairs if high and wide and min(high, wide) > 0), (1, 1))
    if not max(height, width) <= LONGEST * min(height, width):
        raise Quarantined(Reason.STRETCHED)
    try:
        return np.asarray(np.rint(square_pixels(rendered, height, width, options.max_pixels)), dtype=np.uint8)
    except ValueError:
        raise Quarantined(Reason.TOO_LARGE) from None


def window(values: Array, centre: float, width: float, function: str = "LINEAR") -> Array:
    """Values through a window, clipped to 0..1 (PS3.3 section C.11.2.1.2). Raises `Quarantined` for bad windows.

    LINEAR needs a width of 1 at least. Files whose rescaled values lie closer together mean LINEAR_EXACT.
    """
    if not width > 0 or not np.isfinite(centre) or not np.isfinite(width):
        raise Quarantined(Reason.NOT_A_NUMBER)
    if function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        raise Quarantined(Reason.BAD_WINDOW)
    if function == "SIGMOID":
        return 1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -60, 60)))
    if function == "LINEAR_EXACT" or width < 1:
        return np.clip((values - centre) / width + 0.5, 0, 1)
    if width == 1:
        return (values > centre - 0.5).astype(np.float64)
    return np.clip((values - (centre - 0.5)) / (width - 1) + 0.5, 0, 1)


def _main_frame(dataset: Dataset, frames: int, options: Options) -> int:
    """The frame that stands for the file, from 0: the representative one, unless it is not kept, else the middle one
    of those that are kept."""
    kept, named = options.kept(frames), dataset.get("RepresentativeFrameNumber")
    if isinstance(named, int) and 1 <= named <= frames and (options.frames in ONE_FRAME or named - 1 in kept):
        return named - 1
    return kept[len(kept) // 2]


def _grey(dataset: Dataset, frame: int, frames: int) -> tuple[Array, Array]:
    """The frame in greys from 0, black, to 1, white; and which pixels are padding."""
    transformation = _of_frame(dataset, frame, "PixelValueTransformationSequence") or dataset
    intercept = numbers(transformation, "RescaleIntercept")[0] or 0.0
    pixels, padding = stored_values(dataset, frame, frames, intercept)
    photometric = str(dataset.get("PhotometricInterpretation", ""))
    if photometric == "PALETTE COLOR":
        return _through_palette(pixels, dataset), np.zeros(pixels.shape, dtype=bool)
    if photometric in COLOURS and pixels.ndim == 3:
        depth = min(int(dataset.BitsStored), depth_of(pixels))
        luminance: Array = pixels.astype(np.float64) @ np.array(LUMINANCE) / (2.0**depth - 1)
        return luminance, np.zeros(luminance.shape, dtype=bool)
    if photometric not in ("MONOCHROME1", "MONOCHROME2") or pixels.ndim != 2:
        raise Quarantined(Reason.UNKNOWN_COLOURS)
    values = _rescaled(np.where(padding, 0, pixels) if pixels.dtype.kind == "f" else pixels, transformation, intercept)
    grey = _before_inversion(values, dataset, frame, padding)
    is_inverted = photometric == "MONOCHROME1" or dataset.get("PresentationLUTShape") == "INVERSE"
    return np.where(padding, 0.0, 1 - grey if is_inverted else grey), padding


def _through_palette(pixels: Array, dataset: Dataset) -> Array:
    """The luminance of a palette's colours, 0 to 1."""
    if "RedPaletteColorLookupTableData" not in dataset:  # a table in segments, which pydicom expands
        coloured = apply_color_lut(pixels, dataset)[..., :3]
        segmented: Array = coloured @ np.array(LUMINANCE) / (2.0 ** depth_of(coloured) - 1)
        return segmented
    names = [f"{colour}PaletteColorLookupTable" for colour in ("Red", "Green", "Blue")]
    found = [looked_up(pixels, dataset[f"{name}Descriptor"].value, dataset[f"{name}Data"].value) for name in names]
    colours = np.stack([entries for entries, _ in found], axis=-1)
    luminance: Array = colours @ np.array(LUMINANCE) / (2.0 ** max(depth for _, depth in found) - 1)
    return luminance


def _rescaled(pixels: Array, transformation: Dataset, intercept: float) -> Array:
    """Stored values through the modality LUT, or through slope and intercept."""
    if tables := transformation.get("ModalityLUTSequence"):
        return looked_up(pixels, tables[0].LUTDescriptor, tables[0].LUTData)[0]
    slope = numbers(transformation, "RescaleSlope")[0]
    return pixels.astype(np.float64) * (1.0 if slope is None else slope) + intercept


def _before_inversion(values: Array, dataset: Dataset, frame: int, padding: Array) -> Array:
    """Rescaled values as greys from 0 to 1, before any inversion."""
    display = _of_frame(dataset, frame, "FrameVOILUTSequence") or dataset
    if tables := display.get("VOILUTSequence"):
        entries, depth = looked_up(values, tables[0].LUTDescriptor, tables[0].LUTData)
        return entries / (2.0**depth - 1)
    for source in (display, dataset):
        if named := first_window(source):
            return window(values, *named, str(source.get("VOILUTFunction") or "LINEAR").replace(" ", "_"))
    recorded = values[~padding] if not padding.all() else values
    (low, high), least, most = np.percentile(recorded, TAILS), recorded.min(), recorded.max()
    if low == high or most - least <= OUTLYING * (high - low):
        low, high = least, most
    greys: Array = np.clip((values - low) / max(high - low, np.finfo(np.float64).tiny), 0, 1)
    return greys


def _of_frame(dataset: Dataset, frame: int, name: str) -> Dataset | None:
    """The functional group of this name, of one frame or else of all frames (PS3.3 section C.7.6.16); None without."""
    per_frame, shared = dataset.get("PerFrameFunctionalGroupsSequence"), dataset.get("SharedFunctionalGroupsSequence")
    groups = [per_frame[frame] if per_frame and frame < len(per_frame) else None, shared[0] if shared else None]
    sequences = (group.get(name) for group in groups if group is not None)
    return next((sequence[0] for sequence in sequences if sequence), None)
