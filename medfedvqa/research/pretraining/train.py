"""Trains the bundled backbone: the training loop, and the tasks of the picture tower, from labels to questions.

The text tower is frozen, and encodes each text once. All heads are discarded after training.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from medfedvqa.errors import BackboneError
from medfedvqa.models.bundled import ARCHITECTURES, aligned, build, has_published_parts, normalisation, tokenizer
from medfedvqa.models.families import text_tower
from medfedvqa.models.layouts import Packed
from medfedvqa.models.published_parts import PREFIXES, published_weights
from medfedvqa.research.pretraining.corpus import (
    BINS,
    LABELS,
    ORIENTATIONS,
    Corpus,
    PairBatch,
    Picture,
    draw,
    edge_histograms,
    is_for_probes,
    thumbnails,
)

THUMBNAIL = 16

Classes = dict[str, list[str]]
"""The names of the classes of each label, and of the answers under `answer`."""


class FrozenTexts:
    """The text tower's output for each text that was ever asked for, computed once."""

    def __init__(self, clip: CLIP, architecture: str = "medclip2") -> None:
        self._clip, self._tokenize = clip, tokenizer(architecture)
        self._known: dict[str, torch.Tensor] = {}

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """The outputs at the end tokens before the projection, [texts, width]."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        for start in range(0, len(new), 64):
            chunk = new[start : start + 64]
            device = self._clip.logit_scale.device
            with torch.no_grad():
                outputs = text_features(self._clip, self._tokenize(chunk).to(device))
            self._known.update(zip(chunk, outputs, strict=True))
        return torch.stack([self._known[text] for text in texts])


def text_features(clip: CLIP, tokens: torch.Tensor) -> torch.Tensor:
    """The text tower's pooled output before its projection, [n, width]."""
    tower = text_tower(clip, 1)
    layout = Packed(tower.beginnings(tokens), torch.arange(len(tokens), device=tokens.device))
    return tower.features(tower.trunk(tokens, layout), layout)


