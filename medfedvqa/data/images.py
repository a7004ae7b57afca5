"""Turns a picture file into the square tensor that a backbone takes, and augments copies. Nothing is ever mirrored:
left and right are answers.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate, pad

from medfedvqa.errors import DataError
from medfedvqa.ingest.picture_levels import NoWhite, picture_levels

if TYPE_CHECKING:
    from monai.transforms.compose import Compose


def square(levels: np.ndarray, size: int) -> torch.Tensor:
    """Fits `levels` [height, width], or [height, width, 3], into a black square and keeps its aspect ratio.

    Each level is the mean of the area that it covers. Bit for bit MONAI's `Resize` and `SpatialPad`, which take seconds
    to import. Returns float32 [1, size, size], or [3, size, size], on the scale of the input.
    """
    channels = torch.from_numpy(np.array(np.atleast_3d(levels).transpose(2, 0, 1), dtype=np.float32, order="C"))
    scale = size / max(levels.shape[:2])
    height, width = (round(side * scale) for side in levels.shape[:2])
    fitted = interpolate(channels[None], (height, width), mode="area")[0]
    top, left = (size - height) // 2, (size - width) // 2
    return pad(fitted, (left, size - width - left, top, size - height - top))


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


ROTATION = 0.15
"""The largest rotation of a view, radians."""
SHIFT = 0.06
"""The largest shift of a view, as a share of the picture's side."""
ZOOM = 0.08
"""The largest change of a view's scale."""
GAMMA = (0.8, 1.25)
GAIN = 0.15


def views(pictures: torch.Tensor, count: int, seeds: Sequence[int]) -> torch.Tensor:
    """`count` fixed views of each picture, so that a frozen tower can run on them once.

    `pictures` is float32 [n, channels, size, size] in 0..1; returns float32 [n, count, channels, size, size] in 0..1.
    View 0 is the picture itself; the others are slightly turned, moved, zoomed, and changed in contrast
    and brightness. `seeds`: one for each picture, 0 to 2**32 - 1 (`SiteData.view_seeds`). A picture's views
    depend on the picture, `count` and its own seed alone. Raises `ValueError` unless there is a seed for each picture.
    """
    size = pictures.shape[-1]
    augment = _augmentation(size)
    result = torch.empty(len(pictures), count, *pictures.shape[1:])
    for picture, its_views, seed in zip(pictures, result, seeds, strict=True):
        augment.set_random_state(seed)
        for number, view in enumerate(its_views):
            view.copy_(picture if number == 0 else augment(picture).clamp(0, 1))
    return result


def _augmentation(size: int) -> "Compose":
    """A new transform for each call, since it has its own random state."""
    # MONAI takes seconds to import, and most jobs train on the pictures as they are.
    from monai.transforms.compose import Compose
    from monai.transforms.intensity.array import RandAdjustContrast, RandScaleIntensity
    from monai.transforms.spatial.array import RandAffine

    move = RandAffine(
        prob=1,
        rotate_range=ROTATION,
        translate_range=(SHIFT * size, SHIFT * size),
        scale_range=(ZOOM, ZOOM),
        padding_mode="zeros",
    )
    return Compose([move, RandAdjustContrast(prob=1, gamma=GAMMA), RandScaleIntensity(prob=1, factors=GAIN)])
