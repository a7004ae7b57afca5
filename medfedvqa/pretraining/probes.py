"""The quality of frozen features: linear probes on held-out pictures, and answers on both benchmarks."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from torch import nn

from medfedvqa.data.images import load_image
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.models.bundled import ShortVocabulary
from medfedvqa.pretraining.corpus import Corpus, is_for_probes
from medfedvqa.pretraining.pair_batches import SIZE, normalise
from medfedvqa.pretraining.train import image_features, text_features
from medfedvqa.public_answers import fold

LABELS = ("organ", "modality", "plane", "finding")


@dataclass(frozen=True)
class ZeroShotProbe:
    """The accuracy of a probe and of always answering the most frequent class, both in 0..1, over `rows`."""

    name: str
    accuracy: float
    chance: float
    rows: int


def linear_probes(clip: CLIP, corpus: Corpus, fit_on: int = 6000) -> list[ZeroShotProbe]:
    """Logistic regression per label: fitted on at most `fit_on` training pictures, scored on the held-out ones."""
    labelled = [i for i, picture in enumerate(corpus.pictures) if picture.labels]
    test = [i for i in labelled if is_for_probes(i)]
    train = [i for i in labelled if not is_for_probes(i)]
    train = train[:: max(1, len(train) // fit_on)]
    features = {part: _features(clip, corpus.pixels[list(part)]) for part in (tuple(train), tuple(test))}
    probes = []
    for label in LABELS:
        names = sorted({corpus.pictures[i].labels[label] for i in train if label in corpus.pictures[i].labels})
        parts = []
        for part, values in features.items():
            rows = [row for row, i in enumerate(part) if corpus.pictures[i].labels.get(label) in names]
            classes = [names.index(corpus.pictures[part[row]].labels[label]) for row in rows]
            parts.append((values[rows], torch.tensor(classes)))
        (x, y), (test_x, test_y) = parts
        right = _logistic(x, y, len(names))(test_x).argmax(1).eq(test_y).float().mean()
        probes.append(ZeroShotProbe(label, right.item(), _most_frequent(test_y.tolist()), len(test_y)))
    return probes


def answer_probes(clip: CLIP, data: VQAData, seeds: Sequence[int] = (0, 1, 2)) -> list[ZeroShotProbe]:
    """A two-layer head on frozen features for closed questions, by organ, on the official split; mean over seeds."""
    closed = [row for row in data.rows if row.closed]
    images = {image: index for index, image in enumerate(dict.fromkeys(row.image for row in closed))}
    first = {row.image: row.index for row in reversed(closed)}
    pixels = torch.cat([load_image(image, SIZE, first[image]) for image in images])
    image_part = _features(clip, (pixels * 255).round().to(torch.uint8))
    questions = {text: index for index, text in enumerate(dict.fromkeys(fold(row.question) for row in closed))}
    with torch.no_grad():
        text_part = text_features(clip, ShortVocabulary()(list(questions)))

    def joined(rows: list[Row]) -> torch.Tensor:
        pictures = [images[row.image] for row in rows]
        return torch.cat([image_part[pictures], text_part[[questions[fold(row.question)] for row in rows]]], dim=1)

    probes = []
    for organ in data.organs:
        rows = [row for row in closed if row.organ == organ]
        train = [row for row in rows if row.split == "train"]
        test = [row for row in rows if row.split == "test"]
        answers = sorted({fold(row.answer) for row in train})
        targets = torch.tensor([answers.index(fold(row.answer)) for row in train])
        expected = [fold(row.answer) for row in test]
        accuracy = 0.0
        for seed in seeds:
            predict = _head(joined(train), targets, len(answers), seed)
            predicted = [answers[i] for i in predict(joined(test)).argmax(1)]
            accuracy += sum(a == b for a, b in zip(predicted, expected, strict=True)) / len(test) / len(seeds)
        majority = Counter(fold(row.answer) for row in train).most_common(1)[0][0]
        probes.append(ZeroShotProbe(organ, accuracy, expected.count(majority) / len(test), len(test)))
    return probes


@torch.no_grad()
def _features(clip: CLIP, pixels: torch.Tensor) -> torch.Tensor:
    """The image features of uint8 [n, h, w], scaled to the backbone's input size."""
    chunks = []
    for chunk in torch.split(pixels, 128):
        grey = F.interpolate(chunk[:, None].float() / 255, size=(SIZE, SIZE), mode="area")
        chunks.append(image_features(clip, normalise(grey)))
    return torch.cat(chunks)


def _logistic(x: torch.Tensor, y: torch.Tensor, classes: int) -> Callable[[torch.Tensor], torch.Tensor]:
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    layer = nn.Linear(x.shape[1], classes)
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(layer((x - mean) / deviation), y) + 1e-4 * layer.weight.square().sum()
        torch.autograd.backward(value)
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch's LBFGS has no annotations
    return lambda values: layer((values - mean) / deviation)


def _head(x: torch.Tensor, y: torch.Tensor, classes: int, seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Sequential(nn.Linear(x.shape[1], 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, classes))
        optimizer = torch.optim.AdamW(head.parameters(), lr=5e-4, weight_decay=0.05)
        for _ in range(40):
            for rows in torch.split(torch.randperm(len(x), generator=generator), 64):
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(head(x[rows]), y[rows]))
                optimizer.step()
    return head.eval()


def _most_frequent(classes: list[int]) -> float:
    return Counter(classes).most_common(1)[0][1] / len(classes)
