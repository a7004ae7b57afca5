"""VAuLT as a backbone: ViLT, whose words are the last states of a BERT (G. Chochlakis et al., arXiv 2208.09021, 2022).

One tower, `joint`: BERT's blocks, which see the question alone, and then ViLT's.
"""

from typing import Any

import torch
from torch import nn

from medfedvqa.models.backbone import UNTUNED, TowerTuning
from medfedvqa.papers.networks.bert_blocks import bert_block, embedded
from medfedvqa.papers.networks.joint import JointBackbone, JointRows, present
from medfedvqa.papers.networks.vilt import embedded_patches, embedded_words, encoded, looked


class VaultBackbone(JointBackbone):
    """A frozen module with `bert`, a `BertModel` of transformers, and `vilt`, a `ViltModel`."""

    title = "VAuLT"

    @property
    def table(self) -> nn.Embedding:
        table: nn.Embedding = self.network.bert.embeddings.word_embeddings
        return table

    def picture_start(self, network: Any, pixels: torch.Tensor, first: int) -> torch.Tensor:
        return embedded_patches(network.vilt, pixels)

    def question_start(self, network: Any, tokens: torch.Tensor, first: int) -> torch.Tensor:
        hidden, lengths = embedded(network.bert, tokens), (tokens >= 0).sum(dim=1)
        return self._read(network, hidden, lengths, 0, first, UNTUNED)

    def pooled(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        starts = self._words_and_patches(network, rows, tuning)
        return encoded(network.vilt, *starts, rows.lengths, tuning.counted_from(len(network.bert.encoder.layer)))

    def looked(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        starts = self._words_and_patches(network, rows, tuning)
        return looked(network.vilt, *starts, rows.lengths, tuning.counted_from(len(network.bert.encoder.layer)))

    def _words_and_patches(
        self, network: Any, rows: JointRows, tuning: TowerTuning
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What ViLT's first block takes."""
        pictures, questions = rows.pictures, rows.questions[:, : int(rows.lengths.max())]
        if rows.first < 0:
            pictures, questions = embedded_patches(network.vilt, pictures), embedded(network.bert, questions)
        if rows.first < len(network.bert.encoder.layer):
            questions = self._read(network, questions, rows.lengths, max(rows.first, 0), self.layers, tuning)
        return questions, pictures

    def _read(
        self, network: Any, hidden: torch.Tensor, lengths: torch.Tensor, first: int, end: int, tuning: TowerTuning
    ) -> torch.Tensor:
        """BERT's states before the block `first` to those before `end`; if that is ViLT's, to ViLT's embeddings."""
        blocks, visible = network.bert.encoder.layer, present(lengths, hidden.shape[1])
        for index in range(first, min(end, len(blocks))):
            hidden = bert_block(blocks[index], hidden, visible, tuning, index, self.layers)
        return embedded_words(network.vilt, inputs_embeds=hidden) if end >= len(blocks) else hidden
