"""MR-MTL: mean-regularised multi-task learning (Z. Liu et al., NeurIPS 2022), the baseline of private silos.

Each site keeps a model w of its own, which it trains with a pull towards the mean m of all sites' last models,
lambda / 2 ||w - m||^2, and tests. lambda interpolates: at 0 sites train alone, and a large one is FedAvg. Under
differential privacy every step of w is noisy, so that what a site tests is as private as what it sends.

| paper | here | why |
|---|---|---|
| the pull is part of each step's gradient, beside the noisy sum | the same | it sees no data |
| lambda is tuned by data set and epsilon | an option | the search itself would cost epsilon |
"""

from typing import Literal

from pydantic import Field

from medfedvqa.bounds import Weight
from medfedvqa.core.averaging import Averaging
from medfedvqa.core.method import State
from medfedvqa.core.network_options import NetworkOptions
from medfedvqa.core.registry import register
from medfedvqa.methods.fedprox import proximal
from medfedvqa.models import Values
from medfedvqa.training import Penalty, Trainer


class MrMtlConfig(NetworkOptions, frozen=True):
    """Options of the method `mr_mtl`."""

    pull: Weight = Field(0.1, description="weight of the pull towards the mean (lambda); 0: sites train alone")
    evaluated: Literal["shared", "personal"] = Field(
        "personal", description="test the site's own model, or the last mean"
    )


@register
class MrMtl(Averaging[MrMtlConfig]):
    """A model for each site, pulled towards the mean of all sites' models."""

    name = "mr_mtl"
    config_type = MrMtlConfig
    takes_steps = False

    def local(self, trainer: Trainer, state: State, start: Values, round: int, seed: int) -> State:
        """A round that continues the site's own model; `start` is the mean, or the common model in the first round."""
        personal: Values = state["values"]
        loss, pull = self.row_loss(trainer, state, personal), self.penalty(state, start)
        return {**state, "values": trainer.train(personal, loss, round, seed, pull).trained()}

    def penalty(self, state: State, start: Values) -> Penalty | None:
        """The pull towards the mean."""
        return proximal(self.config.pull, start)
