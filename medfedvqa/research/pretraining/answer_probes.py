"""Measures how many closed questions can be answered from frozen picture features, with the same probe for all.

The probe is kernel ridge regression. Its kernel is k_question (1 + s k_picture), so a picture only matters among rows
with similar questions. Questions are bags of words, the same for all features. Pictures have a Gaussian kernel of the
distance d: exp(-d^2 / median(d^2)). The ridge penalty and the pictures' strength s are chosen by the accuracy on
validation rows.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.data import Row, Split, VQAData, fold, partition
from medfedvqa.models import Backbone, check_apart
from medfedvqa.models.backbone import Tuning
from medfedvqa.models.bundled import SIZE
from medfedvqa.models.families import IMAGE
from medfedvqa.research.pretraining.corpus import edge_histograms, thumbnails

Describe = Callable[[torch.Tensor], torch.Tensor]
"""Grey pictures [n, 1, 128, 128] in 0..1 to their descriptions [n, numbers]."""

PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0)
STRENGTHS = (0.3, 1.0, 3.0, 10.0)
CHUNK = 64
PARTS = ("train", "validate", "test")


@dataclass(frozen=True)
class AnswerProbe:
    """The accuracies of one description on validation and test rows, in 0..1."""

    name: str
    validation: float
    test: float


@dataclass(frozen=True)
class ProbedRows:
    """A set's closed rows with their pictures, each picture once."""

    name: str
    pictures: torch.Tensor
    """float32 [pictures, 1, side, side]."""
    picture_of: torch.Tensor
    """int64 [rows]."""
    words: torch.Tensor
    """The kernel of questions, [rows, rows]."""
    targets: torch.Tensor
    """The number of each row's answer among the answers of training rows, int64 [rows]; -1 for another answer."""
    parts: Mapping[str, torch.Tensor]
    """The rows of train, validate and test, int64."""


def probed_rows(data: VQAData, size: int = SIZE) -> ProbedRows:
    """The closed rows of all organs on the official split, pictures `size` pixels wide. Raises `DataError`."""
    by_part: dict[str, list[Row]] = {part: [] for part in PARTS}
    for organ in data.organs:
        split = partition(data, organ, Split())
        for part in PARTS:
            by_part[part].extend(getattr(split, part))
    rows = [row for part in PARTS for row in by_part[part]]
    numbers = {image: number for number, image in enumerate(dict.fromkeys(row.image for row in rows))}
    first = {row.image: row for row in reversed(rows)}
    pictures = torch.stack([data.load(first[image], size) for image in numbers])
    answers = sorted({fold(row.answer) for row in by_part["train"]})
    known = {answer: number for number, answer in enumerate(answers)}
    ends = torch.tensor([0, *(len(by_part[part]) for part in PARTS)]).cumsum(0).tolist()
    return ProbedRows(
        data.name,
        pictures,
        torch.tensor([numbers[row.image] for row in rows]),
        _words_kernel([fold(row.question) for row in rows]),
        torch.tensor([known.get(fold(row.answer), -1) for row in rows]),
        {part: torch.arange(*ends[number : number + 2]) for number, part in enumerate(PARTS)},
    )


def answer_probe(rows: ProbedRows, name: str, describe: Describe | None) -> AnswerProbe:
    """The probe of one description; None is the question alone."""
    if describe is None:
        kernels = [rows.words]
    else:
        with torch.no_grad():
            described = torch.cat([describe(part).flatten(1).double() for part in torch.split(rows.pictures, CHUNK)])
        of_pictures = _gaussian(described)[rows.picture_of][:, rows.picture_of]
        kernels = [rows.words * (1 + strength * of_pictures) / (1 + strength) for strength in STRENGTHS]
    scores = [_scores(rows, kernel, penalty) for kernel, penalty in product(kernels, PENALTIES)]
    # The first of equals: the least strength, then the least penalty.
    return AnswerProbe(name, *max(scores, key=lambda pair: pair[0]))


