"""What a site computes once: the frozen part of the towers on its distinct pictures and questions."""

from collections.abc import Sequence

import torch

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbones import Backbone
from medfedvqa.models.layouts import Beginnings, Packed
from medfedvqa.models.towers import ImageTower, TextTower
from medfedvqa.models.vqa import Batch, Distinct, ModelConfig, towers

CHUNK = 32
"""Pictures or questions that go through the frozen part together."""


class FrozenCache:
    """Where the trainable part of a model starts, for every picture and question of a site.

    That is the trunk's output for a tower with prompts, and the final features for one without. It is derived from
    the site's data, as personal as the data itself, and stays where they are.
    """

    def __init__(
        self, backbone: Backbone, config: ModelConfig, pictures: torch.Tensor, questions: Sequence[str]
    ) -> None:
        """`pictures`: grey, float32 [pictures, 1, size, size] in 0..1; `questions`: of all rows, repeated or not.

        Raises `ConfigError`.
        """
        size = backbone.shape.image_size
        if pictures.shape[1:] != (1, size, size):
            raise ConfigError(f"pictures are {tuple(pictures.shape[1:])}; this backbone takes (1, {size}, {size})")
        self._device, self._text_prompt = backbone.device, config.text_prompt
        image, text = towers(backbone, config)
        different = list(dict.fromkeys(questions))
        # Questions that differ in case or spaces alone have the same tokens.
        tokens, numbers = torch.unique(backbone.tokenize(different), dim=0, return_inverse=True)
        self._numbers = dict(zip(different, numbers.tolist(), strict=True))
        tokens = tokens.to(self._device)
        self._beginnings = text.beginnings(tokens)
        with torch.no_grad():
            self._pictures = torch.cat([_see(backbone, image, config, grey) for grey in pictures.split(CHUNK)])
            self._questions = _read(text, config, tokens, self._beginnings)

    @property
    def nbytes(self) -> int:
        """Memory that the cache takes, bytes."""
        return self._pictures.nbytes + self._questions.nbytes

    def question_ids(self, questions: Sequence[str]) -> torch.Tensor:
        """The cache's numbers of these questions, int64 [rows]. Raises `ConfigError` if one was never given."""
        try:
            return torch.tensor([self._numbers[question] for question in questions], dtype=torch.int64)
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
        words = Packed(self._beginnings, asked, question_owner)
        start = self._questions[words.states if self._text_prompt else asked]
        return Batch(
            pictures=Distinct(self._pictures[shown], picture_of, picture_owner),
            questions=Distinct(start, question_of, question_owner),
            words=words,
            answers=answers.to(device),
        )


def _see(backbone: Backbone, tower: ImageTower, config: ModelConfig, grey: torch.Tensor) -> torch.Tensor:
    """Where grey pictures [n, 1, size, size] start: [n, tokens, width], or [n, width] without prompts."""
    device = backbone.device
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (backbone.mean, backbone.std))
    hidden = tower.trunk((grey.to(device).expand(-1, 3, -1, -1) - mean) / std)
    return hidden if config.image_prompt else tower.features(hidden, None)


def _read(tower: TextTower, config: ModelConfig, tokens: torch.Tensor, of: Beginnings) -> torch.Tensor:
    """Where questions with token ids [n, context] start: [states, width], or [n, width] without prompts."""
    chunks = torch.arange(len(tokens), device=tokens.device).split(CHUNK)
    layouts = [Packed(of, chunk) for chunk in chunks]
    hidden = [tower.trunk(tokens[chunk], layout) for chunk, layout in zip(chunks, layouts, strict=True)]
    if not config.text_prompt:
        return torch.cat([tower.features(*pair, None) for pair in zip(hidden, layouts, strict=True)])
    start = hidden[0].new_empty(of.count, hidden[0].shape[-1])
    for part, layout in zip(hidden, layouts, strict=True):
        start[layout.states] = part
    return start


def _distinct(
    indices: torch.Tensor, owners: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Distinct indices (per owner), each row's position among them, and each one's owner."""
    if owners is None:
        return *torch.unique(indices, return_inverse=True), None
    pairs, item = torch.unique(torch.stack([owners.to(indices.device), indices]), dim=1, return_inverse=True)
    return pairs[1], item, pairs[0]
