"""A public set of pictures with captions and questions: phantom pictures that no site holds, equal on all machines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from medfedvqa.data.images import square
from medfedvqa.data.phantom import ENLARGED, ORGANS, QUESTIONS
from medfedvqa.data.phantom_drawing import Body, Mass, Scene, draw

PUBLIC_SEED = 20230501
"""The seed of the public set. Sites draw from the job's seed and their names instead."""
TEST_SEED = 20230502
"""The seed of the public pictures on which a server's model is tested. None of them is in the public set."""


@dataclass(frozen=True)
class PublicQuestions:
    """Closed questions about public pictures, in pairs of the same words with opposite answers."""

    pictures: tuple[int, ...]
    """The number of each row's picture."""
    questions: tuple[str, ...]
    answers: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.questions)


class PublicPairs(Protocol):
    """Pictures and captions, pair by pair, and closed questions about the pictures."""

    @property
    def captions(self) -> tuple[str, ...]:
        """The caption of each picture."""

    @property
    def questions(self) -> PublicQuestions:
        """The questions about the pictures."""

    def __len__(self) -> int:
        """The number of pairs."""

    def pictures(self, size: int) -> torch.Tensor:
        """All pictures, grey, float32 [pairs, 1, size, size] in 0..1."""


@dataclass(frozen=True)
class DrawnPairs:
    """See `PublicPairs`."""

    scenes: tuple[Scene, ...]

    def __len__(self) -> int:
        return len(self.scenes)

    @property
    def captions(self) -> tuple[str, ...]:
        """The findings of each picture in words. Pictures with the same findings have the same caption."""
        return tuple(_caption(scene) for scene in self.scenes)

    @property
    def questions(self) -> PublicQuestions:
        """The questions that come in opposite pairs: words alone are right half of the time, as in the phantom set."""
        rows = [row for anatomy in ORGANS for kind in QUESTIONS for row in self._opposites(anatomy, kind)]
        pictures, questions, answers = zip(*rows, strict=True) if rows else ((), (), ())
        return PublicQuestions(pictures, questions, answers)

    def pictures(self, size: int) -> torch.Tensor:
        """All pictures, grey, float32 [pairs, 1, size, size] in 0..1."""
        return torch.stack([square(draw(scene), size) for scene in self.scenes]).float()

    def _opposites(self, anatomy: str, kind: str) -> Iterator[tuple[int, str, str]]:
        """Rows of picture, question and answer. Of each two, one has the first answer and the other the second."""
        question = QUESTIONS[kind]
        scenes = [(number, scene) for number, scene in enumerate(self.scenes) if scene.anatomy == anatomy]
        sides = [[number for number, scene in scenes if question.truth(scene) is truth] for truth in (True, False)]
        for place, pair in enumerate(zip(*sides, strict=False)):
            words = question.wordings[place % len(question.wordings)]
            words = words.format(anatomy=anatomy, organ=ENLARGED[anatomy])
            yield from ((number, words, answer) for number, answer in zip(pair, question.answers, strict=True))


def drawn_pairs(count: int) -> DrawnPairs:
    """The first `count` pairs: anatomies in turn, three in four with a mass, findings as often as their opposites."""
    return _pairs(count, PUBLIC_SEED)


def drawn_test_pairs(count: int) -> DrawnPairs:
    """The first `count` pairs of the public test, drawn by the same rule."""
    return _pairs(count, TEST_SEED)


def _pairs(count: int, seed: int) -> DrawnPairs:
    generator = np.random.default_rng(seed)
    return DrawnPairs(tuple(_scene(ORGANS[number % len(ORGANS)], generator) for number in range(count)))


def _scene(anatomy: str, generator: np.random.Generator) -> Scene:
    body, (enlarged, *finding) = Body.random(generator), (generator.random(5) < 0.5).tolist()
    mass = Mass(*finding) if generator.random() < 0.75 else None
    return Scene(anatomy, body, enlarged, mass, seed=int(generator.integers(2**32)))


def _caption(scene: Scene) -> str:
    words = f"{scene.anatomy}, {'enlarged' if scene.enlarged else 'normal'} {ENLARGED[scene.anatomy]}, "
    if scene.mass is None:
        return words + "no mass"
    number = "two" if scene.mass.two else "one"
    size, tone = "large" if scene.mass.large else "small", "bright" if scene.mass.bright else "dark"
    return words + f"{number} {size} {tone} mass on the {'left' if scene.mass.left else 'right'} side"
