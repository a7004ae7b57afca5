"""The base of methods whose sites each train a model for some rounds and test it at the end.

Nothing is shared here; `averaging` adds a mean. A method overrides the model, the local loss (`row_loss`, `penalty`) or
the whole local round (`local`).
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, TypeVar

import torch
from pydantic import Field, field_validator

from audits import Exchange, TaskSpec, Tensors
from medfedvqa.bounds import (
    MOST_ANSWERS,
    MOST_VIEWS,
    BatchRows,
    ExtraPasses,
    Factor,
    Passes,
    Rate,
    Rounds,
    Text,
    WeightDecay,
)
from medfedvqa.core.hub import Hub
from medfedvqa.core.kept_model import KEPT, Keeping, answering, has_stopped, recalled, remembered, unchanged
from medfedvqa.core.method import TESTED, Answering, Method, MethodConfig, Probe, State, tensors_of, trained_by_rounds
from medfedvqa.core.scores import FINISHED, SCORED, counts, scored, validated
from medfedvqa.data import Examples, ListName, bundled_list, public_list
from medfedvqa.errors import ConfigError
from medfedvqa.models import AnswerModel, BackboneShape, Depth, Values
from medfedvqa.training import Optimizer, Part, Penalty, RowLoss, Site, Trainer, TrainingConfig, answer_losses
from privacy import Cost, DPSettings, Secagg


class AloneConfig(MethodConfig, frozen=True):
    """Options of local training."""

    rounds: Rounds = Field(10, description="rounds of local training")
    local_epochs: Passes = Field(2, description="passes over the site's rows per round")
    local_unit: Literal["epochs", "batches"] = Field("epochs", description="what local_epochs counts")
    batch_rows: BatchRows = Field(32, description="rows per batch, whole patients")
    views: int = Field(
        1, ge=1, le=MOST_VIEWS, description="fixed augmented views of each picture to train on, itself included"
    )
    optimizer: Optimizer = Field("adamw", description="local optimiser, new in every round")
    learning_rate: Rate = Field(1e-3, description="first learning rate")
    decay: Factor = Field(0.1, description="factor on the learning rate")
    decay_every: Rounds = Field(10, description="rounds between decays")
    weight_decay: WeightDecay = Field(1e-2, description="decay of weights per step, times the learning rate")
    finish_epochs: ExtraPasses = Field(
        0, description="passes that a site trains on by itself after its last release, without noise; 0 is none"
    )
    keep: Literal["last", "best"] = Field(
        "last", description="the round whose model a site tests and keeps: the last, or its best on validation rows"
    )
    patience: Rounds | None = Field(
        None,
        description="rounds without a better validation accuracy after which a site that shares nothing trains no "
        "more; null: it trains in all rounds",
    )

    answers: Annotated[tuple[Text, ...], Field(max_length=MOST_ANSWERS)] | ListName | Literal["site"] | None = Field(
        None,
        description="the answer space: a list, 'closed' or 'public' for a bundled one, 'site' for the one in each "
        "site.yml; null: 'closed' for a shared head, else each site's own, if need be that of its rows",
    )

    @field_validator("answers")
    @classmethod
    def _are_distinct(cls, answers: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        return public_list(answers) if isinstance(answers, tuple) else answers

    @property
    def listed(self) -> tuple[str, ...] | None:
        """The job's list of answers, or the bundled one that it names; None if it names none."""
        if self.answers == "closed" or self.answers == "public":
            return bundled_list(self.answers)
        return self.answers if isinstance(self.answers, tuple) else None

    @property
    def training(self) -> TrainingConfig:
        """The options of the site's trainer."""
        return TrainingConfig(**{name: getattr(self, name) for name in TrainingConfig.__dataclass_fields__})


Config = TypeVar("Config", bound=AloneConfig)


