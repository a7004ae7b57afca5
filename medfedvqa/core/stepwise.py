"""One step per exchange: a site's upload shows one gradient, and the server's optimiser steps along the sites' mean.

A mean of gradients weighted by rows is the gradient of one model on the rows of all sites, up to how batches are drawn.
So this is training on all rows together. The server needs only the sum over sites, so it runs on shares unchanged.

A site steps from the values that it received by gradient descent at rate 1, and sends the result: the difference is
its gradient. In the first exchange it has received nothing: it steps from the initial values that all sites share, at
the job's learning rate, and the mean becomes the server's model. With k batches an exchange, each has 1/k of the rate.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field, model_validator

from audits import Tensors
from medfedvqa.core.kept_model import recalled, remembered
from medfedvqa.core.local_training import Alone, AloneConfig
from medfedvqa.core.method import State, tensors_of
from medfedvqa.errors import ConfigError
from medfedvqa.models import BackboneShape, Shapes, Values
from medfedvqa.training import Part, Penalty, RowLoss, Site, Trainer, TrainingConfig, copied
from privacy import DPSettings, Secagg

ServerState = dict[str, Any]
"""The server's state between rounds, such as a momentum."""

DEFAULTS: Mapping[str, Any] = {
    **{"rounds": 200, "local_epochs": 1, "local_unit": "batches", "batch_rows": 64},
    **{"optimizer": "adam", "learning_rate": 0.003, "decay": 0.3, "decay_every": 67, "weight_decay": 0.0},
}
"""Defaults of a stepwise job, in place of those of a job in rounds. They were chosen on SLAKE's validation rows, for a
head on frozen features."""

STARTED, NOISY, RATE = "started", "noisy", "rate"
"""In a site's state, where noise is shared: the values before the step, the noisy sums in whole grid steps, and the
step's learning rate."""

EPSILON = 1e-6
"""Adam's term against division by zero. A value that no batch uses has a gradient of rounding errors alone, up to 1e-8
in float32 and on shares; torch's default of 1e-8 would turn them into whole steps."""


class StepwiseConfig(AloneConfig, frozen=True):
    """Options of methods whose sites may take one step between two exchanges."""

    schedule: Literal["rounds", "stepwise"] = Field(
        "rounds",
        description="what a site does between two exchanges: a round of training of its own, or one step, after which "
        "the server takes a step of the job's optimiser for all; 'stepwise' has other defaults of steps and rates",
    )

    @model_validator(mode="before")
    @classmethod
    def _has_the_schedules_defaults(cls, options: Any) -> Any:
        is_stepwise = isinstance(options, dict) and options.get("schedule") == "stepwise"
        return {**DEFAULTS, **options} if is_stepwise else options

    @property
    def is_stepwise(self) -> bool:
        """Whether sites take one step per exchange."""
        return self.schedule == "stepwise"


Config = TypeVar("Config", bound=StepwiseConfig)


