"""The training loop of the bundled backbone."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from open_clip.model import CLIP
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from medfedvqa.errors import BackboneError
from medfedvqa.models.bundled import aligned, has_published_parts
from medfedvqa.models.published_parts import PREFIXES, published_weights
from medfedvqa.research.pretraining.corpus import LABELS, Corpus, is_for_probes
from medfedvqa.research.pretraining.learner import Classes, FrozenTexts, Learner
from medfedvqa.research.pretraining.pair_batches import draw

Progress = Callable[[int, int, float], None]
"""A function of the step, the number of steps and the loss."""


@dataclass(frozen=True)
class Recipe:
    """The settings of training. The model card prints them."""

    steps: int
    architecture: str = "medclip2"
    batch: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 50
    benchmark_share: float = 0.3
    """The share of a batch that comes from the benchmark, if there is one."""
    checkpoint_every: int = 100
    """Steps between checkpoints, from which an interrupted training resumes."""
    seed: int = 7


def frequent_answers(corpus: Corpus, least: int = 5) -> list[str]:
    """The sorted answers with at least `least` questions: the classes of the training head."""
    counts = Counter(answer for picture in corpus.pictures for _, answer in picture.questions)
    return sorted(answer for answer, count in counts.items() if count >= least)


def classes_of(corpus: Corpus) -> Classes:
    """The classes of each label in the corpus, and the frequent answers."""
    named = {label: {p.labels[label] for p in corpus.pictures if label in p.labels} for label in LABELS}
    return {label: sorted(names) for label, names in named.items()} | {"answer": frequent_answers(corpus)}


def pick(corpus: Corpus, recipe: Recipe, generator: torch.Generator) -> Iterator[list[int]]:
    """Endless batches of indices: a fixed share from the benchmark, each part shuffled epoch by epoch.

    Pictures for the probes are never drawn.
    """
    benchmark = [i for i, picture in enumerate(corpus.pictures) if not picture.labels]
    rest = [i for i, picture in enumerate(corpus.pictures) if picture.labels and not is_for_probes(i)]
    few = round(recipe.batch * recipe.benchmark_share) if benchmark else 0

    def shuffled(part: list[int]) -> Iterator[int]:
        while True:
            yield from (part[i] for i in torch.randperm(len(part), generator=generator).tolist())

    streams = (shuffled(benchmark), few), (shuffled(rest), recipe.batch - few)
    while True:
        yield [i for stream, count in streams for i in itertools.islice(stream, count)]


def train(
    corpus: Corpus, recipe: Recipe, checkpoint: Path, start: Path | None, text: Path | None, progress: Progress
) -> CLIP:
    """Trains, and resumes from `checkpoint` if it exists. Returns the CLIP.

    `start`: first weights of the whole CLIP. `text`: weights to take the text tower from, for the first two editions;
    without it they learn only the tasks that need no words. Neither the text tower nor a published part is trained.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    classes = classes_of(corpus)
    learner = Learner(classes, recipe.architecture).to(device)
    published = has_published_parts(recipe.architecture)
    parts = published_weights(learner.clip) if published else {}
    if start or published:
        learner.clip.load_state_dict(parts | (load_file(start) if start else aligned(learner.clip.state_dict())))
    if published and not start:
        _begin_as_principal_components(learner.clip.visual, corpus)
    if text:
        _take_text_tower(learner.clip, text)
    texts = FrozenTexts(learner.clip, recipe.architecture) if text or published else None
    optimizer = torch.optim.AdamW(_groups(learner, recipe), lr=recipe.learning_rate, betas=(0.9, 0.98))
    first = _resume(checkpoint, learner, optimizer) if checkpoint.exists() else 0
    answers = set(classes["answer"])
    batches = itertools.islice(pick(corpus, recipe, generator), first, recipe.steps)
    for step, indices in enumerate(batches, start=first):
        # Each step has its own seed, so that a resumed run draws the same numbers as an uninterrupted one.
        torch.manual_seed(recipe.seed + step)
        batch = draw(corpus, indices, answers, torch.Generator().manual_seed(recipe.seed + step), recipe.architecture)
        learner.train()
        value = learner.loss(batch.on(device), texts)
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * group["pace"] * _schedule(step, recipe)
        optimizer.zero_grad()
        torch.autograd.backward(value)
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        progress(step + 1, recipe.steps, value.item())
        if (step + 1) % recipe.checkpoint_every == 0 or step + 1 == recipe.steps:
            _save(checkpoint, learner, optimizer, step + 1)
    return learner.clip.eval()


