"""The common part of all caches: a check of the pictures' size, and the numbering of distinct questions."""

from collections.abc import Callable, Sequence

import torch

from medfedvqa.errors import ConfigError
from medfedvqa.models.picture_stream import PictureStream


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