class Stepwise(Alone[Config]):
    """Local training in rounds, or step by step, of a model that sites share in part or as a whole."""

    takes_steps: ClassVar[bool] = True
    """Whether the method defines a single step of a stepwise job."""

    def __init__(self, config: Config, dp: DPSettings | None = None, secagg: Secagg = False) -> None:
        super().__init__(config, dp, secagg)
        if not config.is_stepwise:
            return
        if not self.takes_steps or self._has_a_server_step:
            raise ConfigError(f"'{self.name}' changes what happens in a round: with 'schedule' stepwise use 'fedavg'")
        if not self.shares:
            raise ConfigError("a stepwise job shares steps, but with these options sites share nothing: use 'rounds'")
        if config.local_unit != "batches":
            raise ConfigError("'schedule' stepwise counts batches: leave out 'local_unit', or set it to 'batches'")

    @property
    @abstractmethod
    def shares(self) -> bool:
        """Whether the sites share any part of the model."""

    @abstractmethod
    def shared(self, shape: BackboneShape) -> Shapes:
        """The shapes of the averaged tensors, by name."""

    @property
    def repeats_uploads(self) -> bool:
        """See `Method.repeats_uploads`: neighbouring steps have nearly the same gradient, at nearly the same model."""
        return self.config.is_stepwise

    def server_step(self, held: Tensors, mean: Tensors, state: ServerState) -> tuple[Tensors, ServerState]:
        """The model that the server sends after a round, and its new state: the mean, or a step of a stepwise job.

        `held`: the model that it sent before the round; `state`: the state that this function returned last, empty at
        first. The server has no model before the first round, so it sends the first mean unchanged. The step sees
        only means, so it costs no privacy. A restarted server computes all steps again and must get the same: draw
        random values from `hub.seed`.
        """
        if not self.config.is_stepwise:
            return mean, state
        return optimised(self.config.training, held, mean, state)

    @property
    def steps_at_server(self) -> bool:
        """Whether the server sends something other than the mean."""
        return self.config.is_stepwise or self._has_a_server_step

    @property
    def _has_a_server_step(self) -> bool:
        return type(self).server_step is not Stepwise.server_step

    def validates(self, state: State, start: Values) -> Values:
        """See `Alone.validates`. In a stepwise job they are the values that the site received."""
        return start if self.config.is_stepwise else super().validates(state, start)

    def local(self, trainer: Trainer, state: State, start: Values, round: int, seed: int) -> State:
        """See `Alone.local`."""
        loss, penalty = self.row_loss(trainer, state, start), self.penalty(state, start)
        return self.stepped(trainer, state, start, loss, round, seed, penalty)

    def stepped(
        self,
        trainer: Trainer,
        state: State,
        start: Values,
        loss: RowLoss,
        round: int,
        seed: int,
        penalty: Penalty | None = None,
    ) -> State:
        """The state after all steps between two exchanges."""
        if not self.config.is_stepwise:
            return {**state, "values": trainer.train(start, loss, round, seed, penalty).trained()}
        names = self.shared(trainer.site.backbone.shape)
        shared = self.shared_part(trainer, {name: value for name, value in start.items() if name in names}, round)
        rest = {name: value for name, value in start.items() if name not in names}
        own = {"own": self.own_part(trainer, state, "own", rest, round)} if rest else {}
        noisy: Values = {}
        for (draw,) in trainer.draws(seed):
            noisy = trainer.step([shared, *own.values()], loss, draw, penalty)
        values = {name: value for part in (shared, *own.values()) for name, value in part.trained().items()}
        shares_noise = self.dp is not None and self.dp.is_shared
        sums = {STARTED: dict(start), NOISY: noisy, RATE: self.rate(round)} if shares_noise else {}
        return {**state, "values": {name: values[name] for name in start}, **self.memory(own), **sums}

    def shared_part(self, trainer: Trainer, values: Values, round: int) -> Part:
        """A copy of shared values, to train until the next exchange: in a stepwise job by plain gradient descent."""
        if not self.config.is_stepwise:
            return trainer.part(values, round)
        values = copied(values)
        return Part(values, torch.optim.SGD(values.values(), self.rate(round)))

    def rate(self, round: int) -> float:
        """The learning rate of a site's steps in this round of a stepwise job."""
        return (self.config.learning_rate if round == 1 else 1.0) / self.config.local_epochs

    def memory(self, own: Mapping[str, Part]) -> State:
        """See `Alone.memory`. Only a stepwise job has any: elsewhere optimisers are new in every round."""
        return super().memory(own) if self.config.is_stepwise else {}

    def trained_alone(self, site: Site, rounds: int, first: Values | None = None) -> State:
        """See `Alone.trained_alone`. In a stepwise job the site takes the server's steps, too."""
        if not self.config.is_stepwise:
            return super().trained_alone(site, rounds, first)
        state, held, memory = self.begun(site, first), dict[str, Any](), ServerState()
        names = self.shared(site.backbone.shape)
        for number in range(1, rounds + 1):
            state, sent = (self.train if held else self.start)(site, state, held, number)
            mean = {name: sent[name] for name in names}
            held, memory = self.server_step(held, mean, memory) if held else (mean, memory)
            if self.config.keep == "best":
                state = remembered(self, site, state, held, names)
        state, held = recalled(state, held)
        return {**state, "values": {**state["values"], **tensors_of(held, site.device)}}

    @property
    def in_epochs(self) -> Mapping[str, str]:
        """See `Alone.in_epochs`."""
        return {**super().in_epochs, "schedule": "rounds"}


def optimised(config: TrainingConfig, held: Tensors, mean: Tensors, state: ServerState) -> tuple[Tensors, ServerState]:
    """The model after one step of an optimiser along held - mean, and the state for the next one.

    `held`: the model that the server sent; `mean`: the mean of the sites' uploads. Both are float32, by name.
    """
    number = state.get("steps", 0) + 1
    values = {name: torch.from_numpy(np.array(array)) for name, array in held.items()}
    for name, value in values.items():
        value.grad = torch.from_numpy(held[name] - mean[name].astype(held[name].dtype))
    optimizer = config.make(values.values(), number, state.get("optimizer"))
    for group in optimizer.param_groups:
        if "eps" in group:
            group["eps"] = EPSILON
    optimizer.step()
    state = {"steps": number, "optimizer": optimizer.state_dict()}
    return {name: value.numpy() for name, value in values.items()}, state
