"""FedDC: local drift, decoupled and corrected (L. Gao et al., CVPR 2022)."""

from dataclasses import replace

import torch
from pydantic import Field

from audits import Exchange, Kind, TaskSpec, Tensors
from medfedvqa.bounds import Weight
from medfedvqa.core.averaging import Averaging, AveragingConfig
from medfedvqa.core.method import State
from medfedvqa.core.registry import register
from medfedvqa.models import BackboneShape, Values
from medfedvqa.training import Penalty, Site, Trainer


class FedDCConfig(AveragingConfig, frozen=True):
    """Options of the method `feddc`."""

    alpha: Weight = Field(0.01, description="weight of the drift's penalty; 0 keeps no drift, which is FedAvg")


@register
class FedDC(Averaging[FedDCConfig]):
    """FedAvg of w_i + h_i: each site keeps its drift h_i, the sum of its changes in all rounds, and trains
    against it.
    """

    name = "feddc"
    config_type = FedDCConfig
    takes_steps = False

    def exchange(self, shape: BackboneShape) -> Exchange:
        """The exchange of FedAvg: a site adds its drift to the trained values, and never sends the two apart."""
        exchange = super().exchange(shape)
        return replace(exchange, tasks=tuple(map(self._drifted, exchange.tasks)))

    def setup(self, site: Site) -> State:
        """The state of `Averaging`, with a drift of zero."""
        state = super().setup(site)
        drifting = self.shared(site.backbone.shape) if self.config.alpha else ()
        return {**state, "drift": {name: torch.zeros_like(state["values"][name]) for name in drifting}}

    def train(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The round of FedAvg, with the drift added to the reply."""
        state, reply = super().train(site, state, received, round)
        drifted = {name: reply[name] + drift.numpy(force=True) for name, drift in state["drift"].items()}
        return state, reply | drifted

    def local(self, trainer: Trainer, state: State, start: Values, round: int, seed: int) -> State:
        """A round, whose change of the values is added to the drift."""
        drift, state = state["drift"], super().local(trainer, state, start, round, seed)
        return {**state, "drift": {name: drift[name] + state["values"][name] - start[name] for name in drift}}

    def penalty(self, state: State, start: Values) -> Penalty | None:
        """`alpha/2 |w_i + h_i - w|^2`, which pulls against the earlier drift."""
        alpha, drift = self.config.alpha, state["drift"]
        if not drift:
            return None

        def correction(values: Values) -> torch.Tensor:
            square: torch.Tensor = sum((values[name] + drift[name] - start[name]).square().sum() for name in drift)
            return alpha / 2 * square

        return correction

    def _drifted(self, task: TaskSpec) -> TaskSpec:
        if not self.config.alpha:
            return task
        up = (replace(s, meaning=f"{s.meaning} plus its drift") if s.kind is Kind.PARAMETERS else s for s in task.up)
        return replace(task, up=tuple(up))
