"""Towers that run a library's own blocks, one after the other, with tuned parts in the last ones.

They have the interface of `towers` but cost more: they compute every position of the last block, and texts with a
common beginning share only the stored states between blocks.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import UNTUNED, TowerShape, TowerTuning
from medfedvqa.models.block_readers import AttentionReader, TunedBlock, attention_of, pointwise_layers, prompt_tokens
from medfedvqa.models.encoders import ImageEncoder, TextEncoder
from medfedvqa.models.layouts import Beginnings, Packed, beginnings
from privacy import current_owners, owned


@dataclass(frozen=True)
class _LibraryTower:
    """A tower, tuned in its last `tuned` blocks."""

    encoder: ImageEncoder | TextEncoder
    tuned: int

    @cached_property
    def _blocks(self) -> list[nn.Module]:
        return list(self.encoder.blocks.values())

    @property
    def layers(self) -> int:
        """The number of blocks."""
        return len(self._blocks)

    def embed(self, features: torch.Tensor) -> torch.Tensor:
        """Features [n, width] in the common space, of length 1: [n, embed]."""
        return F.normalize(self.encoder.project(features), dim=-1)


@dataclass(frozen=True)
class LibraryImageTower(_LibraryTower):
    """A picture tower."""

    encoder: ImageEncoder

    def trunk(self, images: torch.Tensor) -> torch.Tensor:
        """The input of the first tuned block, [n, ...], for normalised images [n, 3, size, size]."""
        hidden = self.encoder.embed(images)
        for index in range(self.layers - self.tuned):
            hidden = self.encoder.run(index, hidden)
        return hidden

    def features(self, hidden: torch.Tensor, tuning: TowerTuning = UNTUNED) -> torch.Tensor:
        """The pooled output before the projection, [n, width], for the output of `trunk`."""
        first = self.layers - self.tuned
        tuning.above(first)
        for index in range(first, self.layers):
            attention = attention_of(self._blocks[index]) if self.encoder.attends else None
            with tuned_block(self._blocks[index], attention, tuning, index, self.layers):
                hidden = self.encoder.run(index, hidden)
            hidden = adapted(tuning, index, hidden, channels_first=not self.encoder.attends)
        return self.encoder.pool(hidden)

    def attention(self, hidden: torch.Tensor, tuning: TowerTuning) -> torch.Tensor:
        """Not available: raises `ConfigError`, since the position that represents the picture differs between
        libraries.
        """
        raise ConfigError("attention to a picture is only shown for open_clip's own ViT towers and for ViLT")

    def shape(self, model: Any) -> TowerShape:
        """The tower's shape. `model`: the whole model, on the device `meta`."""
        names = tuple(self.encoder.blocks)
        if not self.encoder.attends:
            widths, features = self._measured_widths(model)
            parts = tuple(tuple((p.name, p.first, p.end, p.inputs) for p in pointwise_layers(b)) for b in self._blocks)
            return TowerShape(self.layers, widths[-1], 0, names=names, widths=widths, features=features, by_block=parts)
        attention = attention_of(self._blocks[0])
        width = next(p for n, p in self._blocks[0].named_parameters() if n == attention.queries_values[0][0]).shape[1]
        return TowerShape(self.layers, width, attention.heads, names[0].rpartition(".")[0], attention.queries_values)

    def _measured_widths(self, model: Any) -> tuple[tuple[int, ...], int]:
        """The output channels of each block, and the width of features, from a pass on the device `meta`."""
        size = model.visual.image_size
        side = size if isinstance(size, int) else size[0]
        with torch.no_grad(), torch.device("meta"):
            hidden, widths = self.encoder.embed(torch.empty(1, 3, side, side)), []
            for index in range(self.layers):
                hidden = self.encoder.run(index, hidden)
                widths.append(hidden.shape[1])
            return tuple(widths), self.encoder.pool(hidden).shape[1]


@dataclass(frozen=True)
class LibraryTextTower(_LibraryTower):
    """A text tower."""

    encoder: TextEncoder

    def beginnings(self, tokens: torch.Tensor) -> Beginnings:
        """The distinct beginnings of token ids [n, context]; each text ends at the last position that matters."""
        return beginnings(tokens, self.encoder.ends(tokens), self.encoder.causal, cut=True)

    def words(self, tokens: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The embeddings between first and last token of ids [n, context], [n, count, width], and which are present."""
        padded = F.pad(tokens, (0, count))[:, 1 : count + 1]
        present = torch.arange(1, count + 1, device=tokens.device) < self.encoder.ends(tokens)[:, None]
        embedded: torch.Tensor = self.encoder.table(padded)
        return embedded * present[..., None], present

    def trunk(self, tokens: torch.Tensor, layout: Packed) -> torch.Tensor:
        """The input of the first tuned block, [states, width], for token ids [n, context]."""
        with owned(layout.pooled_owners(current_owners())):
            hidden, mask = self.encoder.embed(tokens[:, : layout.length]), self.encoder.mask(layout.present)
            for index in range(self.layers - self.tuned):
                hidden = self.encoder.run(index, hidden, mask)
        return layout.pack(hidden)

    def features(self, hidden: torch.Tensor, layout: Packed, tuning: TowerTuning = UNTUNED) -> torch.Tensor:
        """The pooled output before the projection, [n, width], for the output of `trunk` [states, width]."""
        first = self.layers - self.tuned
        tuning.above(first)
        hidden, mask = layout.pad(hidden), self.encoder.mask(layout.present)
        with owned(layout.pooled_owners(current_owners())):
            for index in range(first, self.layers):
                block = self._blocks[index]
                with tuned_block(block, attention_of(block), tuning, index, self.layers):
                    hidden = self.encoder.run(index, hidden, mask)
                hidden = adapted(tuning, index, hidden)
            return self.encoder.pool(hidden, layout.present)

    def shape(self) -> TowerShape:
        """The tower's shape."""
        attention, width = attention_of(self._blocks[0]), self.encoder.table.embedding_dim
        module = next(iter(self.encoder.blocks)).rpartition(".")[0]
        return TowerShape(self.layers, width, attention.heads, module, attention.queries_values)


def tuned_block(
    block: nn.Module, attention: AttentionReader | None, tuning: TowerTuning, index: int, layers: int
) -> TunedBlock:
    """The context with one block's tuned parts. Raises `ConfigError` for prompts in a block without attention."""
    prompts, tokens = tuning.prompts, None
    if prompts is not None and index >= layers - prompts.keys.shape[-3]:
        if attention is None:
            raise ConfigError("prompts need blocks that attend, and this tower has convolutions: tune it otherwise")
        tokens = prompt_tokens(attention, prompts, index - layers)
    return TunedBlock(block, attention, tokens, tuning.updates.get(index))


def adapted(tuning: TowerTuning, index: int, hidden: torch.Tensor, channels_first: bool = False) -> torch.Tensor:
    """A block's output after its adapter, if it has one."""
    if index not in tuning.adapters:
        return hidden
    if channels_first:
        return tuning.adapters[index](hidden.movedim(1, -1)).movedim(-1, 1)
    return tuning.adapters[index](hidden)
