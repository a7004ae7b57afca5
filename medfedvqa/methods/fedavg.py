"""Federated averaging (B. McMahan et al., AISTATS 2017) of the tuned part of the model."""

from medfedvqa.core.averaging import Averaging
from medfedvqa.core.network_options import NetworkOptions
from medfedvqa.core.registry import register
from medfedvqa.core.trunk_options import TrunkOptions


class FedAvgConfig(NetworkOptions, TrunkOptions, frozen=True):
    """Options; `tuning` chooses the member of the family: classifier, lora, prompt, bias, adapter, blocks or full."""


@register
class FedAvg(Averaging[FedAvgConfig]):
    """Local training, then the mean of all sites."""

    name = "fedavg"
    config_type = FedAvgConfig
