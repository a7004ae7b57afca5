"""Small pictures as DICOM data sets, for tests that read files."""

from io import BytesIO

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid


def scribbled_film() -> np.ndarray:
    """Tissue with a scribble that the reader cannot read, uint8 [256, 256]."""
    import cv2

    noise = np.random.default_rng(3).normal(size=(256, 256)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 12)
    pixels, generator = np.clip(110 + 25 * smooth / smooth.std(), 0, 255).astype(np.uint8), np.random.default_rng(3)
    for left in range(80, 171, 13):
        strokes = generator.uniform(0, 1, (5, 2)) * (10, 18) + (left, 118)
        cv2.polylines(pixels, [strokes.astype(np.int32)], False, 255, 2)
    return pixels


def small_dicom(pixels: np.ndarray, **elements: object) -> Dataset:
    """A grey picture, uint8 [side, side], as a secondary capture with these elements."""
    dataset = Dataset()
    dataset.SOPClassUID, dataset.SOPInstanceUID = SecondaryCaptureImageStorage, generate_uid()
    dataset.Rows = dataset.Columns = len(pixels)
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation, dataset.PixelRepresentation = 1, "MONOCHROME2", 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    dataset.PixelData = pixels.tobytes()
    dataset["PixelData"].VR = "OB"
    for name, value in elements.items():
        setattr(dataset, name, value)
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return dataset


def dicom_bytes(dataset: Dataset) -> bytes:
    """The data set as a file."""
    buffer = BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()
