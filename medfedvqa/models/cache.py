"""What a site computes once: the frozen part of the towers on its distinct pictures and questions."""

from collections.abc import Sequence

import torch

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbones import Backbone
from medfedvqa.models.towers import Packed
from medfedvqa.models.vqa import Batch, Distinct, ModelConfig, towers

CHUNK = 32
"""Pictures or questions that go through the frozen part together."""


class FrozenCache:
    """Where the trainable part of a model starts, for every picture and question of a site.

    That is the trunk's output for a tower with prompts, and the final features for one without. It is derived from
    the site's data, as personal as the data itself, and stays where they are.
    """

    def __init__(self, backbone: Backbone, config: ModelConfig, pictures: torch.Tensor, questions: Sequence[str]) -> None:
        """`pictures`: grey, float32 [pictures, 1, size, size] in 0..1; `questions`: of all rows, repeated or not.

        Raises `ConfigError`.
        """
        size = backbone.shape.image_size
        if pictures.shape[1:] != (1, size, size):
            raise ConfigError(f"pictures are {tuple(pictures.shape[1:])}; this backbone takes (1, {size}, {size})")
        self._device, self._config = backbone.device, config
        self._image, self._text = towers(backbone, config)
        different = list(dict.fromkeys(questions))
        # Questions that differ in case or spaces alone have the same tokens.
        tokens, number = torch.unique(backbone.tokenize(different), dim=0, return_inverse=True)
        self._index = dict(zip(different, number.tolist(), strict=True))
        tokens = tokens.to(self._device)
        self._ends = self._text.ends(tokens)
        self._lengths = self._text.lengths(self._ends)
        with torch.no_grad():
            self._pictures = torch.cat([self._see(backbone, grey) for grey in pictures.split(CHUNK)])
            chunks = torch.arange(len(tokens), device=self._device).split(CHUNK)
            self._questions = torch.cat([self._read(tokens, chunk) for chunk in chunks])

    def _see(self, backbone: Backbone, grey: torch.Tensor) -> torch.Tensor:
        mean, std = (torch.tensor(values, device=self._device).view(3, 1, 1) for values in (backbone.mean, backbone.std))
        hidden = self._image.trunk((grey.to(self._device).expand(-1, 3, -1, -1) - mean) / std)
        return hidden if self._config.image_prompt else self._image.features(hidden, None)

    def _read(self, tokens: torch.Tensor, chunk: torch.Tensor) -> torch.Tensor:
        words = Packed(self._ends[chunk], self._lengths[chunk])
        hidden = self._text.trunk(tokens[chunk], words)
        return hidden if self._config.text_prompt else self._text.features(hidden, words, None)

    @property
    def nbytes(self) -> int:
        """Memory that the cache takes, bytes."""
        return self._pictures.nbytes + self._questions.nbytes

    def question_ids(self, questions: Sequence[str]) -> torch.Tensor:
        """The cache's numbers of these questions, int64 [rows]. Raises `ConfigError` if one was never given."""
        try:
            return torch.tensor([self._index[question] for question in questions], dtype=torch.int64)
        except KeyError:
            raise ConfigError("the cache was built without some of these questions; build it from all rows") from None

    def batch(
        self,
        pictures: torch.Tensor,
        questions: torch.Tensor,
        answers: torch.Tensor,
        owners: torch.Tensor | None = None,
    ) -> Batch:
        """Rows as a batch of distinct pictures and distinct questions; all arguments int64 [rows].

        `questions` are numbers from `question_ids`. With `owners` (0, 1, ... in this batch; a patient each), no item
        is shared by two owners, so that each owner can have prompts of its own.
        """
        device = self._device
        shown, picture_of, picture_owner = _distinct(pictures.to(device), owners)
        asked, question_of, question_owner = _distinct(questions.to(device), owners)
        words, rows = Packed(self._ends[asked], self._lengths[asked]), asked
        if self._config.text_prompt:  # the cache is packed, too
            firsts = (self._lengths.cumsum(0) - self._lengths)[asked]
            rows = firsts.repeat_interleave(self._lengths[asked]) + words.positions
        return Batch(
            pictures=Distinct(self._pictures[shown], picture_of, picture_owner),
            questions=Distinct(self._questions[rows], question_of, question_owner),
            words=words,
            answers=answers.to(device),
        )


def _distinct(
    indices: torch.Tensor, owners: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Distinct indices (per owner), each row's position among them, and each one's owner."""
    if owners is None:
        return *torch.unique(indices, return_inverse=True), None
    pairs, item = torch.unique(torch.stack([owners.to(indices.device), indices]), dim=1, return_inverse=True)
    return pairs[1], item, pairs[0]
