"""ALBEF as a backbone: a ViT, and a BERT whose upper half attends to its patches (J. Li et al., NeurIPS 2021).

One tower, `joint`: the ViT's blocks, which see the picture alone, BERT's lower ones, which see the question alone, and
its upper ones, which see both. Features are the last state of the question's first token, as ALBEF itself classifies.
"""

from typing import Any

import torch
from torch import nn

from medfedvqa.models.attention import attention_to_patches, by_head
from medfedvqa.models.backbone import UNTUNED, TowerTuning
from medfedvqa.models.block_readers import attention_of
from medfedvqa.models.library_towers import adapted, tuned_block
from medfedvqa.papers.networks.bert_blocks import bert_block, embedded, self_attended
from medfedvqa.papers.networks.joint import JointBackbone, JointRows, present


class AlbefBackbone(JointBackbone):
    """A frozen module with `visual_encoder`, timm's ViT, and `text_encoder`, a `BertModel` with cross-attention."""

    title = "ALBEF"
    mean = (0.48145466, 0.4578275, 0.40821073)
    std = (0.26862954, 0.26130258, 0.27577711)

    @property
    def table(self) -> nn.Embedding:
        table: nn.Embedding = self.network.text_encoder.embeddings.word_embeddings
        return table

    def picture_start(self, network: Any, pixels: torch.Tensor, first: int) -> torch.Tensor:
        return self._seen(network.visual_encoder, patches(network.visual_encoder, pixels), 0, first, UNTUNED)

    def question_start(self, network: Any, tokens: torch.Tensor, first: int) -> torch.Tensor:
        hidden, lengths = embedded(network.text_encoder, tokens), (tokens >= 0).sum(dim=1)
        return self._read(network, None, hidden, lengths, 0, min(first, alone(network)), UNTUNED)

    def pooled(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        _, hidden = self._up_to(network, rows, self.layers, tuning)
        return hidden[:, 0]

    def looked(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        last = self.layers - 1
        picture, hidden = self._up_to(network, rows, last, tuning)
        block, visible = network.text_encoder.encoder.layer[-1], present(rows.lengths, hidden.shape[1])
        attended = self_attended(block, hidden, visible, tuning, last, self.layers)
        cross = block.crossattention.self
        queries, keys, _ = by_head(
            cross.num_attention_heads, cross.query(attended), cross.key(picture), cross.value(picture), None
        )
        # The picture's own first position stands for no patch.
        weights = attention_to_patches(queries, keys, picture.shape[1] - 1)
        return (weights * visible[:, 0, 0, :, None]).sum(dim=1)

    def _up_to(self, network: Any, rows: JointRows, end: int, tuning: TowerTuning) -> tuple[torch.Tensor, torch.Tensor]:
        """The states of a picture, all of its blocks behind them, and those of a question before the block `end`."""
        pictures, questions = rows.pictures, rows.questions[:, : int(rows.lengths.max())]
        if rows.first < 0:
            pictures = patches(network.visual_encoder, pictures)
            questions = embedded(network.text_encoder, questions)
        # Blocks that see both have no start in the cache, tuned or not.
        begin = min(max(rows.first, 0), alone(network))
        if rows.first < len(network.visual_encoder.blocks):
            pictures = self._seen(network.visual_encoder, pictures, begin, end, tuning)
        return pictures, self._read(network, pictures, questions, rows.lengths, begin, end, tuning)

    def _seen(self, visual: Any, hidden: torch.Tensor, first: int, end: int, tuning: TowerTuning) -> torch.Tensor:
        """A picture's states before the block `first` to those before `end`, normalised at the end of the ViT."""
        for index, block in list(enumerate(visual.blocks))[first:end]:
            with tuned_block(block, attention_of(block), tuning, index, self.layers):
                hidden = block(hidden)
            hidden = adapted(tuning, index, hidden)
        normalised: torch.Tensor = visual.norm(hidden) if end >= len(visual.blocks) else hidden
        return normalised

    def _read(
        self,
        network: Any,
        picture: torch.Tensor | None,
        hidden: torch.Tensor,
        lengths: torch.Tensor,
        first: int,
        end: int,
        tuning: TowerTuning,
    ) -> torch.Tensor:
        """A question's states before the block `first` to those before `end`; `picture` for blocks that see it."""
        visible, below = present(lengths, hidden.shape[1]), len(network.visual_encoder.blocks)
        for index, block in enumerate(network.text_encoder.encoder.layer, below):
            if first <= index < end:
                attended = picture if hasattr(block, "crossattention") else None
                hidden = bert_block(block, hidden, visible, tuning, index, self.layers, attended)
        return hidden


def patches(visual: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Normalised pictures of the model's own size, [n, 3, size, size], to [n, patches + 1, width]."""
    embedded_patches: torch.Tensor = visual._pos_embed(visual.patch_embed(pixels))
    return embedded_patches


def alone(network: Any) -> int:
    """The number of blocks that see the picture or the question alone."""
    text = sum(not hasattr(block, "crossattention") for block in network.text_encoder.encoder.layer)
    return len(network.visual_encoder.blocks) + text
