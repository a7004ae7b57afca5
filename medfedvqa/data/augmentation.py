"""Augmented copies of a site's pictures. Nothing is ever mirrored: left and right are answers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from monai.transforms.compose import Compose

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
    # MONAI takes seconds to import, and most commands open no picture.
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