class Alone(Method[Config]):
    """Local training of a model on the site's answers, without any exchange."""

    separable: ClassVar[bool] = True
    """Whether the loss of a row depends on no other patient's rows, so that a patient's gradient can be clipped."""

    def __init__(self, config: Config, dp: DPSettings | None = None, secagg: Secagg = False) -> None:
        super().__init__(config, dp, secagg)
        if dp is not None and not self.separable:
            raise ConfigError(
                f"the loss of '{self.name}' compares rows of different patients, so no single patient's part in it can "
                "be bounded: it does not train under differential privacy"
            )
        if dp is not None and self.answers is None and config.answers != "site":
            raise ConfigError(
                "under differential privacy the answer space is public, never made of a site's rows: give the option "
                "'answers' a list, or 'closed' or 'public', the bundled ones, or 'site' and each site.yml a list"
            )
        if dp is not None and (config.keep == "best" or config.patience is not None):
            raise ConfigError(
                "'keep' as 'best' and 'patience' look at validation rows without noise, which differential privacy "
                "would have to charge: leave both out"
            )
        if config.patience is not None and not self.silent:
            raise ConfigError(
                f"what a site of '{self.name}' sends would show when it stopped: 'patience' is for sites that send "
                "nothing before the evaluation"
            )

    @property
    def silent(self) -> bool:
        """Whether a site sends nothing before the evaluation, so that it may stop when it likes."""
        return True

    @property
    def passes(self) -> int:
        """The number of optimiser steps per batch. Under differential privacy each of them costs epsilon."""
        return 1

    @property
    def answers(self) -> tuple[str, ...] | None:
        """The model's answer space; None means each site's own list."""
        return self.config.listed

    def exchange(self, shape: BackboneShape) -> Exchange:
        """Nothing travels except the counts of test answers at the end."""
        evaluate = TaskSpec("evaluate", counts(*self.scores), ())
        return Exchange(self.name, (TaskSpec("start", (), ()), TaskSpec("train", (), ()), evaluate))

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of the counts that `evaluate` releases."""
        return (*SCORED, *FINISHED) if self.config.finish_epochs else SCORED

    def tasks(self) -> Iterator[tuple[str, int]]:
        """The first round, the others, and the evaluation."""
        return trained_by_rounds(self.config.rounds)

    def cost(self, task: str) -> Cost:
        """The local steps; nothing else depends on data."""
        if self.dp is None or task == "evaluate":
            return Cost()
        return Cost(steps=self.passes * self.config.training.private_steps(self.dp))

    def setup(self, site: Site) -> State:
        """Initial values of the site's model. Raises `ConfigError` if a private job lacks a public list of answers."""
        self.check_answers(site.data.public_answers)
        generator = torch.Generator().manual_seed(site.task_seed("setup", 0))
        return {"values": self.model(site).initial(generator, generator)}

    def handle(self, task: TaskSpec, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """See `Method.handle`. A site may remember its best round, test with it, and stop when none gets better."""
        if self.config.keep == "best":
            names = {spec.name for spec in self.exchange(site.backbone.shape).task("evaluate").down}
            state = remembered(self, site, state, received, names)
        if task.name == "evaluate":
            state, received = recalled(state, received)
            state, reply = super().handle(task, site, state, received, round)
            return {**state, TESTED: tensors_of(received)}, reply
        if has_stopped(state, self.config.patience):
            return unchanged(state), {}
        return super().handle(task, site, state, received, round)

    def trained_alone(self, site: Site, rounds: int, first: Values | None = None) -> State:
        """The state of a site after this many rounds without any message: of the last or the best round.

        It starts from the values of its own setup, with those in `first` instead.
        """
        state = self.begun(site, first)
        for number in range(1, rounds + 1):
            if has_stopped(state, self.config.patience):
                state = unchanged(state)
            else:
                state, _ = (self.start if number == 1 else self.train)(site, state, {}, number)
            if self.config.keep == "best":
                state = remembered(self, site, state, {}, ())
        return recalled(state, {})[0]

    def begun(self, site: Site, first: Values | None) -> State:
        """The state of a site's setup, with these values instead of its own."""
        state = self.setup(site)
        return {**state, "values": {**state["values"], **(first or {})}}

    def start(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The first round."""
        return self.train(site, state, received, round)

    def train(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """Trains one round. Before it, received values replace the site's values of the same names."""
        trainer = self.trainer(site)
        start: Values = {**state["values"], **tensors_of(received, site.device)}
        state = self.local(trainer, state, start, round, site.task_seed("train", round))
        state |= validated(state, self.right(trainer, self.validates(state, start), site.data.validate))
        state |= trainer.clipped(state)
        return state, self.reply(trainer, state)

    def validates(self, state: State, start: Values) -> Values:
        """The values to validate after a round: those that it ended with. `start`: those that it began with."""
        values: Values = state["values"]
        return values

    def reply(self, trainer: Trainer, state: State) -> Tensors:
        """The site's upload after a round."""
        return {}

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """Counts test rows that the model and the free baselines answer right, then trains the model to keep, if any.

        Training here happens after the last release, without noise, and its model never leaves the site.
        """
        right = self.answered(site, state, received, site.data.test)
        if not self.config.finish_epochs:
            return scored(state, site.data, right)
        keeping = Keeping(self, site, state, received, round)
        return scored({**state, KEPT: keeping.kept}, site.data, right, **keeping.counted)

    def answered(self, site: Site, state: State, received: Tensors, examples: Examples) -> torch.Tensor:
        """Whether a site with this state and message answers each row right, bool [rows]."""
        tested = self.tested(site, state, tensors_of(received, site.device))
        return self.right(self.trainer(site), tested, examples)

    def begun_anew(self, state: State, values: Values) -> State:
        """A state to continue training from, with these values and new optimisers.

        After noise, Adam's second moments would be those of the noise, and its steps too short.
        """
        return {**state, "values": values, "memory": {}}

    def own_part(self, trainer: Trainer, state: State, group: str, values: Values, round: int) -> Part:
        """A copy of values that stay at the site, with the optimiser that the state remembers for this group."""
        return trainer.part(values, round, state.get("memory", {}).get(group))

    def memory(self, own: Mapping[str, Part]) -> State:
        """The part of a site's state that holds the optimisers of its own values, by group."""
        return {"memory": {group: part.optimizer.state_dict() for group, part in own.items()}}

    def used(self, received: Tensors) -> Tensors:
        """The part of the last message that the finished model continues to use."""
        return {}

    def without_others(self, local_epochs: int | None = None) -> "Alone[Config]":
        """The same method for one site, without noise. `local_epochs` replaces the method's own number."""
        changes = {} if local_epochs is None else {**self.in_epochs, "local_epochs": local_epochs}
        return type(self)(self.config.model_copy(update=changes))

    @property
    def in_epochs(self) -> Mapping[str, str]:
        """The option values that make a site train in passes over its rows."""
        return {"local_unit": "epochs"}

    def right(self, trainer: Trainer, values: Values, examples: Examples) -> torch.Tensor:
        """Whether a site with these values answers each row right, bool [rows]."""
        return trainer.right(values, examples)

    def tested(self, site: Site, state: State, received: Values) -> Values:
        """The values that the site tests."""
        return dict(state["values"])

    def probe(self, site: Site, state: State, received: Tensors) -> Probe:
        """See `Method.probe`."""
        trainer = self.trainer(site)
        start: Values = {**state["values"], **tensors_of(received, site.device)}
        loss = self.row_loss(trainer, state, start)

        def losses(values: Mapping[str, torch.Tensor], rows: Examples) -> torch.Tensor:
            return loss(dict(values), trainer.all_rows(rows))

        return Probe(start, losses)

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Rounds of training, then the evaluation."""
        for number in hub.rounds(self.config.rounds):
            hub.collect("start" if number == 1 else "train")
        return hub.collect("evaluate")

    def attention(self, site: Site, state: State, examples: Examples) -> torch.Tensor:
        """See `Method.attention`: the attention of the site's last model."""
        return Answering(self.model(site), state["values"], self._space(site)).attention(site, examples)

    def answering(self, site: Site, state: State) -> Answering:
        """See `Method.answering`: the kept model if the site finished one, else the model that it tested last."""
        if KEPT in state:
            kept = state[KEPT]
            return answering(self.without_others(), site, [kept, *kept.get("together", ())])
        if TESTED not in state:
            raise ConfigError(
                "the site keeps no tested model of this job: the job ended before its evaluation, or an earlier "
                "version ran it"
            )
        return self.answering_with(site, state, state[TESTED])

    def answering_with(self, site: Site, state: State, received: Values) -> Answering:
        """The model that a site with this state and message answers with, the same that `answered` tests."""
        received = {name: value.to(site.device) for name, value in received.items()}
        return Answering(self.model(site), self.tested(site, state, received), self._space(site))

    @abstractmethod
    def model(self, site: Site) -> AnswerModel:
        """The model that a site trains."""

    def depth(self, site: Site) -> Depth:
        """How deep the models that see a site's rows reach into the backbone."""
        return self.model(site).depth

    @property
    def public_answers(self) -> tuple[str, ...] | None:
        """See `Method.public_answers`."""
        return self.answers

    def check_answers(self, declared: bool) -> None:
        """Raises `ConfigError` if a private job would derive its answer space from a site's rows."""
        if self.dp is not None and self.answers is None and not declared:
            raise ConfigError("the job takes each site's own list of answers: give 'data' in site.yml its 'answers'")

    def answer_count(self, site: Site) -> int:
        """The number of answers that the model chooses from."""
        return len(self._space(site))

    def _space(self, site: Site) -> tuple[str, ...]:
        """The answers that the model chooses from."""
        return self.answers or site.data.answers

    def trainer(self, site: Site, depth: Depth | None = None) -> Trainer:
        """The site's trainer. `depth` replaces the method's own depth."""
        depth = depth or self.depth(site)
        return Trainer(site, self.model(site), self.config.training, self._space(site), self.privacy, depth)

    def local(self, trainer: Trainer, state: State, start: Values, round: int, seed: int) -> State:
        """One local round: the new state, with the trained values under "values"."""
        loss, penalty = self.row_loss(trainer, state, start), self.penalty(state, start)
        return {**state, "values": trainer.train(start, loss, round, seed, penalty).trained()}

    def row_loss(self, trainer: Trainer, state: State, start: Values) -> RowLoss:
        """The loss of each row. `start`: the values at the start of the round; `state`: the site's state before it."""
        return answer_losses(trainer.model)

    def penalty(self, state: State, start: Values) -> Penalty | None:
        """The terms of the loss that depend on no data."""
        return None
