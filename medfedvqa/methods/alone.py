"""What methods have in common whose sites train a model each, for some rounds, and test it at the end.

By itself nothing is shared; `averaging` adds a mean. A method is a model, a local loss (`row_loss`, `penalty`), or a
local round of its own (`local`).
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal, TypeVar

import torch
from pydantic import Field

from audits import Exchange, TaskSpec
from medfedvqa.data import Examples
from medfedvqa.errors import ConfigError
from medfedvqa.methods.base import (
    SCORED,
    Hub,
    Method,
    MethodConfig,
    Probe,
    Site,
    State,
    Tensors,
    counts,
    scored,
    tensors_of,
    trained_by_rounds,
    validated,
)
from medfedvqa.methods.learning import Learner, LearningConfig, Penalty, RowLoss, answer_losses
from medfedvqa.models import AnswerModel, BackboneShape, Depth, Values
from privacy import Cost, DPSettings, NoiseLevels


class AloneConfig(MethodConfig, frozen=True):
    """Options of local training."""

    rounds: int = Field(10, ge=1, description="rounds of local training")
    local_epochs: int = Field(2, ge=1, description="passes over the site's rows per round")
    local_unit: Literal["epochs", "batches"] = Field("epochs", description="what local_epochs counts")
    batch_rows: int = Field(32, ge=1, description="rows per batch, whole patients")
    optimizer: Literal["adam", "adamw", "sgd"] = Field("adamw", description="local optimiser, new in every round")
    learning_rate: float = Field(1e-3, gt=0, description="first learning rate")
    decay: float = Field(0.1, gt=0, le=1, description="factor on the learning rate")
    decay_every: int = Field(10, ge=1, description="rounds between decays")
    weight_decay: float = Field(1e-2, ge=0, description="decay of weights per step, times the learning rate")
    finish_epochs: int = Field(
        0,
        ge=0,
        description="passes that a site trains on by itself after its last release, without noise; 0 is none",
    )

    @property
    def learning(self) -> LearningConfig:
        """The site's local training."""
        return LearningConfig(**{name: getattr(self, name) for name in LearningConfig.__dataclass_fields__})


Config = TypeVar("Config", bound=AloneConfig)


class Alone(Method[Config]):
    """Local training of a model for the site's own answers, without any exchange."""

    separable: ClassVar[bool] = True
    """Whether the loss of a row depends on no other patient's rows, so that a patient's gradient can be clipped."""

    def __init__(self, config: Config, dp: DPSettings | None = None, secagg: bool = False) -> None:
        super().__init__(config, dp, secagg)
        if dp is not None and not self.separable:
            raise ConfigError(
                f"the loss of '{self.name}' compares rows of different patients, so no single patient's part in it can "
                "be bounded: it does not train under differential privacy"
            )

    @property
    def passes(self) -> int:
        """How many steps are taken where plain training takes one: under differential privacy each is paid for."""
        return 1

    @property
    def answers(self) -> tuple[str, ...] | None:
        """The model's answer space; None is each site's own."""
        return None

    def exchange(self, shape: BackboneShape) -> Exchange:
        """Nothing until the counts of test answers."""
        evaluate = TaskSpec("evaluate", counts(*SCORED), ())
        return Exchange(self.name, (TaskSpec("start", (), ()), TaskSpec("train", (), ()), evaluate))

    def tasks(self) -> Iterator[tuple[str, int]]:
        """The first round, the others, and the evaluation."""
        return trained_by_rounds(self.config.rounds)

    def cost(self, task: str) -> Cost:
        """Local steps; nothing else depends on data."""
        if self.dp is None or task == "evaluate":
            return Cost()
        return Cost(steps=self.passes * self.config.learning.steps(self.dp))

    def setup(self, site: Site) -> State:
        """A model of the site's own."""
        generator = torch.Generator().manual_seed(site.task_seed("setup", 0))
        return {"values": self.model(site).initial(generator, generator)}

    def start(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The first round."""
        return self.train(site, state, received, round)

    def train(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """A round, from what was received in the place of the site's own values of the same names."""
        learner = self.learner(site)
        start: Values = {**state["values"], **tensors_of(received, site.device)}
        state = self.local(learner, state, start, round, site.task_seed("train", round))
        state |= validated(state, self.right(learner, state["values"], site.data.validate))
        return state, self.reply(learner, state)

    def reply(self, learner: Learner, state: State) -> Tensors:
        """What the site sends after a round."""
        return {}

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """Test rows that the model answers right, and what the free baselines score."""
        tested = self.tested(site, state, tensors_of(received, site.device))
        return scored(state, site.data, self.right(self.learner(site), tested, site.data.test))

    def right(self, learner: Learner, values: Values, examples: Examples) -> torch.Tensor:
        """Whether a site with these values answers each row right, bool [rows]."""
        return learner.right(values, examples)

    def tested(self, site: Site, state: State, received: Values) -> Values:
        """The values that the site tests."""
        return dict(state["values"])

    def probe(self, site: Site, state: State, received: Tensors) -> Probe:
        """See `Method.probe`."""
        learner = self.learner(site)
        start: Values = {**state["values"], **tensors_of(received, site.device)}
        loss = self.row_loss(learner, state, start)

        def losses(values: Mapping[str, torch.Tensor], rows: Examples) -> torch.Tensor:
            return loss(dict(values), learner.rows(learner.encoded(rows), torch.arange(len(rows))))

        return Probe(start, losses)

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Rounds of training, then the evaluation."""
        for number in hub.rounds(self.config.rounds):
            hub.collect("start" if number == 1 else "train")
        return hub.collect("evaluate")

    def attention(self, site: Site, state: State, examples: Examples) -> torch.Tensor:
        """See `Method.attention`: that of the site's own last model."""
        # Attention is computed in the last block: what is kept of a picture must lie below it.
        learner = self.learner(site, {tower: max(1, depth) for tower, depth in self.depth(site).items()})
        rows = learner.rows(learner.encoded(examples), torch.arange(len(examples)))
        with torch.no_grad():
            return learner.model.attention(state["values"], rows.batch)

    @abstractmethod
    def model(self, site: Site) -> AnswerModel:
        """The model that a site trains."""

    def depth(self, site: Site) -> Depth:
        """How deep the models that see a site's rows reach into the backbone."""
        return self.model(site).depth

    @property
    def private(self) -> tuple[DPSettings, NoiseLevels] | None:
        """What makes a learner private, if the job is."""
        return None if self.dp is None else (self.dp, self.noise)

    def learner(self, site: Site, depth: Depth | None = None) -> Learner:
        """The site's trainer; `depth` if other than the method's own."""
        model, learning = self.model(site), self.config.learning
        return Learner(site, model, learning, self.answers, self.private, depth or self.depth(site))

    def local(self, learner: Learner, state: State, start: Values, round: int, seed: int) -> State:
        """A site's round: its new state, with the trained values under "values"."""
        loss, penalty = self.row_loss(learner, state, start), self.penalty(state, start)
        return {**state, "values": learner.train(start, loss, round, seed, penalty)}

    def row_loss(self, learner: Learner, state: State, start: Values) -> RowLoss:
        """The loss of each row; `start`: the values that the round starts from, `state`: what the site kept."""
        return answer_losses(learner.model)

    def penalty(self, state: State, start: Values) -> Penalty | None:
        """Terms of the loss that depend on no data."""
        return None
