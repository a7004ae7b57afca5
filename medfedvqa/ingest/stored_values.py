"""The stored values of a DICOM frame, and which of them are padding, whatever bits around them hold.

A value lies in the `BitsStored` bits below `HighBit` (PS3.5 section 8.1.1); overlays or rubbish may lie in the others.
"""

import numpy as np
from pydicom.dataset import Dataset
from pydicom.encaps import get_frame
from pydicom.pixels.utils import pixel_array
from pydicom.uid import JPEGExtended12Bit

from medfedvqa.ingest.refusal_reasons import Quarantined, Reason

Array = np.ndarray


def stored_values(dataset: Dataset, frame: int, frames: int, intercept: float) -> tuple[Array, Array]:
    """The values [rows, columns] or [rows, columns, 3], of which YBR is RGB, and which pixels are padding, bool.

    `intercept`: what is added to values, by which a CT is known that says unsigned and holds negative values. Raises
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
    """What the decoder gives."""
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
    """Which pixels are padding. Its value may have the other sign, and lie beyond the stored bits."""
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
    """Whether unsigned values of 16 bits have a gap as wide as a half, and more above it than one white, 65535."""
    high = values[values >= 2**14]
    return high.size > 0 and high.min() >= 2**16 - 2**14 and high.min() < 2**16 - 1
