"""A site's distinct pictures, decoded when they are needed."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from medfedvqa.data.images import views
from medfedvqa.data.schema import Row
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.models import PictureSpace, PictureStream
from medfedvqa.models.picture_stream import CHUNK

Load = Callable[[Row, int], torch.Tensor]


@dataclass(frozen=True)
class Source:
    """The origin of a picture: a row that shows it, and functions that load it."""

    row: Row
    """A row that shows it."""
    load: Load
    """Loads a row's picture at a size, grey, as `VQAData.load`."""
    coloured: Load
    """The same with colour, as `VQAData.coloured`."""
    changed: bool = False
    """Whether the picture differs from the one in the row's file."""


class Pictures:
    """The distinct pictures of a site. Each is decoded whenever it is read."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)

    @classmethod
    def joined(cls, parts: Sequence["Pictures"]) -> "Pictures":
        """The pictures of several sites, site by site."""
        return cls(source for part in parts for source in part._sources)

    def chosen(self, numbers: Sequence[int]) -> "Pictures":
        """The pictures of these numbers, in this order."""
        return Pictures(self._sources[number] for number in numbers)

    def cached(self) -> "Pictures":
        """The same pictures, each decoded once for a size, for a process that runs many jobs on them."""
        load = lru_cache(maxsize=1)
        return Pictures(replace(each, load=load(each.load), coloured=load(each.coloured)) for each in self._sources)

    def blank(self) -> "Pictures":
        """The same number of pictures, all of them black."""
        return self.changed(lambda _: lambda _, size: torch.zeros(1, size, size))

    def changed(self, change: Callable[[Load], Load]) -> "Pictures":
        """The same number of pictures; `change` makes each loading function from the one of the picture here."""
        return Pictures(Source(each.row, change(each.load), change(each.coloured), True) for each in self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def read(self, number: int, size: int, channels: int = 1) -> torch.Tensor:
        """One picture as float32 [1, size, size] in 0..1, with 3 `channels` as [3, size, size] if it has colour.

        Raises `DataError` with the row's index for a picture that is missing or cannot be decoded.
        """
        source = self._sources[number]
        return (source.load if channels == 1 else source.coloured)(source.row, size)

    def file(self, number: int) -> tuple[int, str]:
        """The index of a row that shows the picture, and the SHA-256 of its file, in hexadecimal.

        Raises `DataError` for a picture that has no file, or that differs from its file.
        """
        source = self._sources[number]
        try:
            if not source.changed:
                return source.row.index, hashlib.sha256(source.row.image.read_bytes()).hexdigest()
        except OSError:
            pass
        raise DataError(
            f"row {source.row.index}: its picture is not as in a file of this site, so no region file belongs to it"
        )

    def contents(self) -> list[str]:
        """The SHA-256 of each picture's file, in hexadecimal; for a picture that a set draws, its name."""
        return [
            self.file(number)[1] if source.row.image.is_file() else source.row.image.name
            for number, source in enumerate(self._sources)
        ]

    def load(self, size: int) -> torch.Tensor:
        """All pictures in memory, float32 [n, 1, size, size] in 0..1. Raises as `read` does."""
        pixels = torch.empty(len(self), 1, size, size)
        for number, picture in enumerate(pixels):
            picture.copy_(self.read(number, size))
        return pixels


class PictureViews(PictureStream):
    """A site's pictures as a backbone takes them, each followed by its augmented views."""

    def __init__(
        self, pictures: Pictures, size: int, space: PictureSpace, count: int = 1, seeds: Sequence[int] | None = None
    ) -> None:
        """`count`: views of each picture, itself included; with more than one, `seeds` has one for each picture."""
        self._pictures, self._count, self._seeds = pictures, count, seeds
        self.size, self.space = size, space

    def __len__(self) -> int:
        return self._count * len(self._pictures)

    def parts(self, channels: int = 1, most: int = CHUNK) -> Iterator[torch.Tensor]:
        """See `PictureStream`. Raises `DataError` as `Pictures.read` does."""
        part: list[torch.Tensor] = []
        for view in self._views(channels):
            part.append(view)
            if len(part) == most:
                yield _stacked(part)
                part = []
        if part or not len(self):
            yield _stacked(part) if part else torch.empty(0, 1, self.size, self.size)

    def files(self) -> Iterator[tuple[int, str]]:
        """See `PictureStream`. Raises `DataError` as `Pictures.file` does, and `ConfigError` for augmented views."""
        if self._count > 1:
            raise ConfigError("region files have no augmented views of a picture: set 'views' to 1")
        return map(self._pictures.file, range(len(self._pictures)))

    def _views(self, channels: int) -> Iterator[torch.Tensor]:
        """The views of all pictures, [channels, size, size] each."""
        for number in range(len(self._pictures)):
            picture = self._pictures.read(number, self.size, channels)
            if self._seeds is None:
                yield picture
            else:
                yield from views(picture[None], self._count, [self._seeds[number]])[0]


def _stacked(part: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pictures [n, 1, size, size], or [n, 3, size, size] if any of them has colour."""
    channels = max(len(picture) for picture in part)
    return torch.stack([picture.expand(channels, -1, -1) for picture in part])
