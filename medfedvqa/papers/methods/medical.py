"""Baselines of medical visual question answering, trained at each site by itself: SAN, MEVF-style, PubMedCLIP-style."""

from abc import abstractmethod
from typing import TypeVar

import torch
import torch.nn.functional as F
from pydantic import Field

from audits import Exchange, Tensors
from medfedvqa.bounds import MOST_HOPS, MOST_PIXELS, MOST_SPACE, ExtraPasses, Share, Weight
from medfedvqa.core.local_training import Alone, AloneConfig
from medfedvqa.core.method import State
from medfedvqa.core.registry import register
from medfedvqa.errors import ConfigError
from medfedvqa.models import IMAGE, BackboneShape, Values
from medfedvqa.papers.networks.attention_networks import ClipFusion, EnhancedAttention, NetworkConfig, StackedAttention
from medfedvqa.training import RowLoss, Rows, Site, Trainer
from privacy import Cost


class MedicalConfig(AloneConfig, frozen=True):
    """Options of all these networks."""

    pixels: int = Field(
        128, ge=16, le=MOST_PIXELS, multiple_of=16, description="side of a picture; a region is 16 pixels"
    )
    width: int = Field(128, ge=2, le=MOST_SPACE, multiple_of=2, description="of the question's state and of attention")
    dropout: Share = Field(0.5, description="before the answer layer")


class AttentionConfig(MedicalConfig, frozen=True):
    """Options of networks with stacked attention."""

    hops: int = Field(2, ge=1, le=MOST_HOPS, description="layers of attention (SAN: 2)")

    @property
    def network(self) -> NetworkConfig:
        """The options of the network."""
        return NetworkConfig(self.pixels, self.width, self.hops, self.dropout)


class DenoisingConfig(MedicalConfig, frozen=True):
    """Options of networks with an auto-encoder."""

    pretraining: ExtraPasses = Field(
        5, description="passes over the site's own pictures, before round 1, that train the auto-encoder alone"
    )
    reconstruction: Weight = Field(
        0.001, description="weight of the auto-encoder's loss beside the answers' (MEVF's code: 0.001)"
    )


class MevfConfig(DenoisingConfig, AttentionConfig, frozen=True):
    """Options of the method `mevf`."""


class PubMedClipConfig(DenoisingConfig, frozen=True):
    """Options of the method `pubmedclip`."""


Config = TypeVar("Config", bound=DenoisingConfig)


@register
class San(Alone[AttentionConfig]):
    """A stacked attention network on a small convolutional encoder (Z. Yang et al., CVPR 2016); nothing is shared."""

    name = "san"
    config_type = AttentionConfig

    def model(self, site: Site) -> StackedAttention:
        """The network for the site's answer space."""
        return StackedAttention(self.answer_count(site), self.config.network, site.device)


class Denoised(Alone[Config]):
    """A network with an auto-encoder, which is trained alone first and then together with the rest."""

    def cost(self, task: str) -> Cost:
        """See `Alone.cost`. The first round also pays for the pre-training."""
        cost = super().cost(task)
        if self.dp is None or task != "start" or not self.config.pretraining:
            return cost
        return cost + Cost(steps=self._pretraining.training.private_steps(self.dp))

    def start(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The pre-training of the auto-encoder, then the first round."""
        return super().start(site, {**state, "values": self.pretrained(site, state["values"])}, received, round)

    def pretrained(self, site: Site, values: Values) -> Values:
        """The values after training the auto-encoder on the pictures of the site's training rows."""
        if not self.config.pretraining:
            return values
        network = self.model(site)
        part = {name: value for name, value in values.items() if name in network.coder}

        def loss(values: Values, rows: Rows) -> torch.Tensor:
            return network.reconstruction(values, rows.batch, rows.chance)

        trainer = Trainer(site, network, self._pretraining.training, self.answers, self.privacy)
        return values | trainer.train(part, loss, 1, site.task_seed("pretrain", 0)).trained()

    def row_loss(self, trainer: Trainer, state: State, start: Values) -> RowLoss:
        """Binary cross-entropy summed over answers, plus the weighted error of the auto-encoder."""
        network, weight = self.model(trainer.site), self.config.reconstruction

        def loss(values: Values, rows: Rows) -> torch.Tensor:
            logits = network.logits(values, rows.batch, rows.chance)
            right = F.one_hot(rows.answers, logits.shape[1]).to(logits)
            answers = F.binary_cross_entropy_with_logits(logits, right, reduction="none").sum(dim=1)
            return answers + weight * network.reconstruction(values, rows.batch, rows.chance)

        return loss

    @abstractmethod
    def model(self, site: Site) -> EnhancedAttention | ClipFusion:
        """The network for the site's answer space."""

    @property
    def _pretraining(self) -> Config:
        return self.config.model_copy(update={"local_epochs": self.config.pretraining})


@register
class Mevf(Denoised[MevfConfig]):
    """Stacked attention on features of two encoders, one of an auto-encoder (B. Nguyen et al., 2019); not shared."""

    name = "mevf"
    config_type = MevfConfig

    def model(self, site: Site) -> EnhancedAttention:
        """The network for the site's answer space."""
        return EnhancedAttention(self.answer_count(site), self.config.network, site.device)


@register
class PubMedClip(Denoised[PubMedClipConfig]):
    """Features of a frozen CLIP and an auto-encoder, fused with the question (S. Eslami et al., 2023); not shared."""

    name = "pubmedclip"
    config_type = PubMedClipConfig

    def exchange(self, shape: BackboneShape) -> Exchange:
        """See `Alone.exchange`. Raises `ConfigError` for a backbone without a tower for pictures alone."""
        if IMAGE not in shape.towers:
            raise ConfigError(f"'{self.name}' takes a picture's own features: choose a CLIP as the backbone")
        return super().exchange(shape)

    def model(self, site: Site) -> ClipFusion:
        """The network for the site's answer space."""
        config = NetworkConfig(self.config.pixels, self.config.width, dropout=self.config.dropout)
        return ClipFusion(self.answer_count(site), config, site.device, backbone=site.backbone)
