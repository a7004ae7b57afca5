"""A picture from outside a data set: the bytes of a PNG, a JPEG or a DICOM file."""

from io import BytesIO

import torch

from medfedvqa.data.images import load_image, square
from medfedvqa.errors import ConfigError, DataError

MOST_BYTES = 1 << 27
"""Bytes of a picture's file."""
_DICOM = (128, b"DICM")
_UNREADABLE = "the picture cannot be read: give a PNG, JPEG or DICOM file of one picture, at most 89 million pixels"


def picture_of(content: bytes, size: int, colour: bool = False) -> torch.Tensor:
    """The picture in a file's bytes, grey, float32 [1, size, size] in 0..1.

    With `colour` it is [3, size, size] if it has any.
    DICOM goes through the window that the file names, as in ingestion; nothing is searched for text and nothing is
    stored. Raises `ConfigError`, which says nothing of the picture.
    """
    if len(content) > MOST_BYTES:
        raise ConfigError(_UNREADABLE)
    place, magic = _DICOM
    if content[place : place + len(magic)] == magic:
        return _from_dicom(content, size)
    try:
        return load_image(BytesIO(content), size, 0, colour)
    except DataError:
        raise ConfigError(_UNREADABLE) from None


def _from_dicom(content: bytes, size: int) -> torch.Tensor:
    # Reading DICOM takes a second to import.
    from medfedvqa.ingest.dicom_reading import check_picture, read_dicom
    from medfedvqa.ingest.image_options import Options
    from medfedvqa.ingest.image_rendering import render
    from medfedvqa.ingest.refusal_reasons import Quarantined

    try:
        dataset = read_dicom(content, Options())
        check_picture(dataset, Options())
        return square(render(dataset, Options()).grey, size) / 255.0
    except (Quarantined, MemoryError):
        raise ConfigError(_UNREADABLE) from None
