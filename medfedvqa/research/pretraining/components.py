"""Principal components of a backbone's features on its training data, for `medfedvqa.models.backbone.Components`."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from medfedvqa.data import bundled_list
from medfedvqa.models import Backbone
from medfedvqa.models.backbone import Tuning
from medfedvqa.models.bundled import COMPONENTS, components_file
from medfedvqa.models.families import IMAGE
from medfedvqa.research.pretraining.card import picture_features
from medfedvqa.research.pretraining.corpus import Corpus

PICTURES = 150
"""Pictures of each set, so that all sets count alike, whatever their sizes."""


def write_components(backbone: Backbone, corpus: Corpus, weights: Path) -> Path:
    """Writes the components beside the file of weights, float16, and returns the file's path.

    The questions are those of the corpus with its captions and the bundled list of answers: no site has a part in them.
    """
    by_source: dict[str, list[int]] = {}
    for index, picture in enumerate(corpus.pictures):
        by_source.setdefault(picture.source, []).append(index)
    some = [i for indices in by_source.values() for i in indices[:: max(1, len(indices) // PICTURES)]]
    texts = {text for p in corpus.pictures for text in (*p.captions, *(question for question, _ in p.questions))}
    features = {
        "picture": picture_features(backbone, corpus.pixels[some]),
        "question": text_features(backbone, sorted(texts | set(bundled_list("closed")))),
    }
    tensors = {}
    for (name, rows), few in zip(features.items(), COMPONENTS, strict=True):
        tensors[f"{name}_mean"], tensors[name] = principal(rows, few)
    path = weights.with_name(components_file(weights.name))
    save_file({name: tensor.half().contiguous() for name, tensor in tensors.items()}, path)
    return path


def principal(rows: torch.Tensor, few: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of rows [rows, width], and the first principal directions, [few, width]."""
    mean = rows.mean(dim=0)
    return mean, torch.linalg.svd(rows - mean, full_matrices=False).Vh[:few]


@torch.no_grad()
def text_features(backbone: Backbone, texts: list[str]) -> torch.Tensor:
    """The frozen features of texts, float32 [texts, width of the tower for questions]."""
    size = (backbone.shape.image_size,) * 2
    cache = backbone.cache(dict.fromkeys(backbone.shape.towers, 0), torch.zeros(1, 1, *size), texts)
    picture = torch.zeros(1, dtype=torch.int64)
    parts = []
    for ids in torch.split(cache.question_ids(texts), 256):
        batch = cache.batch(picture.expand(len(ids)), ids, picture.expand(len(ids)))
        parts.append(backbone.features(batch, Tuning())[:, backbone.shape.towers[IMAGE].width :])
    return torch.cat(parts)
