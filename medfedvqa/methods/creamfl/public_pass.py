"""A site's side of CreamFL's public set: its model's representations, and their contrast with the server's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from medfedvqa.data import PublicPairs
from medfedvqa.methods.creamfl.ensemble import OTHER, inter_modal
from medfedvqa.methods.moon import contrast
from medfedvqa.models import Cache, Depth, PairedModel, Stacked, Values
from medfedvqa.training import MakeCache, Penalty

CHUNK = 64
"""Public pairs that go through the model together in evaluation."""


@dataclass(frozen=True)
class FrozenPairs:
    """The cache of the public pairs: the outputs of the backbone's frozen part."""

    cache: Cache
    captions: torch.Tensor
    """The cache's numbers of the captions, int64 [items]."""

    @classmethod
    def of(cls, make: MakeCache, size: int, depth: Depth, pairs: PublicPairs) -> "FrozenPairs":
        """The cache that `make` makes of these pairs, with pictures of `size` pixels, at this depth of tuning."""
        cache = make(depth, Stacked(pairs.pictures(size)), pairs.captions)
        return cls(cache, cache.question_ids(pairs.captions))

    def __len__(self) -> int:
        return len(self.captions)

    def batch(self, items: torch.Tensor) -> Any:
        """The selected pairs, int64 [rows], as the backbone takes them. Their answers mean nothing."""
        return self.cache.batch(items, self.captions[items], torch.zeros_like(items))


@dataclass(frozen=True)
class PublicPass:
    """The public pairs as a site's model sees them, and how it learns from them."""

    model: PairedModel
    pairs: FrozenPairs
    gamma: float
    temperature: float
    rows: int
    """Pairs per step."""

    @property
    def steps(self) -> int:
        """The steps of one pass over all pairs."""
        return -(-len(self.pairs) // self.rows)

    @torch.no_grad()
    def represent(self, values: Mapping[str, torch.Tensor]) -> Values:
        """The unit vectors of all items, [items, space], by modality that the model sees."""
        parts = [self._of(values, items) for items in torch.split(torch.arange(len(self.pairs)), CHUNK)]
        return {modality: torch.cat([part[modality] for part in parts]) for modality in parts[0]}

    def contrasts(
        self, before: Mapping[str, torch.Tensor], projection: Values, server: Values, seed: int
    ) -> Iterator[Penalty]:
        """Endless steps over the pairs in random order: gamma times both contrasts, as functions of the VQA model.

        `before`: all values that the round starts from; `projection`: those in training; `server`: representations.
        """
        generator, previous = torch.Generator().manual_seed(seed), self.represent(before)

        def loss(items: torch.Tensor, values: Values) -> torch.Tensor:
            partners = items.to(self.model.backbone.device)
            terms = []
            for modality, local in self._of({**values, **projection}, items).items():
                terms.append(inter_modal(local, server[OTHER[modality]], partners, self.temperature))
                pair = server[modality][partners], previous[modality][partners]
                terms.append(contrast(local, *pair, self.temperature))
            return self.gamma * torch.stack(terms).sum(dim=0).mean()

        while True:
            for items in torch.split(torch.randperm(len(self.pairs), generator=generator), self.rows):
                yield partial(loss, items)

    def _of(self, values: Mapping[str, torch.Tensor], items: torch.Tensor) -> Values:
        return self.model.represent(values, self.pairs.batch(items))
