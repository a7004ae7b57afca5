"""MOON: model-contrastive federated learning (Q. Li, B. He, D. Song, CVPR 2021)."""

import torch
import torch.nn.functional as F
from pydantic import Field

from medfedvqa.bounds import Temperature, Weight
from medfedvqa.core.averaging import Averaging, AveragingConfig
from medfedvqa.core.method import State
from medfedvqa.core.registry import register
from medfedvqa.models import Values
from medfedvqa.training import RowLoss, Rows, Trainer


class MoonConfig(AveragingConfig, frozen=True):
    """Options of the method `moon`."""

    mu: Weight = Field(1.0, description="weight of the contrast (paper: 0.1 to 10); 0 is FedAvg")
    temperature: Temperature = Field(0.5, description="of cosines (tau)")


@register
class Moon(Averaging[MoonConfig]):
    """FedAvg whose features stay near the mean model's and away from those of the site's own last model."""

    name = "moon"
    config_type = MoonConfig
    compares_features = True

    def row_loss(self, trainer: Trainer, state: State, start: Values) -> RowLoss:
        """Cross-entropy plus mu times the contrast. Until there is a mean, both models of the contrast are the same."""
        model, mu, last = trainer.model, self.config.mu, state["values"]
        if not mu:
            return super().row_loss(trainer, state, start)

        def loss(values: Values, rows: Rows) -> torch.Tensor:
            features = model.features(values, rows.batch)
            with torch.no_grad():
                shared, local = (model.features(frozen, rows.batch) for frozen in (start, last))
            logits = model.answer(values, features, rows.batch, rows.chance)
            answers = F.cross_entropy(logits, rows.answers, reduction="none")
            return answers + mu * contrast(features, shared, local, self.config.temperature)

        return loss


def contrast(features: torch.Tensor, shared: torch.Tensor, local: torch.Tensor, temperature: float) -> torch.Tensor:
    """-log of the mean model's share of exp(cosine / temperature), [rows], against the site's last model."""
    cosines = [F.cosine_similarity(features, other) / temperature for other in (local, shared)]
    return F.softplus(cosines[0] - cosines[1])
