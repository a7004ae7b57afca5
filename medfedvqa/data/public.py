"""A public set of pictures with captions: phantom pictures that no site holds, equal on all machines."""

from dataclasses import dataclass

import numpy as np
import torch

from medfedvqa.data.images import square
from medfedvqa.data.phantom import ENLARGED, ORGANS
from medfedvqa.data.phantom_drawing import Body, Mass, Scene, draw

PUBLIC_SEED = 20230501
"""The seed of the public set. Sites draw from the job's seed and their names instead."""


@dataclass(frozen=True)
class PublicPairs:
    """Pictures and captions, pair by pair."""

    scenes: tuple[Scene, ...]

    def __len__(self) -> int:
        return len(self.scenes)

    @property
    def captions(self) -> tuple[str, ...]:
        """The findings of each picture in words. Pictures with the same findings have the same caption."""
        return tuple(_caption(scene) for scene in self.scenes)

    def pictures(self, size: int) -> torch.Tensor:
        """All pictures, grey, float32 [pairs, 1, size, size] in 0..1."""
        return torch.stack([square(draw(scene), size) for scene in self.scenes]).float()


def public_pairs(count: int) -> PublicPairs:
    """The first `count` pairs: anatomies in turn, three in four with a mass, findings as often as their opposites."""
    generator = np.random.default_rng(PUBLIC_SEED)
    return PublicPairs(tuple(_scene(ORGANS[number % len(ORGANS)], generator) for number in range(count)))


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
