"""What the picture tower learns from: labels, orientation, edges, a thumbnail, captions, and questions.

The text tower is frozen: each text is encoded once. All heads are thrown away after training.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from torch import nn

from medfedvqa.models.bundled import ARCHITECTURES, STD, ShortVocabulary, build
from medfedvqa.pretraining.corpus import LABELS, Picture
from medfedvqa.pretraining.pair_batches import PairBatch
from medfedvqa.pretraining.picture_targets import BINS, ORIENTATIONS, edge_histograms, thumbnails

ARCHITECTURE = ARCHITECTURES["medclip2"]
WIDTH: int = ARCHITECTURE["vision_cfg"]["width"]
TEXT_WIDTH: int = ARCHITECTURE["text_cfg"]["width"]
SPACE: int = ARCHITECTURE["embed_dim"]
CELLS = ARCHITECTURE["vision_cfg"]["image_size"] // ARCHITECTURE["vision_cfg"]["patch_size"]
THUMBNAIL = 16

Classes = dict[str, list[str]]
"""The names of the classes of each label, and of the answers under `answer`."""


class FrozenTexts:
    """The text tower's output for each text that was ever asked for, computed once."""

    def __init__(self, clip: CLIP) -> None:
        self._clip, self._tokenize = clip, ShortVocabulary()
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
    """The text tower's output at the end token before its projection, [n, width]."""
    ends = tokens.argmax(dim=-1)
    length = int(ends.max()) + 1
    hidden = clip.token_embedding(tokens[:, :length]) + clip.positional_embedding[:length]
    hidden = clip.ln_final(clip.transformer(hidden, attn_mask=clip.attn_mask[:length, :length]))
    pooled: torch.Tensor = hidden[torch.arange(len(tokens), device=tokens.device), ends]
    return pooled


class Learner(nn.Module):
    """The CLIP, and heads that only training needs."""

    def __init__(self, classes: Classes) -> None:
        super().__init__()
        self.clip: CLIP = build("medclip2")
        self.labels = nn.ModuleDict({label: nn.Linear(WIDTH, len(classes[label])) for label in LABELS})
        self.orientation = nn.Linear(WIDTH, ORIENTATIONS)
        self.edges = nn.Linear(WIDTH, BINS)
        self.thumbnail = nn.Linear(WIDTH, THUMBNAIL**2)
        self.look = nn.Linear(TEXT_WIDTH, WIDTH)
        joined = 2 * WIDTH + TEXT_WIDTH + SPACE
        self.answer = nn.Sequential(
            nn.Linear(joined, 512), nn.GELU(), nn.Dropout(0.2), nn.Linear(512, len(classes["answer"]))
        )
        self._numbers = {key: {name: number for number, name in enumerate(names)} for key, names in classes.items()}

    def loss(self, batch: PairBatch, texts: FrozenTexts | None) -> torch.Tensor:
        """The sum of all tasks that the batch has; without `texts`, of those that need no words."""
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
        """Edges from each cell, the whole picture's thumbnail from the pooled output."""
        grey = images[:, :1] * STD[0]
        edges = edge_histograms(grey, CELLS).flatten(1, 2)
        small = thumbnails(grey, THUMBNAIL) / STD[0]
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
        """Symmetric cross-entropy over captions. Two pictures of the same meaning are no contrast."""
        distinct = list(dict.fromkeys(captions))
        meanings: dict[str, set[tuple[object, ...]]] = {caption: set() for caption in distinct}
        for caption, picture in zip(captions, pictures, strict=True):
            meanings[caption].add(picture.meaning)  # two pictures may be described in the same words
        same = torch.tensor([[picture.meaning in meanings[caption] for caption in distinct] for picture in pictures])
        same = same.to(pooled.device, torch.float32)
        images = F.normalize(pooled @ self.clip.visual.proj, dim=-1)
        words = F.normalize(texts(distinct) @ self.clip.text_projection, dim=-1)
        logits = images @ words.T * self.clip.logit_scale.exp().clamp(max=100)
        forth = F.cross_entropy(logits, same / same.sum(1, keepdim=True))
        return (forth + F.cross_entropy(logits.T, (same / same.sum(0)).T)) / 2

    def _answers(
        self,
        pooled: torch.Tensor,
        cells: torch.Tensor,
        questions: Sequence[Sequence[tuple[str, str]]],
        texts: FrozenTexts,
    ) -> torch.Tensor:
        """Cross-entropy of the answers: a question looks at the cells, and meets the whole picture."""
        triples = [(row, *pair) for row, pairs in enumerate(questions) for pair in pairs]
        if not triples:
            return pooled.new_zeros(())
        rows = torch.tensor([row for row, _, _ in triples], device=pooled.device)
        words = texts([question for _, question, _ in triples])
        look = torch.einsum("rw,rcw->rc", self.look(words), cells[rows]) * WIDTH**-0.5
        looked = torch.einsum("rc,rcw->rw", look.softmax(dim=1), cells[rows])
        product = (pooled @ self.clip.visual.proj)[rows] * (words @ self.clip.text_projection)
        targets = torch.tensor([self._numbers["answer"][answer] for _, _, answer in triples], device=pooled.device)
        return F.cross_entropy(self.answer(torch.cat([pooled[rows], looked, words, product], dim=1)), targets)
