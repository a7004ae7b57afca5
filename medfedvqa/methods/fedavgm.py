"""FedAvgM: federated averaging with momentum at the server (T.-M. H. Hsu et al., arXiv:1909.06335, 2019).

Sites train as in `fedavg`. The server keeps a velocity v and sends w + r v, where v = momentum v + (mean - w) and w is
the model that it sent before.

| paper | here | why |
|---|---|---|
| momentum from the first round | from the second | the server holds no model before the first mean |
| a fraction of clients per round | all sites | hospitals are few |
"""

import numpy as np
from pydantic import Field

from audits import Tensors
from medfedvqa.bounds import Rate, Share
from medfedvqa.core.averaging import Averaging
from medfedvqa.core.network_options import NetworkOptions
from medfedvqa.core.registry import register
from medfedvqa.core.stepwise import ServerState


class FedAvgMConfig(NetworkOptions, frozen=True):
    """Options of the method `fedavgm`."""

    momentum: Share = Field(0.9, description="share of the velocity that is kept; 0 with server_rate 1: FedAvg")
    server_rate: Rate = Field(1.0, description="the server's learning rate")


@register
class FedAvgM(Averaging[FedAvgMConfig]):
    """The mean, with momentum at the server."""

    name = "fedavgm"
    config_type = FedAvgMConfig

    def server_step(self, held: Tensors, mean: Tensors, state: ServerState) -> tuple[Tensors, ServerState]:
        """The model w + r v, in float64."""
        before = state.get("velocity", {name: np.zeros(array.shape) for name, array in held.items()})
        velocity = {
            name: self.config.momentum * before[name] + (mean[name] - held[name].astype(np.float64)) for name in held
        }
        model = {name: held[name] + self.config.server_rate * velocity[name] for name in held}
        return {name: array.astype(np.float32) for name, array in model.items()}, {"velocity": velocity}
