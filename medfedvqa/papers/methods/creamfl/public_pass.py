"""A site's side of CreamFL's public set: its model's representations, and their contrast with the server's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from medfedvqa.methods.moon import contrast
from medfedvqa.models import PairedModel, Values
from medfedvqa.papers.methods.creamfl.ensemble import OTHER, inter_modal
from medfedvqa.training import FrozenRows, Penalty

CHUNK = 64
"""Public pairs that go through the model together in evaluation."""


@dataclass(frozen=True)
class Contrast:
    """What of the contrast there is (Sec. 3.2), and its weight."""

    gamma: float
    temperature: float
    inter: bool = True
    """Whether a representation is held against the server's of all items in the other modality."""
    intra: bool = True
    """Whether it is held against the server's and the site's last one of the same item and modality."""

    @property
    def applies(self) -> bool:
        """Whether there is any."""
        return self.gamma > 0 and (self.inter or self.intra)


@dataclass(frozen=True)
class PublicPass:
    """The public pairs as a site's model sees them, and how it learns from them."""

    model: PairedModel
    pairs: FrozenRows
    contrast: Contrast
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
        """Endless steps over the pairs in random order: gamma times the contrasts, as functions of the VQA model.

        `before`: all values that the round starts from; `projection`: those in training; `server`: representations.
        """
        generator, previous = torch.Generator().manual_seed(seed), self.represent(before)
        how = self.contrast

        def loss(items: torch.Tensor, values: Values) -> torch.Tensor:
            partners = items.to(self.model.backbone.device)
            terms = []
            for modality, local in self._of({**values, **projection}, items).items():
                if how.inter:
                    terms.append(inter_modal(local, server[OTHER[modality]], partners, how.temperature))
                if how.intra:
                    pair = server[modality][partners], previous[modality][partners]
                    terms.append(contrast(local, *pair, how.temperature))
            return how.gamma * torch.stack(terms).sum(dim=0).mean()

        while True:
            for items in torch.split(torch.randperm(len(self.pairs), generator=generator), self.rows):
                yield partial(loss, items)

    def _of(self, values: Mapping[str, torch.Tensor], items: torch.Tensor) -> Values:
        return self.model.represent(values, self.pairs.batch(items))
