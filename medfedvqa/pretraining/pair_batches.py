"""Random batches: pictures augmented (never flipped: laterality is meaning), with a caption and a question."""

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from medfedvqa.models.bundled import ARCHITECTURE, MEAN, STD
from medfedvqa.pretraining.corpus import Corpus, Picture

SIZE = ARCHITECTURE["vision_cfg"]["image_size"]


@dataclass(frozen=True)
class PairBatch:
    """`images` are float32 [n, 3, 128, 128]. Each picture has a caption, and a question with its answer or None."""

    images: torch.Tensor
    pictures: list[Picture]
    captions: list[str]
    questions: list[tuple[str, str] | None]


def draw(corpus: Corpus, indices: list[int], answers: set[str], generator: torch.Generator) -> PairBatch:
    """One batch of the pictures at `indices`, with newly drawn texts."""
    pictures = [corpus.pictures[i] for i in indices]
    # Python's generator picks words, torch's picks pixels; one seeds the other.
    words = random.Random(int(torch.randint(2**31, (), generator=generator)))
    questions = [_question(picture, answers, words) for picture in pictures]
    images = augment(corpus.pixels[indices], generator)
    return PairBatch(images, pictures, [_caption(picture, words) for picture in pictures], questions)


def _caption(picture: Picture, words: random.Random) -> str:
    caption = words.choice(picture.captions)
    if len(picture.meaning) == 3:  # the questions distinguish a benchmark's picture
        sample = words.sample(picture.questions, min(2, len(picture.questions)))
        caption = ". ".join([caption, *(f"{question}? {answer}" for question, answer in sample)])
    return caption


def _question(picture: Picture, answers: set[str], words: random.Random) -> tuple[str, str] | None:
    pairs = [pair for pair in picture.questions if pair[1] in answers]
    return words.choice(pairs) if pairs else None


def augment(pixels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Applies random crop, shift, small rotation, brightness and contrast to uint8 [n, h, w].

    Returns normalised float32 [n, 3, 128, 128].
    """
    count = len(pixels)

    def uniform(low: float, high: float) -> torch.Tensor:
        return torch.rand(count, generator=generator) * (high - low) + low

    scale, stretch, angle = uniform(0.75, 1.08), uniform(0.92, 1.08), uniform(-0.2, 0.2)
    rotation = torch.stack(
        [scale * angle.cos(), -scale * angle.sin(), uniform(-0.12, 0.12)]
        + [scale * stretch * angle.sin(), scale * stretch * angle.cos(), uniform(-0.12, 0.12)],
        dim=1,
    ).view(count, 2, 3)
    grid = F.affine_grid(rotation, [count, 1, SIZE, SIZE], align_corners=False)
    grey = F.grid_sample(pixels[:, None].float() / 255, grid, align_corners=False)
    gain, shift, gamma = uniform(0.75, 1.25), uniform(-0.1, 0.1), uniform(0.8, 1.25)
    grey = grey.clamp(1e-4, 1) ** gamma.view(-1, 1, 1, 1)
    return normalise(grey * gain.view(-1, 1, 1, 1) + shift.view(-1, 1, 1, 1))


def normalise(grey: torch.Tensor) -> torch.Tensor:
    """Grey [n, 1, h, w] in 0..1 as the towers expect it: three channels, the bundled mean and deviation."""
    return (grey - MEAN[0]).div_(STD[0]).expand(-1, 3, -1, -1)
