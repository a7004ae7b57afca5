"""CreamFL's server model, which learns from public pairs and from the sites' ensemble."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.data import PublicPairs
from medfedvqa.errors import ConfigError
from medfedvqa.models import IMAGE, TEXT, Backbone, Depth, Tuning, Values, check_apart
from medfedvqa.papers.caption_sites import contrast_of, numbers
from medfedvqa.papers.public_outputs import one_thread
from medfedvqa.training.frozen_rows import FrozenRows


@dataclass(frozen=True)
class ServerConfig:
    """The options of the server's training. `CreamFLConfig` documents each field."""

    space: int
    public_rows: int
    server_hidden: int
    server_epochs: int
    server_rate: float
    server_temperature: float
    kd: float
    distance: Literal["mse", "l2"]


class EnsembleServer:
    """Two networks, one for each modality, on a frozen backbone's features of the public set."""

    def __init__(self, backbone: Backbone, pairs: PublicPairs, config: ServerConfig, seed: int) -> None:
        """Raises `ConfigError` for a backbone that sees pictures and texts together only."""
        check_apart(backbone.shape)
        self.config, self._generator = config, torch.Generator().manual_seed(seed)
        self._captions = numbers(pairs.captions)
        with one_thread():
            self._features = features(backbone, pairs_of(backbone, pairs))
        self.networks = nn.ModuleDict(
            {
                modality: network(features.shape[1], config.server_hidden, config.space, self._generator)
                for modality, features in self._features.items()
            }
        )
        self._optimizer = torch.optim.Adam(self.networks.parameters(), config.server_rate)

    @torch.no_grad()
    def representations(self) -> Values:
        """The unit vectors of all items, [items, space], by modality."""
        with one_thread():
            return self.of(self._features)

    def of(self, features: Values) -> Values:
        """The unit vectors of a backbone's features, [items, space], by modality."""
        networks = self.networks.items()
        return {modality: F.normalize(network(features[modality]), dim=-1) for modality, network in networks}

    def supervise(self) -> None:
        """Epochs of contrast between pictures and captions. Pairs with the same caption are positives of each other."""

        def loss(items: torch.Tensor) -> torch.Tensor:
            image, text = self._represent(items).values()
            return contrast_of(image @ text.T / self.config.server_temperature, self._captions[items]).mean()

        self._train(self.config.server_epochs, loss)

    def distil(self, ensemble: Mapping[str, torch.Tensor]) -> None:
        """One epoch towards the sites' ensemble. Each modality counts once."""

        def loss(items: torch.Tensor) -> torch.Tensor:
            local = self._represent(items)
            distances = [self._distance(local[modality], target[items]) for modality, target in ensemble.items()]
            return self.config.kd * torch.stack(distances).sum()

        if self.config.kd:
            self._train(1, loss)

    def _distance(self, local: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        difference = local - target
        return difference.square().mean() if self.config.distance == "mse" else difference.norm(dim=1).mean()

    def _represent(self, items: torch.Tensor) -> Values:
        return self.of({modality: features[items] for modality, features in self._features.items()})

    def _train(self, epochs: int, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        with one_thread():
            for _ in range(epochs):
                order = torch.randperm(len(self._captions), generator=self._generator)
                for items in torch.split(order, self.config.public_rows):
                    self._optimizer.zero_grad()
                    torch.autograd.backward(loss(items))
                    self._optimizer.step()


def network(inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> nn.Module:
    """Two layers, with torch's default initial values from this generator instead of the global one."""
    layers: list[nn.Linear] = [
        nn.utils.skip_init(nn.Linear, *sizes)  # type: ignore[no-untyped-call]  # torch's has no annotations
        for sizes in ((inputs, hidden), (hidden, outputs))
    ]
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -(layer.in_features**-0.5), layer.in_features**-0.5, generator=generator)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def pairs_of(backbone: Backbone, pairs: PublicPairs) -> FrozenRows:
    """The pairs in the backbone's input format, with nothing tuned."""
    return FrozenRows.of_pairs(backbone.cache_of, backbone.shape.image_size, untuned(backbone), pairs)


def untuned(backbone: Backbone) -> Depth:
    """The depth of a backbone with nothing tuned."""
    return dict.fromkeys(backbone.shape.towers, 0)


@torch.no_grad()
def features(backbone: Backbone, rows: FrozenRows) -> Values:
    """The backbone's features of all rows by modality, [rows, width]."""
    towers = backbone.shape.towers
    joined = backbone.features(rows.batch(torch.arange(len(rows))), Tuning())
    return dict(zip(towers, torch.split(joined, [facts.width for facts in towers.values()], dim=-1), strict=True))


# The global-local contrast of public representations, and the ensemble that it weighs (CreamFL, Sec. 3.2, 3.3).
#
# Representations are unit vectors [items, space].

Positive = Literal["included", "excluded"]

OTHER = {IMAGE: TEXT, TEXT: IMAGE}

BLOCK = 1024
"""Items whose cosines with all others are in memory at the same time."""


def inter_modal(local: torch.Tensor, other: torch.Tensor, items: torch.Tensor, temperature: float) -> torch.Tensor:
    """-log of the share of an item's own partner in exp(cosine / temperature) over the whole public set, [rows].

    `local`: the representations of `items`, int64 [rows]; `other`: the server's of all items in the other modality.
    """
    return F.cross_entropy(local @ other.T / temperature, items, reduction="none")


def scores(
    local: torch.Tensor, other: torch.Tensor, temperature: float, positive: Positive = "included", block: int = BLOCK
) -> torch.Tensor:
    """The log-softmax of each of a site's representations for its partner among the server's items, [items].

    `positive` 'excluded': the partner is left out of the normalisation.
    """
    parts = []
    for rows in torch.split(torch.arange(len(local)), block):
        logits = local[rows] @ other.T / temperature
        partner = (torch.arange(len(rows)), rows)
        fit = logits[partner]
        if positive == "excluded":
            logits[partner] = -torch.inf
        parts.append(fit - logits.logsumexp(dim=1))
    return torch.cat(parts)


def aggregate(
    uploads: Mapping[str, torch.Tensor],
    other: torch.Tensor,
    temperature: float,
    positive: Positive = "included",
    block: int = BLOCK,
) -> torch.Tensor:
    """The sites' representations of one modality, weighted for each item by a softmax of scores over sites.

    Raises `ConfigError` if no site sent representations.
    """
    local = _stacked(uploads)
    fits = torch.stack([scores(each, other, temperature, positive, block) for each in local])
    return (weights(fits)[..., None] * local).sum(dim=0)


def mean(uploads: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The plain mean of the sites' representations of one modality, [items, space]: the ablation of `aggregate`.

    Raises `ConfigError` if no site sent representations.
    """
    return _stacked(uploads).mean(dim=0)


def _stacked(uploads: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if not uploads:
        raise ConfigError("no site sent representations of this modality: let one of them see it")
    return torch.stack([uploads[site] for site in sorted(uploads)])


def weights(fits: torch.Tensor) -> torch.Tensor:
    """The weights of scores [sites, items], which sum to one for each item."""
    return fits.softmax(dim=0)
