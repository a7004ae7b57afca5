"""Random batches of augmented pictures, each with a caption and some questions.

Left and right carry meaning, so pictures are not mirrored as mere augmentation: some are turned or mirrored, and the
model learns to tell how.

Self-supervised targets from a picture's pixels: its orientation, its edges, and its thumbnail.
"""

import math
import random
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from medfedvqa.models.bundled import ARCHITECTURES, normalisation
from medfedvqa.research.pretraining.corpus import Corpus, Picture

ORIENTATIONS = 8
"""Four quarter turns, each plain or mirrored; 0 is the picture as it is."""

BINS = 8
"""Direction bins over half a turn: a gradient and its negative share a bin."""


def turned(images: torch.Tensor, orientations: torch.Tensor) -> torch.Tensor:
    """Square images [n, channels, side, side], each turned by its number of `orientations`, int64 [n]."""
    result = images.clone()
    for number in range(1, ORIENTATIONS):
        chosen = orientations == number
        if chosen.any():
            part = images[chosen].flip(-1) if number >= 4 else images[chosen]
            result[chosen] = torch.rot90(part, number % 4, (2, 3))
    return result


def edge_histograms(grey: torch.Tensor, cells: int) -> torch.Tensor:
    """Histograms of oriented gradients, [n, cells, cells, 8], of grey pictures [n, 1, side, side].

    Each pixel adds the length of its gradient to the two nearest directions; a cell's histogram has length 1 at most.
    Source: N. Dalal and B. Triggs, "Histograms of Oriented Gradients for Human Detection", CVPR 2005, without the
    overlapping blocks.
    """
    padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")
    across = padded[:, 0, 1:-1, 2:] - padded[:, 0, 1:-1, :-2]
    down = padded[:, 0, 2:, 1:-1] - padded[:, 0, :-2, 1:-1]
    length = (across.square() + down.square()).sqrt()
    place = (torch.atan2(down, across) % math.pi) / math.pi * BINS
    lower = place.floor()
    share = place - lower
    bins = torch.stack([lower.long() % BINS, (lower.long() + 1) % BINS], dim=1)
    weights = torch.stack([length * (1 - share), length * share], dim=1)
    planes = grey.new_zeros(len(grey), BINS, *grey.shape[2:]).scatter_add_(1, bins, weights)
    sums = F.adaptive_avg_pool2d(planes, cells).movedim(1, -1)
    return sums / (sums.square().sum(-1, keepdim=True) + 1e-3 * sums.square().mean() + 1e-12).sqrt()


def thumbnails(grey: torch.Tensor, side: int = 16) -> torch.Tensor:
    """Grey pictures [n, 1, ...] as means over `side` x `side` cells, minus each picture's mean: [n, side^2]."""
    small = F.adaptive_avg_pool2d(grey, side).flatten(1)
    return small - small.mean(dim=1, keepdim=True)


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
