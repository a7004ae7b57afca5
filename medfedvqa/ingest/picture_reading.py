"""Reads a PNG, JPEG or TIFF file as the secondary capture image that a scanner would have made of it.

From there on it is a DICOM image like any other: rendered, cleaned, de-identified and stored by the same code.
"""

import hashlib
from io import BytesIO

import numpy as np
from PIL import Image, ImageOps
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

from medfedvqa.ingest.dicom_reading import check_size
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.picture_levels import NoWhite, picture_levels
from medfedvqa.ingest.pseudonyms import UID_ROOT
from medfedvqa.ingest.refusal_reasons import Quarantined, Reason

FORMATS = ("PNG", "JPEG", "TIFF")
STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*")
MOST_BYTES_OF_A_PIXEL = 8
"""Four channels of 16 bits, as a decoder may hold them before they become grey."""


def is_picture(content: bytes) -> bool:
    """Whether the bytes begin like a picture. A DICOM file may, too, since its first 128 bytes are free."""
    return content.startswith(STARTS)


def read_picture(content: bytes, options: Options) -> Dataset:
    """The picture in grey, 8 or 16 bits, in a data set without a patient.

    Its size is checked before it is decoded. Levels of 8 bits stay; those of 16 bits have no window, like an image
    that names none. Raises `Quarantined`.
    """
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as picture:
            check_size(picture.height, picture.width, MOST_BYTES_OF_A_PIXEL, options)
            if picture.format != "JPEG" and getattr(picture, "n_frames", 1) > 1:
                raise Quarantined(Reason.SEVERAL_PAGES)
            lossy = picture.format in ("JPEG", "MPO")
            levels, _ = picture_levels(ImageOps.exif_transpose(picture))
    except (Quarantined, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise Quarantined(Reason.TOO_LARGE) from None
    except NoWhite:
        raise Quarantined(Reason.UNKNOWN_COLOURS) from None
    except Exception:  # Pillow raises errors of many kinds for damaged files
        raise Quarantined(Reason.UNDECODABLE) from None
    return _secondary_capture(levels, hashlib.sha256(content).digest(), lossy)


def _secondary_capture(levels: np.ndarray, digest: bytes, lossy: bool) -> Dataset:
    """`levels`: uint8 or uint16 [rows, columns]. The UIDs follow from the file's content."""
    dataset, bits = Dataset(), 8 * levels.itemsize
    dataset.SOPClassUID = SecondaryCaptureImageStorage
    for number, keyword in enumerate(("SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID")):
        part = hashlib.sha256(digest + bytes([number])).digest()[:16]
        setattr(dataset, keyword, f"{UID_ROOT}{int.from_bytes(part)}")
    dataset.Modality = "OT"
    dataset.LossyImageCompression = "01" if lossy else "00"
    dataset.Rows, dataset.Columns = levels.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation, dataset.PixelRepresentation = 1, "MONOCHROME2", 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = bits, bits, bits - 1
    if bits == 8:
        dataset.WindowCenter, dataset.WindowWidth = 128, 256
    dataset.PixelData = levels.astype(f"<u{levels.itemsize}").tobytes()
    dataset["PixelData"].VR = "OW"
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return dataset
