"""From a file to a square: geometry, scale and colour."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from medfedvqa.data.images import _square, load_image, square


@pytest.mark.parametrize("shape", [(64, 48), (48, 64), (300, 200), (17, 91), (32, 32)])
def test_aspect_is_kept_and_the_rest_is_black(shape: tuple[int, int]) -> None:
    """A white picture's white area keeps the aspect to a pixel, centred on black."""
    white = square(np.full(shape, 255.0), 32)[0] == 255
    for axis, side in enumerate(shape):
        filled = white.any(1 - axis)
        assert abs(int(filled.sum()) / 32 - side / max(shape)) <= 1 / 32
        before, after = (int(ends.to(int).argmax()) for ends in (filled, filled.flip(0)))
        assert abs(before - after) <= 1


def test_a_picture_that_fits_is_taken_as_it_is() -> None:
    """To the bit what the transforms make of it, and a copy."""
    grey = np.random.default_rng(0).uniform(0, 255, (24, 24)).astype(np.float32)
    picture = square(grey, 24)
    assert torch.equal(picture, _square(24)(torch.from_numpy(grey)[None]).as_tensor())
    grey[:] = 0
    assert picture.all()


def test_left_stays_left_and_top_stays_top() -> None:
    grey = np.zeros((40, 40))
    grey[:10, :20] = 200
    picture = square(grey, 20)[0]
    assert picture[2, 5] == 200 and picture[2, 15] == 0 and picture[15, 5] == 0


def test_a_colour_picture_becomes_grey_in_0_to_1(tmp_path: Path) -> None:
    Image.new("RGB", (50, 50), (255, 255, 255)).save(tmp_path / "a.png")
    Image.new("RGBA", (50, 50), (0, 0, 0, 255)).save(tmp_path / "b.png")
    assert load_image(tmp_path / "a.png", 16, 0).eq(1).all()
    assert load_image(tmp_path / "b.png", 16, 0).eq(0).all()


def test_pictures_are_float32_of_one_channel(tmp_path: Path) -> None:
    Image.new("L", (30, 20), 128).save(tmp_path / "a.png")
    picture = load_image(tmp_path / "a.png", 24, 0)
    assert picture.shape == (1, 24, 24) and picture.dtype == torch.float32 and type(picture) is torch.Tensor