@torch.no_grad()
def _begin_as_principal_components(visual: Any, corpus: Corpus) -> None:
    """Initialises a picture tower on a published network with the principal components of open pictures' cells.

    Its blocks add nothing yet. The pooled output is the first components of the whole picture and of each place, scaled
    so that those of places have a mean square of about 1. All open sets count alike, whatever their sizes.
    """
    by_source: dict[str, list[int]] = {}
    for place, picture in enumerate(corpus.pictures):
        if picture.labels:
            by_source.setdefault(picture.source, []).append(place)
    chosen = [place for places in by_source.values() for place in places[:: max(1, len(places) // 150)]]
    some = corpus.pixels[chosen, None].expand(-1, 3, -1, -1)
    grids = torch.cat([visual.conv1.network.forward_features(part / 127.5 - 1) for part in torch.split(some, 64)])
    cells = grids.movedim(1, -1).flatten(0, 2)
    mean, few = cells.mean(dim=0), visual.narrow.out_features
    variances, directions = torch.linalg.eigh((cells - mean).T @ (cells - mean) / len(cells))
    weights = directions.flip(1).T[: len(visual.class_embedding)] / variances.flip(0)[:few].mean().sqrt()
    visual.conv1.narrow.weight.copy_(weights[..., None, None])
    visual.conv1.narrow.bias.copy_(-(weights @ mean))
    for layer in (visual.whole, visual.narrow):
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    for block in visual.transformer.resblocks:
        for layer in (block.attn.out_proj, block.mlp.c_proj):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)


def _take_text_tower(clip: CLIP, path: Path) -> None:
    """Copies all but the picture tower from these weights. Raises `BackboneError` for weights without such a tower."""
    try:
        weights = {name: value for name, value in load_file(path).items() if not name.startswith("visual.")}
        mismatch = clip.load_state_dict(weights, strict=False)
    except (OSError, RuntimeError, SafetensorError):
        raise BackboneError("the weights with the text tower are not a file that `medfedvqa pretrain` wrote") from None
    if any(not name.startswith("visual.") for name in mismatch.missing_keys):
        raise BackboneError("the weights with the text tower lack a part of it")


def write_weights(clip: CLIP, path: Path, stages: list[dict[str, Any]]) -> None:
    """Writes the CLIP without published parts as float16 safetensors, with the `stages` of its training as metadata."""
    tensors = {name: tensor.half().cpu().contiguous() for name, tensor in aligned(clip.state_dict()).items()}
    save_file(tensors, path, metadata={"stages": json.dumps(stages)})


def stages_of(path: Path) -> list[dict[str, Any]]:
    """The stages of training of the weights in this file, oldest first. Raises `BackboneError`."""
    try:
        with safe_open(path, framework="pt") as file:
            return list(json.loads((file.metadata() or {})["stages"]))
    except (OSError, KeyError, ValueError, SafetensorError):
        raise BackboneError("the weights to start from are not a file that `medfedvqa pretrain` wrote") from None


def _groups(learner: Learner, recipe: Recipe) -> list[dict[str, object]]:
    """The trained parameters by learning rate and decay: no published parts; of the text tower only its projection.

    On a published network, the components stay fixed and the blocks learn at a hundredth of the rate, so that their
    contribution does not hide the weaker components.
    """
    published = has_published_parts(recipe.architecture)
    apart = ("clip.visual.", "clip.text_projection", "clip.text.proj.", "clip.logit_scale")
    kept = ("visual.conv1.", "visual.whole.", "visual.narrow.") if published else ()
    frozen = tuple(f"clip.{prefix}" for prefix in (*PREFIXES, *kept))
    for name, parameter in learner.clip.named_parameters(prefix="clip"):
        parameter.requires_grad_(name.startswith(apart) and not name.startswith(frozen))
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            on_it = published and name.startswith("clip.visual.") and name != "clip.visual.proj"
            pace = 0.01 if on_it else 1.0
            groups.setdefault((pace, recipe.weight_decay if parameter.ndim >= 2 else 0.0), []).append(parameter)
    return [{"params": part, "weight_decay": decay, "pace": pace} for (pace, decay), part in groups.items()]


def _schedule(step: int, recipe: Recipe) -> float:
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    return 0.5 * (1 + math.cos(math.pi * (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)))


def _save(path: Path, learner: Learner, optimizer: torch.optim.Optimizer, step: int) -> None:
    partial = path.with_suffix(".partial")
    torch.save({"learner": learner.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial)
    partial.replace(path)


def _resume(path: Path, learner: Learner, optimizer: torch.optim.Optimizer) -> int:
    saved = torch.load(path, weights_only=True)
    learner.load_state_dict(saved["learner"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])
