"""The pictures, captions and questions that the bundled backbone learns from, and random batches of augmented pictures
with self-supervised targets.

Left and right carry meaning, so pictures are not mirrored as mere augmentation: some are turned or mirrored, and the
model learns to tell how.
"""

import io
import json
import math
import random
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from medfedvqa.data.images import load_image, square
from medfedvqa.data.published_files import SLAKE_SPLITS, read_rows, read_slake, read_vqa_rad
from medfedvqa.data.schema import Row
from medfedvqa.errors import DataError
from medfedvqa.models.bundled import ARCHITECTURES, normalisation
from medfedvqa.public_answers import fold

OPEN_SETS = ("kermany_cxr", "brain_tumor_mr", "iqoth_chest_ct", "mhh_covid_cxr", "mednist")
SHARE_ALIKE = ("mednist",)
LABELS = ("organ", "modality", "plane", "finding")
BENCHMARKS = {"slake": read_slake, "vqa-rad": read_vqa_rad}
PIXELS = 160
"""Side of the stored pictures: a quarter more than the second edition's input, so that crops stay sharp."""


@dataclass(frozen=True)
class Picture:
    """One picture's texts. Pictures with the same `meaning` are not negatives of each other."""

    source: str
    meaning: tuple[object, ...]
    captions: tuple[str, ...]
    questions: tuple[tuple[str, str], ...]
    labels: dict[str, str]


@dataclass(frozen=True)
class Corpus:
    """Pictures and their pixels, uint8 [pictures, side, side], in the same order."""

    pictures: Sequence[Picture]
    pixels: torch.Tensor


def is_for_probes(index: int) -> bool:
    """Whether training leaves out the picture of this index: one open picture in twenty."""
    return index % 20 == 0


def load(root: Path, benchmark: str | None, share_alike: bool = True, side: int = PIXELS) -> Corpus:
    """The open sets under `root/open` and, if named, one benchmark, `side` pixels wide. Raises `DataError`."""
    sets = [name for name in OPEN_SETS if share_alike or name not in SHARE_ALIKE]
    pairs = [pair for name in sets for pair in _open_set(root / "open" / f"{name}.zip", name, side)]
    if benchmark:
        pairs.extend(_benchmark(root / benchmark, benchmark, side))
    return Corpus([picture for picture, _ in pairs], torch.stack([pixels for _, pixels in pairs]))


def _open_set(path: Path, name: str, side: int) -> Iterator[tuple[Picture, torch.Tensor]]:
    if not path.is_file():
        raise DataError(f"'{path.name}' is missing under the folder 'open'")
    with zipfile.ZipFile(path) as archive:
        for line in archive.read("captions.jsonl").decode().splitlines():
            entry = json.loads(line)
            labels = {key: entry[key] for key in LABELS if entry[key]}
            with Image.open(io.BytesIO(archive.read(entry["file"]))) as picture:
                pixels = square(np.asarray(picture.convert("L")), side)
            words = Picture(
                source=name,
                meaning=tuple(labels.get(key) for key in LABELS),
                captions=(entry["caption"],),
                questions=tuple(_label_questions(labels)),
                labels=labels,
            )
            yield words, pixels[0].round().to(torch.uint8)


def _label_questions(labels: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Questions that the publishers' labels answer. Half of them are closed, with yes and no in balance."""
    organ, modality = labels["organ"], labels["modality"]
    yield "what imaging modality was used", modality
    yield "which part of the body is shown", organ
    others = {"CT": ("X-ray", "MRI"), "X-ray": ("CT", "MRI"), "MRI": ("CT", "X-ray")}[modality]
    for name, answer in ((modality, "yes"), (others[len(organ) % 2], "no")):
        yield f"is this a {name} image", answer
    elsewhere = "abdomen" if organ in ("chest", "head", "brain") else "chest"
    for name, answer in ((organ, "yes"), (elsewhere, "no")):
        yield f"is this an image of the {name}", answer
    if plane := labels.get("plane"):
        yield "in what plane was the image taken", plane
        yield f"is this the {plane} plane", "yes"
        yield f"is this the {'coronal' if plane != 'coronal' else 'axial'} plane", "no"
    if finding := labels.get("finding"):
        yield from _finding_questions(finding, organ)


def _finding_questions(finding: str, organ: str) -> Iterator[tuple[str, str]]:
    healthy = finding.startswith("normal")
    yield "what is the main finding", finding
    yield "is the image normal", "yes" if healthy else "no"
    yield f"is there any abnormality in the {organ}", "no" if healthy else "yes"
    if organ == "brain":
        yield "is there a mass in the brain", "yes"
        for tumour in ("glioma", "meningioma", "pituitary tumour"):
            yield f"is this a {tumour}", "yes" if tumour == finding else "no"
    elif "lung" in finding:
        yield "is there a nodule or mass in the lung", "no" if healthy else "yes"
        yield "is there evidence of malignancy", "yes" if finding == "lung cancer" else "no"
    else:
        yield "is there evidence of pneumonia", "no" if healthy else "yes"
        yield "are the lungs clear", "yes" if healthy else "no"
        yield "is there consolidation or opacity in the lungs", "no" if healthy else "yes"


def _benchmark(root: Path, name: str, side: int) -> Iterator[tuple[Picture, torch.Tensor]]:
    """A benchmark's pictures: captions from its annotations, and all its questions and answers."""
    by_image: defaultdict[Path, list[Row]] = defaultdict(list)
    for row in BENCHMARKS[name](root).rows:
        by_image[row.image].append(row)
    files = [root / f"{split}.json" for split in SLAKE_SPLITS] if name == "slake" else []
    modality = {row["img_name"]: f"{row['modality']} image" for file in files for row in read_rows(file)}
    for image, rows in by_image.items():
        kind = modality.get(f"{image.parent.name}/{image.name}", "radiology image")
        questions = tuple((fold(row.question), fold(row.answer)) for row in rows)
        words = Picture(
            source=name,
            meaning=(name, image.name, image.parent.name),
            captions=(f"{kind} of the {rows[0].organ}",),
            questions=questions,
            labels={},
        )
        pixels = load_image(image, side, rows[0].index)[0]
        yield words, (pixels * 255).round().to(torch.uint8)


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
