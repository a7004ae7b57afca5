"""A site's distinct pictures, decoded on demand."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from medfedvqa.data.schema import Row


class Pictures:
    """The distinct pictures of a site. None is decoded before the first `load`."""

    def __init__(self, sources: Sequence[tuple[Row, Callable[[Row, int], torch.Tensor]]]) -> None:
        """`sources`: for each picture, a row that shows it, and the function that loads a row's picture at a size."""
        self._sources = tuple(sources)

    @classmethod
    def joined(cls, parts: Sequence["Pictures"]) -> "Pictures":
        """The pictures of several sites, site by site."""
        return cls([source for part in parts for source in part._sources])

    def chosen(self, numbers: Sequence[int]) -> "Pictures":
        """The pictures of these numbers, in this order."""
        return Pictures([self._sources[number] for number in numbers])

    def cached(self) -> "Pictures":
        """The same pictures, each decoded once for a size, for a process that runs many jobs on them."""
        return Pictures([(row, lru_cache(maxsize=1)(load)) for row, load in self._sources])

    def blank(self) -> "Pictures":
        """As many pictures, all of them black."""
        return Pictures([(row, lambda _, size: torch.zeros(1, size, size)) for row, _ in self._sources])

    def __len__(self) -> int:
        return len(self._sources)

    def load(self, size: int) -> torch.Tensor:
        """All pictures as float32 [n, 1, size, size] in 0..1. Derived values are computed once (`Site.derive`).

        Raises `DataError` with the row's index for a picture that is missing or cannot be decoded.
        """
        pixels = torch.empty(len(self), 1, size, size)
        for picture, (row, load) in zip(pixels, self._sources, strict=True):
            picture.copy_(load(row, size))
        return pixels
