"""From a file to a square: geometry, scale and colour."""

from pathlib import Path

import numpy as np
import pytest
import torch
from monai.transforms.compose import Compose
from monai.transforms.croppad.array import SpatialPad
from monai.transforms.spatial.array import Resize
from PIL import Image

from medfedvqa.data.images import load_image, square
from medfedvqa.errors import DataError


@pytest.mark.parametrize("shape", [(64, 48), (48, 64), (300, 200), (17, 91), (32, 32)])
def test_aspect_is_kept_and_the_rest_is_black(shape: tuple[int, int]) -> None:
    """A white picture's white area keeps the aspect to a pixel, centred on black."""
    white = square(np.full(shape, 255.0), 32)[0] == 255
    for axis, side in enumerate(shape):
        filled = white.any(1 - axis)
        assert abs(int(filled.sum()) / 32 - side / max(shape)) <= 1 / 32
        before, after = (int(ends.to(int).argmax()) for ends in (filled, filled.flip(0)))
        assert abs(before - after) <= 1


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("shape", [(64, 48), (48, 65), (301, 200), (17, 91), (24, 24), (9, 5), (1, 40), (600, 10)])
def test_a_picture_is_fitted_as_monai_fits_it(shape: tuple[int, int], colour: bool) -> None:
    """To the bit, smaller or larger than the square; one that fits is taken as it is. The result is a copy."""
    levels = np.random.default_rng(0).uniform(0, 255, (*shape, 3) if colour else shape).astype(np.float32)
    picture = square(levels, 24)
    transforms = Compose([Resize(24, size_mode="longest", mode="area"), SpatialPad((24, 24))])
    channels = torch.from_numpy(np.atleast_3d(levels).transpose(2, 0, 1).copy())
    assert torch.equal(picture, transforms(channels).as_tensor())
    levels[:] = 0
    assert picture.any() or shape == (600, 10)  # too narrow for a column


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


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_sixteen_bits_keep_all_their_levels(tmp_path: Path, suffix: str) -> None:
    """Level n of 65535 is n / 65535: neither clipped at 255, as Pillow does, nor rounded to 8 bits."""
    levels = np.linspace(0, 2**16 - 1, 24 * 24).astype(np.uint16).reshape(24, 24)
    Image.fromarray(levels).save(tmp_path / f"a.{suffix}")
    for colour in (False, True):
        picture = load_image(tmp_path / f"a.{suffix}", 24, 0, colour)
        assert torch.equal(picture, torch.from_numpy(levels.astype(np.float32))[None] / 65535)


def test_levels_of_unknown_white_are_refused(tmp_path: Path) -> None:
    """A file of 32 bits or of floats does not say what is white: the row is named, and nothing is guessed."""
    for number, kind in enumerate((np.float32, np.int32)):
        Image.fromarray(np.full((8, 8), 7, kind)).save(tmp_path / f"SECRET-{number}.tiff")
        with pytest.raises(DataError, match="^row 3: its image does not say which level is white: save it with"):
            load_image(tmp_path / f"SECRET-{number}.tiff", 8, 3)


@pytest.mark.parametrize("mode", ["LA", "RGBA", "P", "I;16"])
def test_what_is_transparent_is_black_whatever_colour_lies_under_it(tmp_path: Path, mode: str) -> None:
    """A white square of which the left half is clear: white under full transparency does not show."""
    if mode in ("LA", "RGBA"):
        alpha = np.zeros((16, 16), np.uint8)
        alpha[:, 8:] = 255
        picture = Image.new(mode.removesuffix("A"), (16, 16), "white")
        picture.putalpha(Image.fromarray(alpha))
        picture.save(tmp_path / "a.png")
    else:
        levels = np.full((16, 16), 9, np.uint16 if mode == "I;16" else np.uint8)
        levels[:, 8:] = 65535 if mode == "I;16" else 1
        picture = Image.fromarray(levels)
        if mode == "P":
            picture.putpalette([255] * 768)
        picture.save(tmp_path / "a.png", transparency=9)
    with Image.open(tmp_path / "a.png") as saved:
        assert saved.mode == mode
    for colour in (False, True):
        seen = load_image(tmp_path / "a.png", 16, 0, colour)
        assert seen.shape == (1, 16, 16) and seen[..., :8].eq(0).all() and seen[..., 8:].eq(1).all()


def test_half_transparent_colour_is_mixed_with_black(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (200, 100, 0, 128)).save(tmp_path / "a.png")
    seen = load_image(tmp_path / "a.png", 8, 0, colour=True)
    assert (seen[:, 0, 0] * 255).round().tolist() == [100, 50, 0]


def test_colour_is_kept_only_where_it_is_asked_for_and_there(tmp_path: Path) -> None:
    """Red, green and blue in this order; a grey picture is one channel, the same to the bit, however it is stored."""
    Image.new("RGB", (40, 30), (255, 51, 0)).save(tmp_path / "colour.png")
    coloured = load_image(tmp_path / "colour.png", 20, 0, colour=True)
    assert coloured.shape == (3, 20, 20) and coloured.dtype == torch.float32
    assert coloured[:, 10, 10].tolist() == pytest.approx([1, 0.2, 0])
    assert load_image(tmp_path / "colour.png", 20, 0).shape == (1, 20, 20)
    grey = np.random.default_rng(0).integers(0, 256, (40, 30), dtype=np.uint8)
    for name, stored in (("a.png", grey), ("b.png", np.stack([grey] * 3, axis=2))):
        Image.fromarray(stored).save(tmp_path / name)
        plain = load_image(tmp_path / "a.png", 20, 0)
        assert torch.equal(load_image(tmp_path / name, 20, 0, colour=True), plain)
        assert torch.equal(load_image(tmp_path / name, 20, 0), plain)
