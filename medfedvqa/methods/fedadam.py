"""FedAdam: Adam at the server (S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2).

Sites train as in `fedavg`. The server takes D = mean - w for the negative gradient of a step of Adam:
m = beta_1 m + (1 - beta_1) D, v = beta_2 v + (1 - beta_2) D^2, and sends w + r m / (sqrt(v) + tau).

| paper | here | why |
|---|---|---|
| steps from the first round | from the second | the server holds no model before the first mean |
| sites weigh by rows, or the same | as `weighting` says | under differential privacy no row counts leave |
| a fraction of clients per round | all sites | hospitals are few |
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from audits import Tensors
from medfedvqa.bounds import MOST_RATE, Rate, Share
from medfedvqa.core.averaging import Averaging
from medfedvqa.core.network_options import NetworkOptions
from medfedvqa.core.registry import register
from medfedvqa.core.stepwise import ServerState

Array = NDArray[np.float64]


class FedAdamConfig(NetworkOptions, frozen=True):
    """Options; the paper tunes `server_rate` and `tau` by task on powers of ten."""

    server_rate: Rate = Field(0.01, description="the server's learning rate (eta)")
    beta_1: Share = Field(0.9, description="share of the first moment that is kept")
    beta_2: Share = Field(0.99, description="share of the second moment that is kept")
    tau: float = Field(1e-3, ge=1e-9, le=MOST_RATE, description="adaptivity: added to the root of the second moment")


@register
class FedAdam(Averaging[FedAdamConfig]):
    """The mean, by a step of Adam at the server."""

    name = "fedadam"
    config_type = FedAdamConfig

    def server_step(self, held: Tensors, mean: Tensors, state: ServerState) -> tuple[Tensors, ServerState]:
        """One step, in float64. The moments start at 0 and at tau^2, without bias correction."""
        config, first, second, model = self.config, dict[str, Array](), dict[str, Array](), dict[str, Array]()
        for name, array in held.items():
            step = mean[name] - array.astype(np.float64)
            momentum = state["first"][name] if state else np.zeros(array.shape)
            first[name] = config.beta_1 * momentum + (1 - config.beta_1) * step
            second[name] = self.second(state["second"][name] if state else np.full(array.shape, config.tau**2), step**2)
            model[name] = array + config.server_rate * first[name] / (np.sqrt(second[name]) + config.tau)
        return {name: array.astype(np.float32) for name, array in model.items()}, {"first": first, "second": second}

    def second(self, moment: Array, square: Array) -> Array:
        """The second moment after a step whose square is `square`."""
        return self.config.beta_2 * moment + (1 - self.config.beta_2) * square
