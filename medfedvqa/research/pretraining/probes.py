"""The quality of frozen features on open pictures that training has not seen: linear probes of their labels."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.models import Backbone
from medfedvqa.research.pretraining.answer_probes import pooled
from medfedvqa.research.pretraining.corpus import LABELS, Corpus, is_for_probes


@dataclass(frozen=True)
class LabelProbe:
    """The accuracy of a probe and of always answering the most frequent class, both in 0..1, over `rows`."""

    name: str
    accuracy: float
    chance: float
    rows: int


def linear_probes(backbone: Backbone, corpus: Corpus, fit_on: int = 6000) -> list[LabelProbe]:
    """Logistic regression per label: fitted on at most `fit_on` training pictures, scored on the held-out ones."""
    labelled = [i for i, picture in enumerate(corpus.pictures) if picture.labels]
    test = [i for i in labelled if is_for_probes(i)]
    train = [i for i in labelled if not is_for_probes(i)]
    train = train[:: max(1, len(train) // fit_on)]
    features = {part: _features(backbone, corpus.pixels[list(part)]) for part in (tuple(train), tuple(test))}
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
        probes.append(LabelProbe(label, right.item(), _most_frequent(test_y.tolist()), len(test_y)))
    return probes


@torch.no_grad()
def _features(backbone: Backbone, pixels: torch.Tensor) -> torch.Tensor:
    """The image features of uint8 [n, h, w], scaled to the backbone's input size."""
    size = (backbone.shape.image_size,) * 2
    chunks = []
    for chunk in torch.split(pixels, 128):
        grey = F.interpolate(chunk[:, None].float() / 255, size=size, mode="area")
        chunks.append(pooled(backbone, grey))
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


def _most_frequent(classes: list[int]) -> float:
    return Counter(classes).most_common(1)[0][1] / len(classes)
