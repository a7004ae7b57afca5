"""The training loop of the bundled backbone: contrast of pictures and captions, and answering questions."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from open_clip.transformer import PatchDropout
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from medfedvqa.errors import BackboneError
from medfedvqa.models.bundled import ARCHITECTURE, ShortVocabulary, build
from medfedvqa.pretraining.corpus import Corpus, is_for_probes
from medfedvqa.pretraining.pair_batches import PairBatch, draw

Progress = Callable[[int, int, float], None]
"""A function of the step, the number of steps and the loss."""


@dataclass(frozen=True)
class Recipe:
    """The settings of training. The model card prints them."""

    steps: int
    batch: int = 96
    learning_rate: float = 6e-4
    weight_decay: float = 0.1
    warmup: int = 200
    patch_dropout: float = 0.5
    """The share of patches that are hidden until `full_view`, which doubles the steps per time (FLIP, CVPR 2023)."""
    full_view: float = 0.85
    """The share of the steps after which whole pictures are shown."""
    benchmark_share: float = 0.3
    """The share of the benchmark's pictures in a batch, if there are any."""
    checkpoint_every: int = 200
    """Steps between checkpoints, from which an interrupted training resumes."""
    seed: int = 7


class Learner(nn.Module):
    """The CLIP, and an answer head that only training needs: it teaches both towers about questions."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.clip: CLIP = build()
        width = sum(ARCHITECTURE[tower]["width"] for tower in ("vision_cfg", "text_cfg"))
        joined = width + ARCHITECTURE["embed_dim"]
        self.answer = nn.Sequential(nn.Linear(joined, 512), nn.GELU(), nn.Dropout(0.2), nn.Linear(512, answers))


def image_features(clip: CLIP, images: torch.Tensor) -> torch.Tensor:
    """The image tower's pooled output before its projection, [n, width]."""
    pooled: torch.Tensor = clip.visual._pool(clip.visual.transformer(clip.visual._embeds(images)))[0]
    return pooled


def text_features(clip: CLIP, tokens: torch.Tensor) -> torch.Tensor:
    """The text tower's output at the end token before its projection, [n, width]."""
    ends = tokens.argmax(dim=-1)
    length = int(ends.max()) + 1
    hidden = clip.token_embedding(tokens[:, :length]) + clip.positional_embedding[:length]
    hidden = clip.ln_final(clip.transformer(hidden, attn_mask=clip.attn_mask[:length, :length]))
    pooled: torch.Tensor = hidden[torch.arange(len(tokens), device=tokens.device), ends]
    return pooled


def frequent_answers(corpus: Corpus, least: int = 5) -> list[str]:
    """The sorted answers with at least `least` questions: the classes of the training head."""
    counts = Counter(answer for picture in corpus.pictures for _, answer in picture.questions)
    return sorted(answer for answer, count in counts.items() if count >= least)


def loss(
    learner: Learner, batch: PairBatch, answers: dict[str, int], encode: Callable[[list[str]], torch.Tensor]
) -> torch.Tensor:
    """Symmetric cross-entropy over captions of the same meaning, plus cross-entropy of the answers."""
    device = batch.images.device
    captions = list(dict.fromkeys(batch.captions))
    questions = list(dict.fromkeys(pair[0] for pair in batch.questions if pair))
    words = text_features(learner.clip, encode(captions + questions).to(device))
    pictures = image_features(learner.clip, batch.images)
    images, texts = pictures @ learner.clip.visual.proj, words @ learner.clip.text_projection

    meanings: dict[str, set[tuple[object, ...]]] = {caption: set() for caption in captions}
    for caption, picture in zip(batch.captions, batch.pictures, strict=True):
        meanings[caption].add(picture.meaning)  # two pictures may be described in the same words
    same = torch.tensor([[picture.meaning in meanings[caption] for caption in captions] for picture in batch.pictures])
    same = same.to(device, torch.float32)
    logits = F.normalize(images, dim=-1) @ F.normalize(texts[: len(captions)], dim=-1).T
    logits = logits * learner.clip.logit_scale.exp().clamp(max=100)
    contrast = F.cross_entropy(logits, same / same.sum(1, keepdim=True))
    contrast = (contrast + F.cross_entropy(logits.T, (same / same.sum(0)).T)) / 2

    triples = [(index, *pair) for index, pair in enumerate(batch.questions) if pair]
    rows = torch.tensor([index for index, _, _ in triples], device=device)
    asked = torch.tensor([len(captions) + questions.index(question) for _, question, _ in triples], device=device)
    joined = torch.cat([pictures[rows], words[asked], images[rows] * texts[asked]], dim=1)
    targets = torch.tensor([answers[answer] for _, _, answer in triples], device=device)
    return contrast + F.cross_entropy(learner.answer(joined), targets)


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


