"""Random batches of augmented pictures, each with a caption and some questions.

Left and right carry meaning, so pictures are not mirrored as mere augmentation: some are turned or mirrored, and the
model learns to tell how.
"""

import random
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from medfedvqa.models.bundled import ARCHITECTURES, normalisation
from medfedvqa.research.pretraining.corpus import Corpus, Picture
from medfedvqa.research.pretraining.picture_targets import ORIENTATIONS, turned

QUESTIONS = 4
"""Questions about a picture in one batch, at most."""

TURNED = 0.25
"""The share of pictures that are turned or mirrored. They train the orientation task only."""


@dataclass(frozen=True)
class PairBatch:
    """`images` are float32 [n, 3, side, side], turned by `orientations`, int64 [n]. Each picture has a caption, and the
    questions that have an answer among the classes, with these answers."""

    images: torch.Tensor
    orientations: torch.Tensor
    pictures: list[Picture]
    captions: list[str]
    questions: list[list[tuple[str, str]]]

    def on(self, device: torch.device) -> "PairBatch":
        """The same batch with its tensors on this device."""
        return replace(self, images=self.images.to(device), orientations=self.orientations.to(device))


def draw(
    corpus: Corpus, indices: list[int], answers: set[str], generator: torch.Generator, architecture: str = "medclip2"
) -> PairBatch:
    """One batch of the pictures at `indices` for an architecture, with newly drawn texts and orientations."""
    pictures = [corpus.pictures[i] for i in indices]
    # Python's generator picks words, torch's picks pixels; one seeds the other.
    words = random.Random(int(torch.randint(2**31, (), generator=generator)))
    questions = [_questions(picture, answers, words) for picture in pictures]
    images = augment(corpus.pixels[indices], generator, architecture)
    orientations = torch.randint(1, ORIENTATIONS, (len(indices),), generator=generator)
    orientations *= torch.rand(len(indices), generator=generator) < TURNED
    captions = [_caption(picture, words) for picture in pictures]
    return PairBatch(turned(images, orientations), orientations, pictures, captions, questions)


def _caption(picture: Picture, words: random.Random) -> str:
    caption = words.choice(picture.captions)
    if not picture.labels and picture.questions:  # the questions distinguish a benchmark's picture
        question, answer = words.choice(picture.questions)
        caption = f"{caption}. {question}? {answer}"
    return caption


def _questions(picture: Picture, answers: set[str], words: random.Random) -> list[tuple[str, str]]:
    pairs = [pair for pair in picture.questions if pair[1] in answers]
    return words.sample(pairs, min(QUESTIONS, len(pairs)))


def augment(pixels: torch.Tensor, generator: torch.Generator, architecture: str = "medclip2") -> torch.Tensor:
    """Applies random crop, shift, small rotation, brightness and contrast to uint8 [n, h, w].

    Returns normalised float32 [n, 3, side, side], as the architecture takes pictures.
    """
    count, side = len(pixels), ARCHITECTURES[architecture]["vision_cfg"]["image_size"]

    def uniform(low: float, high: float) -> torch.Tensor:
        return torch.rand(count, generator=generator) * (high - low) + low

    scale, stretch, angle = uniform(0.75, 1.08), uniform(0.92, 1.08), uniform(-0.15, 0.15)
    rotation = torch.stack(
        [scale * angle.cos(), -scale * angle.sin(), uniform(-0.12, 0.12)]
        + [scale * stretch * angle.sin(), scale * stretch * angle.cos(), uniform(-0.12, 0.12)],
        dim=1,
    ).view(count, 2, 3)
    grid = F.affine_grid(rotation, [count, 1, side, side], align_corners=False)
    grey = F.grid_sample(pixels[:, None].float() / 255, grid, align_corners=False)
    gain, shift, gamma = uniform(0.75, 1.25), uniform(-0.1, 0.1), uniform(0.8, 1.25)
    grey = grey.clamp(1e-4, 1) ** gamma.view(-1, 1, 1, 1)
    grey = grey * gain.view(-1, 1, 1, 1) + shift.view(-1, 1, 1, 1)
    mean, deviation = normalisation(architecture)
    return (grey - mean[0]).div_(deviation[0]).expand(-1, 3, -1, -1)
