"""The grey levels of a picture that Pillow opened, and pictures of square pixels."""

import numpy as np
from PIL import Image


class NoWhite(ValueError):
    """The picture does not say which level is white."""


def picture_levels(picture: Image.Image, colour: bool = False) -> tuple[np.ndarray, float]:
    """The levels of a picture, [height, width], or with `colour` [height, width, 3] if it has any; and white's level.

    Transparent pixels are black. Raises `NoWhite` for 32 bits and floats, and whatever Pillow raises for broken files.
    """
    if picture.mode.startswith("I;16"):  # Pillow (13) makes 255 of all levels above it where it converts to "L"
        levels, clear = np.asarray(picture), picture.info.get("transparency")
        return (levels if clear is None else np.where(levels == clear, 0, levels)), 2.0**16 - 1
    if picture.mode in ("I", "F"):
        raise NoWhite
    if picture.has_transparency_data:
        black = Image.new("RGBA", picture.size, (0, 0, 0, 255))
        picture = Image.alpha_composite(black, picture.convert("RGBA")).convert("RGB")
    if colour and picture.mode not in ("1", "L"):
        colours = np.asarray(picture.convert("RGB"))
        if (colours != colours[..., :1]).any():
            return colours, 255.0
    return np.asarray(picture.convert("L")), 255.0


def square_pixels(values: np.ndarray, height: float, width: float, most: int) -> np.ndarray:
    """Resamples values [rows, columns] of pixels of this height and width to square pixels of the smaller side.

    Interpolation is linear. Returns the same array if rows and columns stay. Raises `ValueError` for more than
    `most` pixels.
    """
    side = min(height, width)
    size = round(values.shape[1] * width / side), round(values.shape[0] * height / side)
    if size[0] * size[1] > most:
        raise ValueError("the pixels are too far from square")
    if size == values.shape[::-1]:
        return values
    return np.asarray(Image.fromarray(values.astype(np.float32)).resize(size, Image.Resampling.BILINEAR))
