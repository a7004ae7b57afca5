"""The tasks of the picture tower: labels, orientation, edges, a thumbnail, captions, and questions.

The text tower is frozen, and encodes each text once. All heads are discarded after training.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from torch import nn

from medfedvqa.models.bundled import ARCHITECTURES, build, normalisation, tokenizer
from medfedvqa.models.families import text_tower
from medfedvqa.models.layouts import Packed
from medfedvqa.research.pretraining.corpus import LABELS, Picture
from medfedvqa.research.pretraining.pair_batches import PairBatch
from medfedvqa.research.pretraining.picture_targets import BINS, ORIENTATIONS, edge_histograms, thumbnails

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
        """Symmetric cross-entropy over captions. Pictures of the same meaning are no negatives."""
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
