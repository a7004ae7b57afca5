"""Turns a picture file into the square tensor that a backbone takes."""

import warnings
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from PIL import Image

from medfedvqa.errors import DataError
from medfedvqa.ingest.picture_levels import NoWhite, picture_levels

if TYPE_CHECKING:
    from monai.transforms.compose import Compose


@lru_cache
def _square(size: int) -> "Compose":
    # MONAI takes seconds to import, and most commands open no picture.
    from monai.transforms.compose import Compose
    from monai.transforms.croppad.array import SpatialPad
    from monai.transforms.spatial.array import Resize

    return Compose([Resize(size, size_mode="longest", mode="area"), SpatialPad((size, size))])


def square(levels: np.ndarray, size: int) -> torch.Tensor:
    """Fits `levels` [height, width], or [height, width, 3], into a black square and keeps its aspect ratio.

    Returns float32 [1, size, size], or [3, size, size], on the scale of the input.
    """
    channels = torch.from_numpy(np.array(np.atleast_3d(levels).transpose(2, 0, 1), dtype=np.float32, order="C"))
    if levels.shape[:2] == (size, size):
        return channels
    squared: torch.Tensor = _square(size)(channels).as_tensor()
    return squared.contiguous()


def load_image(path: Path | BinaryIO, size: int, row: int, colour: bool = False) -> torch.Tensor:
    """Reads one picture, from its file or from bytes in memory, as float32 [1, size, size] in 0..1.

    With `colour`, a picture that has colour is [3, size, size]. Transparent pixels are black. Raises `DataError` with
    the row's index, never the file's name, if the file is missing, cannot be decoded, does not say which level is
    white, or exceeds Pillow's limit against decompression bombs (about 89 million pixels), which is checked before
    decoding.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                levels, white = picture_levels(picture, colour)
    except FileNotFoundError:
        raise DataError(f"row {row}: its image file is missing") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError(f"row {row}: its image has too many pixels to be a radiograph; resize it") from None
    except NoWhite:
        raise DataError(f"row {row}: its image does not say which level is white: save it with 8 or 16 bits") from None
    except (OSError, ValueError, SyntaxError):  # what Pillow raises for unknown, cut or broken files
        raise DataError(f"row {row}: its image cannot be decoded") from None
    return square(levels, size) / white