def train(corpus: Corpus, recipe: Recipe, checkpoint: Path, start: Path | None, progress: Progress) -> CLIP:
    """Trains, and resumes from `checkpoint` if it exists. `start` holds first weights. Returns the CLIP."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    answers = {answer: index for index, answer in enumerate(frequent_answers(corpus))}
    learner = Learner(len(answers)).to(device)
    if start:
        learner.clip.load_state_dict(load_file(start))
    optimizer = torch.optim.AdamW(_groups(learner, recipe), lr=recipe.learning_rate, betas=(0.9, 0.98))
    tokenizer, first = ShortVocabulary(), 0
    if checkpoint.exists():
        first = _resume(checkpoint, learner, optimizer)
    batches = itertools.islice(pick(corpus, recipe, generator), first, recipe.steps)
    for step, indices in enumerate(batches, start=first):
        # Each step has its own seed, so that a resumed run draws the same numbers as an uninterrupted one.
        torch.manual_seed(recipe.seed + step)
        batch = draw(corpus, indices, set(answers), torch.Generator().manual_seed(recipe.seed + step))
        learner.train()
        hidden = recipe.patch_dropout if step < recipe.full_view * recipe.steps else 0.0
        learner.clip.visual.patch_dropout = PatchDropout(hidden) if hidden else nn.Identity()
        value = loss(learner, _on(batch, device), answers, tokenizer)
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _schedule(step, recipe)
        optimizer.zero_grad()
        torch.autograd.backward(value)
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        progress(step + 1, recipe.steps, value.item())
        if (step + 1) % recipe.checkpoint_every == 0 or step + 1 == recipe.steps:
            _save(checkpoint, learner, optimizer, step + 1)
    learner.clip.visual.patch_dropout = nn.Identity()
    return learner.clip.eval()


def write_weights(clip: CLIP, path: Path, stages: list[dict[str, Any]]) -> None:
    """Writes the CLIP as float16 safetensors, with the `stages` of its training in the file's metadata."""
    tensors = {name: tensor.half().cpu().contiguous() for name, tensor in clip.state_dict().items()}
    save_file(tensors, path, metadata={"stages": json.dumps(stages)})


def stages_of(path: Path) -> list[dict[str, Any]]:
    """The stages of training of the weights in this file, oldest first. Raises `BackboneError`."""
    try:
        with safe_open(path, framework="pt") as file:
            return list(json.loads((file.metadata() or {})["stages"]))
    except (OSError, KeyError, ValueError, SafetensorError):
        raise BackboneError("the weights to start from are not a file that `medfedvqa pretrain` wrote") from None


def _on(batch: PairBatch, device: torch.device) -> PairBatch:
    return PairBatch(batch.images.to(device), batch.pictures, batch.captions, batch.questions)


def _groups(learner: Learner, recipe: Recipe) -> list[dict[str, object]]:
    matrices = [p for p in learner.parameters() if p.ndim >= 2]
    vectors = [p for p in learner.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]


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
