"""FedProx: federated averaging with a proximal term (T. Li et al., MLSys 2020)."""

import torch
from pydantic import Field

from medfedvqa.bounds import Weight
from medfedvqa.core.averaging import Averaging
from medfedvqa.core.method import State
from medfedvqa.core.network_options import NetworkOptions
from medfedvqa.core.registry import register
from medfedvqa.models import Values
from medfedvqa.training import Penalty


class FedProxConfig(NetworkOptions, frozen=True):
    """Options of the method `fedprox`."""

    mu: Weight = Field(0.01, description="weight of the proximal term (paper: 0.001 to 1); 0 is FedAvg")


@register
class FedProx(Averaging[FedProxConfig]):
    """FedAvg whose sites stay near the mean that they start from: mu/2 ||w - w_global||^2, which sees no data."""

    name = "fedprox"
    config_type = FedProxConfig

    def penalty(self, state: State, start: Values) -> Penalty | None:
        """The proximal term."""
        return proximal(self.config.mu, start)


def proximal(weight: float, start: Values) -> Penalty | None:
    """weight / 2 ||w - start||^2 over all trained values, which sees no data; none for a weight of 0."""
    if not weight:
        return None

    def penalty(values: Values) -> torch.Tensor:
        return weight / 2 * torch.stack([(values[name] - start[name]).square().sum() for name in values]).sum()

    return penalty