class Learner(nn.Module):
    """The CLIP, and heads that only training needs."""

    def __init__(self, classes: Classes, architecture: str = "medclip2") -> None:
        super().__init__()
        self.clip: CLIP = build(architecture)
        vision, words = (ARCHITECTURES[architecture][part] for part in ("vision_cfg", "text_cfg"))
        self._deviation = normalisation(architecture)[1][0]
        self._cells = vision["image_size"] // vision["patch_size"]
        width: int = vision["width"]
        text: int = words.get("width") or words["hf_config"]["hidden_size"]
        self.labels = nn.ModuleDict({label: nn.Linear(width, len(classes[label])) for label in LABELS})
        self.orientation = nn.Linear(width, ORIENTATIONS)
        self.edges = nn.Linear(width, BINS)
        self.thumbnail = nn.Linear(width, THUMBNAIL**2)
        self.look = nn.Linear(text, width)
        joined = 2 * width + text + ARCHITECTURES[architecture]["embed_dim"]
        self.answer = nn.Sequential(
            nn.Linear(joined, 512), nn.GELU(), nn.Dropout(0.2), nn.Linear(512, len(classes["answer"]))
        )
        self._numbers = {key: {name: number for number, name in enumerate(names)} for key, names in classes.items()}

    def loss(self, batch: PairBatch, texts: FrozenTexts | None) -> torch.Tensor:
        """The summed losses of all tasks that the batch has; without `texts`, only of tasks without words."""
        device_type = batch.images.device.type
        with torch.autocast(device_type, torch.bfloat16):
            pooled, cells = self.clip.visual._pool(self.clip.visual.transformer(self.clip.visual._embeds(batch.images)))
        pooled, cells = pooled.float(), cells.float()
        total = 0.5 * F.cross_entropy(self.orientation(pooled), batch.orientations)
        upright = batch.orientations == 0
        if not upright.any():
            return total
        pictures = [picture for picture, kept in zip(batch.pictures, upright.tolist(), strict=True) if kept]
        pooled, cells, images = pooled[upright], cells[upright], batch.images[upright]
        total = total + self._from_pixels(pooled, cells, images) + self._from_labels(pooled, pictures)
        if texts is None:
            return total
        chosen = upright.nonzero().flatten().tolist()
        captions, questions = [batch.captions[i] for i in chosen], [batch.questions[i] for i in chosen]
        total = total + 0.5 * self._contrast(pooled, pictures, captions, texts)
        return total + self._answers(pooled, cells, questions, texts)

    def _from_pixels(self, pooled: torch.Tensor, cells: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """The losses of predicting edges from each cell, and the picture's thumbnail from the pooled output."""
        grey = images[:, :1] * self._deviation
        edges = edge_histograms(grey, self._cells).flatten(1, 2)
        small = thumbnails(grey, THUMBNAIL) / self._deviation
        return F.mse_loss(self.edges(cells), edges) * BINS + 0.5 * F.mse_loss(self.thumbnail(pooled), small)

    def _from_labels(self, pooled: torch.Tensor, pictures: Sequence[Picture]) -> torch.Tensor:
        total = pooled.new_zeros(())
        for label, head in self.labels.items():
            numbers = self._numbers[label]
            rows = [row for row, picture in enumerate(pictures) if label in picture.labels]
            if rows:
                targets = torch.tensor([numbers[pictures[row].labels[label]] for row in rows], device=pooled.device)
                total = total + 0.5 * F.cross_entropy(head(pooled[rows]), targets)
        return total

    def _contrast(
        self, pooled: torch.Tensor, pictures: Sequence[Picture], captions: Sequence[str], texts: FrozenTexts
    ) -> torch.Tensor:
        """Symmetric cross-entropy over captions. Pictures of the same meaning are not negatives."""
        distinct = list(dict.fromkeys(captions))
        meanings: dict[str, set[tuple[object, ...]]] = {caption: set() for caption in distinct}
        for caption, picture in zip(captions, pictures, strict=True):
            meanings[caption].add(picture.meaning)  # two pictures may be described in the same words
        same = torch.tensor([[picture.meaning in meanings[caption] for caption in distinct] for picture in pictures])
        same = same.to(pooled.device, torch.float32)
        images = F.normalize(pooled @ self.clip.visual.proj, dim=-1)
        words = F.normalize(self._projected(texts(distinct)), dim=-1)
        logits = images @ words.T * self.clip.logit_scale.exp().clamp(max=100)
        forth = F.cross_entropy(logits, same / same.sum(1, keepdim=True))
        return (forth + F.cross_entropy(logits.T, (same / same.sum(0)).T)) / 2

    def _projected(self, words: torch.Tensor) -> torch.Tensor:
        """The text tower's outputs in the common space, of any length."""
        projected: torch.Tensor = (
            self.clip.text.proj(words) if hasattr(self.clip, "text") else words @ self.clip.text_projection
        )
        return projected

    def _answers(
        self,
        pooled: torch.Tensor,
        cells: torch.Tensor,
        questions: Sequence[Sequence[tuple[str, str]]],
        texts: FrozenTexts,
    ) -> torch.Tensor:
        """Cross-entropy of the answers: a question attends to the cells and joins the whole picture's features."""
        triples = [(row, *pair) for row, pairs in enumerate(questions) for pair in pairs]
        if not triples:
            return pooled.new_zeros(())
        rows = torch.tensor([row for row, _, _ in triples], device=pooled.device)
        words = texts([question for _, question, _ in triples])
        look = torch.einsum("rw,rcw->rc", self.look(words), cells[rows]) * pooled.shape[1] ** -0.5
        looked = torch.einsum("rc,rcw->rw", look.softmax(dim=1), cells[rows])
        product = (pooled @ self.clip.visual.proj)[rows] * self._projected(words)
        targets = torch.tensor([self._numbers["answer"][answer] for _, _, answer in triples], device=pooled.device)
        return F.cross_entropy(self.answer(torch.cat([pooled[rows], looked, words, product], dim=1)), targets)


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
    """The classes of each label in the corpus; the label `answer` has the frequent answers."""
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
