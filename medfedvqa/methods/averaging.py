"""What methods have in common whose sites train a model and whose server averages what they share.

A method of this family is a local loss (`row_loss`, `penalty`), or a local round of its own (`local`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field

from audits import Exchange, Kind, TaskSpec, TensorSpec
from medfedvqa.data import CLOSED_ANSWERS
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.baselines import majority_correct, question_prior_correct
from medfedvqa.methods.base import Hub, Method, MethodConfig, Site, State, Tensors, counts
from medfedvqa.methods.learning import Learner, LearningConfig, Penalty, RowLoss, answer_losses
from medfedvqa.models import HEAD, BackboneShape, HeadConfig, Shapes, TunedModel, TuningConfig, Values
from medfedvqa.models.tuning import Kind as TuningKind
from privacy import Cost, DPSettings

ROWS = "train_rows"
"""The weight of a site in a mean by rows."""


class TunedConfig(MethodConfig, frozen=True):
    """Options of methods that tune a backbone."""

    tuning: TuningKind = Field("adapter", description="what of the backbone is trained")
    blocks: int | None = Field(None, ge=1, description="how many of each tower's last blocks are tuned; null is all")
    rank: int = Field(16, ge=1, description="rank of low-rank updates")
    reduction: int = Field(16, ge=1, description="a token's width over that of an adapter's bottleneck")
    length: int = Field(4, ge=2, description="tokens of a prompt per block, half keys, half values")

    @property
    def tuned(self) -> TuningConfig:
        """What is tuned."""
        return TuningConfig(self.tuning, self.blocks, self.rank, self.reduction, self.length)


class AveragingConfig(TunedConfig, frozen=True):
    """Options that all of these methods have."""

    rounds: int = Field(10, ge=1, description="rounds of local training and averaging")
    local_epochs: int = Field(2, ge=1, description="passes over the site's rows per round")
    local_unit: Literal["epochs", "batches"] = Field("epochs", description="what local_epochs counts")
    batch_rows: int = Field(32, ge=1, description="rows per batch, whole patients")
    optimizer: Literal["adam", "adamw", "sgd"] = Field("adamw", description="local optimiser, new in every round")
    learning_rate: float = Field(1e-3, gt=0, description="first learning rate")
    decay: float = Field(0.1, gt=0, le=1, description="factor on the learning rate")
    decay_every: int = Field(10, ge=1, description="rounds between decays")
    weight_decay: float = Field(1e-2, ge=0, description="decay of weights per step, times the learning rate")
    hidden: int = Field(512, ge=1, description="width of the answer head's hidden layer")
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout in the answer head")
    head: Literal["shared", "local"] = Field("shared", description="whether the answer head is averaged or stays")
    answers: tuple[str, ...] = Field(CLOSED_ANSWERS, description="answers of a shared head, folded and public")
    weighting: Literal["rows", "uniform"] = Field("rows", description="the weight of a site in the mean")
    evaluated: Literal["shared", "personal"] = Field(
        "shared", description="test the last mean, or the site's own model before it was averaged"
    )

    @property
    def learning(self) -> LearningConfig:
        """The site's local training."""
        return LearningConfig(**{name: getattr(self, name) for name in LearningConfig.__dataclass_fields__})

    def head_of(self, answers: int) -> HeadConfig:
        """A head for so many answers."""
        return HeadConfig(answers, self.hidden, self.dropout)


Config = TypeVar("Config", bound=AveragingConfig)


