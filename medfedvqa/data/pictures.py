"""A site's distinct pictures, decoded when asked for."""

from collections.abc import Callable, Sequence

import torch

from medfedvqa.data.schema import Row


class Pictures:
    """The distinct pictures of a site, one row for each. Nothing is decoded before the first `load`."""

    def __init__(self, rows: Sequence[Row], load: Callable[[Row, int], torch.Tensor]) -> None:
        self._rows = tuple(rows)
        self._load = load

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, size: int) -> torch.Tensor:
        """All pictures as float32 [n, 1, size, size] in 0..1. What lasts is made of them once (`Site.derive`).

        Raises `DataError` with the row's index for a picture that is missing or cannot be decoded.
        """
        pixels = torch.empty(len(self), 1, size, size)
        for picture, row in zip(pixels, self._rows, strict=True):
            picture.copy_(self._load(row, size))
        return pixels
