"""From a picture file to the square grey tensor that a backbone sees."""

import warnings
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from PIL import Image

from medfedvqa.errors import DataError

if TYPE_CHECKING:
    from monai.transforms.compose import Compose


@lru_cache
def _square(size: int) -> "Compose":
    # MONAI takes seconds to import, and most commands open no picture.
    from monai.transforms.compose import Compose
    from monai.transforms.croppad.array import SpatialPad
    from monai.transforms.spatial.array import Resize

    return Compose([Resize(size, size_mode="longest", mode="area"), SpatialPad((size, size))])


def square(grey: np.ndarray, size: int) -> torch.Tensor:
    """Fits `grey` [height, width] into a black square and keeps its aspect ratio.

    Returns float32 [1, size, size] on the scale of the input.
    """
    channels = torch.from_numpy(np.array(grey, dtype=np.float32, order="C"))[None]
    if grey.shape == (size, size):
        return channels
    squared: torch.Tensor = _square(size)(channels).as_tensor()
    return squared.contiguous()


def load_image(path: Path | BinaryIO, size: int, row: int) -> torch.Tensor:
    """Reads one picture, from its file or from bytes in memory, as float32 [1, size, size] in 0..1.

    Raises `DataError` with the row's index, never the file's name, if the file is missing, cannot be decoded, or
    exceeds Pillow's limit against decompression bombs (about 89 million pixels).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                grey = np.asarray(picture.convert("L"))
    except FileNotFoundError:
        raise DataError(f"row {row}: its image file is missing") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError(f"row {row}: its image has too many pixels to be a radiograph; resize it") from None
    except (OSError, ValueError, SyntaxError):  # what Pillow raises for unknown, cut or broken files
        raise DataError(f"row {row}: its image cannot be decoded") from None
    return square(grey, size) / 255.0
