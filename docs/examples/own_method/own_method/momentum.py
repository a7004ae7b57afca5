"""Federated averaging whose server keeps a part of its last step."""

import numpy as np
from pydantic import Field

from medfedvqa.core import Tensors
from medfedvqa.core.averaging import Averaging, AveragingConfig
from medfedvqa.core.stepwise import ServerState


class OwnConfig(AveragingConfig, frozen=True):
    """Options; every number has bounds, so that no job can ask a site for an absurd amount of anything."""

    momentum: float = Field(0.5, ge=0, lt=1, description="share of the server's last step that is added to the next")


class OwnMethod(Averaging[OwnConfig]):
    """FedAvg with momentum at the server."""

    name = "own_method"
    config_type = OwnConfig

    def server_step(self, held: Tensors, mean: Tensors, state: ServerState) -> tuple[Tensors, ServerState]:
        """The mean, and a share of the last step."""
        last = state.get("step", {name: np.zeros_like(array) for name, array in held.items()})
        step = {name: mean[name] - held[name] + np.float32(self.config.momentum) * last[name] for name in held}
        return {name: held[name] + step[name] for name in held}, {"step": step}
