"""Pictures for backbones, in order and a few at a time, so that only these are decoded at once; distinct questions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch

from medfedvqa.errors import ConfigError
from medfedvqa.models.picture_space import PictureSpace

CHUNK = 32
"""The number of pictures, questions or pairs that go through the frozen part together."""


class PictureStream(ABC):
    """Square pictures of one size. Each pass over them decodes them again."""

    size: int
    """The side of a picture, pixels."""
    space: PictureSpace
    """The storage for outputs computed from them."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of pictures."""

    @abstractmethod
    def parts(self, channels: int = 1, most: int = CHUNK) -> Iterator[torch.Tensor]:
        """All pictures in order, at most `most` at a time: float32 [n, 1, size, size] in 0..1.

        With 3 `channels` a part in which any picture has colour is [n, 3, size, size]. If there are no pictures, there
        is one empty part.
        """

    def files(self) -> Iterator[tuple[int, str]]:
        """For each picture, the index of a row that shows it, and the SHA-256 of its file, in hexadecimal.

        Raises `ConfigError` for pictures that are not read from files.
        """
        raise ConfigError("these pictures are not read from files, so no region files belong to them")

    def tensor(self, channels: int = 1) -> torch.Tensor:
        """All pictures, [n, 1, size, size], or [n, 3, size, size] if colour is asked for and any has it."""
        parts = list(self.parts(channels))
        widest = max(part.shape[1] for part in parts)
        return torch.cat([part.expand(-1, widest, -1, -1) for part in parts])


class Stacked(PictureStream):
    """Pictures in memory."""

    def __init__(self, pictures: torch.Tensor) -> None:
        """`pictures`: [pictures, 1 or 3, size, size] in 0..1. Raises `ConfigError` for another shape."""
        if pictures.ndim != 4 or pictures.shape[1] not in (1, 3) or pictures.shape[2] != pictures.shape[3]:
            raise ConfigError(f"pictures are {tuple(pictures.shape[1:])}, not (1, side, side) or (3, side, side)")
        self._pictures, self.size, self.space = pictures, pictures.shape[3], PictureSpace()

    def __len__(self) -> int:
        return len(self._pictures)

    def parts(self, channels: int = 1, most: int = CHUNK) -> Iterator[torch.Tensor]:
        """See `PictureStream`. Raises `ConfigError` for pictures in colour if `channels` is 1."""
        if self._pictures.shape[1] > channels:
            raise ConfigError("the cache has colour pictures, but the model takes grey ones")
        yield from torch.split(self._pictures, most)


def streamed(pictures: torch.Tensor | PictureStream) -> PictureStream:
    """The same pictures as a stream."""
    return pictures if isinstance(pictures, PictureStream) else Stacked(pictures)


class NumberedQuestions:
    """A site's questions, each text once, and their numbers."""

    def __init__(self, questions: Sequence[str]) -> None:
        self.texts = list(dict.fromkeys(questions))
        self._numbers = {text: number for number, text in enumerate(self.texts)}

    def question_ids(self, questions: Sequence[str]) -> torch.Tensor:
        """See `Cache`: the number of each question, int64 [questions]. Raises `ConfigError` for an unknown one."""
        try:
            return torch.tensor([self._numbers[question] for question in questions], dtype=torch.int64)
        except KeyError:
            raise ConfigError("the cache was built without some of these questions; build it from all rows") from None


class DistinctQuestions(NumberedQuestions):
    """A site's questions as token ids. Questions that differ only in case or spaces have the same ids and are one."""

    def __init__(self, questions: Sequence[str], tokenize: Callable[[list[str]], torch.Tensor]) -> None:
        """`tokenize`: questions to ids, int64 [questions, context]."""
        super().__init__(questions)
        self.tokens, numbers = torch.unique(tokenize(self.texts), dim=0, return_inverse=True)
        """int64 [distinct, context]."""
        self._numbers = dict(zip(self.texts, numbers.tolist(), strict=True))


def distinct(
    indices: torch.Tensor, owners: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The distinct indices (for each owner), each row's position among them, and each distinct index's owner."""
    if owners is None:
        return *torch.unique(indices, return_inverse=True), None
    pairs, item = torch.unique(torch.stack([owners.to(indices.device), indices]), dim=1, return_inverse=True)
    return pairs[1], item, pairs[0]


def check_size(pictures: PictureStream, size: int) -> None:
    """Raises `ConfigError` unless these are pictures of a backbone's size."""
    if pictures.size != size:
        raise ConfigError(f"pictures have {pictures.size} pixels a side; this backbone takes {size}")