def _scores(rows: ProbedRows, kernel: torch.Tensor, penalty: float) -> tuple[float, float]:
    """Accuracies on validation and test rows."""
    train = rows.parts["train"]
    wanted = F.one_hot(rows.targets[train]).double()
    mean = wanted.mean(dim=0)
    ridge = kernel[train][:, train] + penalty * torch.eye(len(train), dtype=torch.float64)
    weights = torch.linalg.solve(ridge, wanted - mean)
    chosen = (kernel[:, train] @ weights + mean).argmax(dim=1)
    right = (chosen == rows.targets).double()
    validation, test = (right[rows.parts[part]].mean().item() for part in ("validate", "test"))
    return validation, test


def _words_kernel(questions: Sequence[str]) -> torch.Tensor:
    """The cosine of bags of one to three successive words, weighted by rarity: float64 [questions, questions]."""
    distinct = list(dict.fromkeys(questions))
    bags = [_grams(text) for text in distinct]
    counts = Counter(gram for bag in bags for gram in bag)
    numbers = {gram: number for number, gram in enumerate(counts)}
    table = torch.zeros(len(distinct), len(numbers), dtype=torch.float64)
    for row, bag in zip(table, bags, strict=True):
        for gram in bag:
            row[numbers[gram]] = 1.0
    rarity = torch.tensor([len(distinct) / count for count in counts.values()], dtype=torch.float64).log1p()
    table = F.normalize(table * rarity, dim=1)
    place = {text: number for number, text in enumerate(distinct)}
    of = torch.tensor([place[text] for text in questions])
    return (table @ table.T)[of][:, of]


def _grams(text: str) -> set[str]:
    words = text.split()
    return {" ".join(words[start : start + size]) for size in (1, 2, 3) for start in range(len(words) - size + 1)}


def _gaussian(described: torch.Tensor) -> torch.Tensor:
    """The Gaussian kernel [n, n] of descriptions [n, numbers]: exp(-d^2 / median(d^2)) of the distance d of a pair.

    The diagonal is left out of the median, since rounding makes some of its zeros positive.
    """
    squared = torch.cdist(described, described).square().fill_diagonal_(0.0)
    return torch.exp(-squared / squared[squared > 0].median())


def plain_descriptions() -> dict[str, Describe]:
    """The descriptions that nobody trained: a thumbnail, edges, and a small network with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = _random_network()
    return {
        "thumbnail, 16 x 16": thumbnails,
        "edges (HOG), 8 x 8 cells": lambda grey: edge_histograms(grey, 8),
        "untrained ConvNet, 64 px": lambda grey: network(F.avg_pool2d(grey, 2)),
    }


def _random_network() -> nn.Sequential:
    """Four convolutions that halve the side: [n, 1, 64, 64] to [n, 256, 4, 4], 0.39 million weights."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 32), (32, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers).eval().requires_grad_(False)


def compared(
    rows_of: Callable[[int], ProbedRows], backbones: Mapping[str, Backbone], plain: bool = False
) -> list[AnswerProbe]:
    """The probes of the question alone, of `plain` descriptions if wanted, and of each backbone by name.

    `rows_of`: the rows with pictures of this size. A backbone has two probes: of its pooled features, and of its
    features of places. Raises `ConfigError` for a backbone that reads pictures and questions in one tower.
    """
    rows_of = cache(rows_of)
    probes = [answer_probe(rows_of(SIZE), "question alone", None)]
    for name, describe in plain_descriptions().items() if plain else ():
        probes.append(answer_probe(rows_of(SIZE), name, describe))
    for name, backbone in backbones.items():
        check_apart(backbone.shape)
        rows = rows_of(backbone.shape.image_size)
        probes.append(answer_probe(rows, f"{name}, pooled", partial(pooled, backbone)))
        probes.append(answer_probe(rows, f"{name}, places", backbone.places))
    return probes


def pooled(backbone: Backbone, grey: torch.Tensor) -> torch.Tensor:
    """A backbone's pooled features of pictures, [n, width of the tower for pictures]."""
    cache = backbone.cache(dict.fromkeys(backbone.shape.towers, 0), grey, [""])
    numbers = torch.arange(len(grey))
    batch = cache.batch(numbers, cache.question_ids([""] * len(grey)), numbers)
    return backbone.features(batch, Tuning())[:, : backbone.shape.towers[IMAGE].width]