class Averaging(Method[Config]):
    """Local training, then a mean of what is shared; by itself FedAvg (B. McMahan et al., 2017)."""

    passes = 1
    """How many times a step looks at a patient's data for something that is trained: each is paid for."""

    def __init__(self, config: Config, dp: DPSettings | None = None, secagg: bool = False) -> None:
        super().__init__(config, dp, secagg)
        if dp is not None and config.weighting == "rows":
            raise ConfigError("the number of rows is not released under differential privacy: use weighting 'uniform'")

    def shared(self, shape: BackboneShape) -> Shapes:
        """What is averaged, by name."""
        head = self.config.head_of(len(self.config.answers)).shapes(shape.width) if self._common else {}
        return self.config.tuned.shapes(shape) | head

    def exchange(self, shape: BackboneShape) -> Exchange:
        """Up: what the site trained of the shared part; down: its mean; at the end: counts of test answers."""
        up = tuple(_parameters(name, size, "the site's") for name, size in self.shared(shape).items())
        down = tuple(_parameters(name, size, "the mean of all sites'") for name, size in self.shared(shape).items())
        if up and self.config.weighting == "rows":
            up = (*up, TensorSpec(ROWS, (), "int64", Kind.STATISTIC, "number of training rows"))
        scored = counts("rows", "train_rows", "correct", "majority_correct", "prior_correct")
        return Exchange(
            self.name,
            (TaskSpec("start", up, ()), TaskSpec("train", up, down), TaskSpec("evaluate", scored, down)),
        )

    def tasks(self) -> Iterator[tuple[str, int]]:
        """The first round, the others, and the evaluation."""
        yield "start", 1
        yield from (("train", number) for number in range(2, self.config.rounds + 1))
        yield "evaluate", self.config.rounds

    def cost(self, task: str) -> Cost:
        """Local steps; nothing else depends on data."""
        if self.dp is None or task == "evaluate":
            return Cost()
        return Cost(steps=self.passes * self.config.learning.steps(self.dp))

    def setup(self, site: Site) -> State:
        """What is shared begins alike at all sites, whatever their data; a head that stays is the site's own."""
        model = self.model(site)
        own = site.seed if self._common else site.task_seed("setup", 0)
        values = model.initial(torch.Generator().manual_seed(site.seed), torch.Generator().manual_seed(own))
        return {"values": values}

    def start(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The first round, from values that all sites have."""
        return self.train(site, state, received, round)

    def train(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """A round from the mean of the last one."""
        learner = self.learner(site)
        start: Values = {**state["values"], **_values(received, site.device)}
        state = self.local(learner, state, start, round, site.task_seed("train", round))
        shared = self.shared(site.backbone.shape)
        reply = {name: state["values"][name].numpy(force=True) for name in shared}
        if shared and self.config.weighting == "rows":
            reply[ROWS] = np.array(len(learner.train_rows), np.int64)
        return state, reply

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """Test rows that the model answers right, and what the free baselines score."""
        learner, data = self.learner(site), site.data
        values = dict(state["values"])
        if self.config.evaluated == "shared":
            values |= _values(received, site.device)
        reply = {
            "rows": len(data.test),
            "train_rows": len(data.train),
            "correct": int(learner.right(values, data.test).sum()),
            "majority_correct": majority_correct(data.train.answers, data.test.answers),
            "prior_correct": question_prior_correct(data.train, data.test),
        }
        return state, {name: np.array(value, np.int64) for name, value in reply.items()}

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Rounds of training and averaging, then the evaluation."""
        shared: Tensors = {}
        weight = ROWS if self.config.weighting == "rows" else None
        for number in hub.rounds(self.config.rounds):
            task = "start" if number == 1 else "train"
            shared = hub.mean(task, _to_all(hub, shared), weight)
        return hub.collect("evaluate", _to_all(hub, shared))

    def model(self, site: Site) -> TunedModel:
        """The model that a site trains."""
        answers = len(self.config.answers if self._common else site.data.answers)
        return TunedModel(site.backbone, self.config.tuned, self.config.head_of(answers))

    def learner(self, site: Site) -> Learner:
        """The site's trainer, private if the job is."""
        answers = self.config.answers if self._common else None
        private = None if self.dp is None else (self.dp, self.noise)
        return Learner(site, self.model(site), self.config.learning, answers, private)

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

    @property
    def _common(self) -> bool:
        return self.config.head == "shared"


def _parameters(name: str, shape: tuple[int, ...], whose: str) -> TensorSpec:
    part = "answer head" if name.startswith(HEAD) else "tuned part"
    return TensorSpec(name, shape, "float32", Kind.PARAMETERS, f"{whose} {part}")


def _values(tensors: Mapping[str, Any], device: str) -> Values:
    return {name: torch.from_numpy(np.array(array)).to(device) for name, array in tensors.items()}


def _to_all(hub: Hub, tensors: Tensors) -> dict[str, Tensors] | None:
    return {site: tensors for site in hub.sites} if tensors else None
