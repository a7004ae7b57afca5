"""The interface of a federated method: a declared exchange, handlers on the sites, and a loop on the server."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from pydantic import BaseModel

from audits import Exchange, Kind, Protection, SitePolicy, TaskSpec, Tensors, TensorSpec
from audits.exchange import clip_to_norm
from medfedvqa.core.hub import Hub
from medfedvqa.core.on_shares import DRAWING, OnShares
from medfedvqa.data import Examples, Part, SiteData
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.models import AnswerModel, BackboneShape, Depth, Values
from medfedvqa.training import Privacy, Rows, Site, SiteRows
from privacy import Cost, DPSettings, Gathering, NoiseLevels, PlannedTask, Secagg
from privacy.secagg import MINIMUM

TESTED = "tested"
"""The key in the state after `evaluate` of the message that the site tested with, as tensors by name. It never leaves:
the site rebuilds the tested model from it."""


@dataclass(frozen=True)
class Answering:
    """A trained model and the answers that it chooses from."""

    model: AnswerModel
    values: Values
    answers: tuple[str, ...]
    beside: tuple["Answering", ...] = ()
    """Other models with the same answers, which answer together with this one."""

    @torch.no_grad()
    def probabilities(self, site: Site, examples: Examples) -> torch.Tensor:
        """The probability of each answer to each row, float [rows, answers]. The rows' recorded answers are not used.

        An ensemble averages the models' softmax outputs. Nothing calibrates them.
        """
        rows = self._rows(site, examples, self.model.depth)
        own = self.model.logits(self.values, rows.batch).softmax(dim=1).cpu()
        others = [each.probabilities(site, examples) for each in self.beside]
        return torch.stack([own, *others]).mean(dim=0) if others else own

    @torch.no_grad()
    def attention(self, site: Site, examples: Examples) -> torch.Tensor:
        """The attention to each part of each row's picture, [rows, parts]; see `AnswerModel.attention`."""
        # Attention is computed in the last block, so the cache must end below it.
        depth = {tower: max(1, depth) for tower, depth in self.model.depth.items()}
        return self.model.attention(self.values, self._rows(site, examples, depth).batch)

    def _rows(self, site: Site, examples: Examples, depth: Depth) -> Rows:
        """All rows of `examples`, without augmentation."""
        rows = SiteRows(site, self.model, depth, 1, self.answers)
        return rows.rows(rows.encoded(examples), torch.arange(len(examples)))


def together(models: Sequence[Answering]) -> Answering:
    """Joins models with the same answers into an ensemble, whose `attention` is the first model's."""
    first, *rest = models
    return replace(first, beside=tuple(rest)) if rest else first


@dataclass(frozen=True)
class Probe:
    """One round of a site's training, as an auditor sees it."""

    values: Mapping[str, torch.Tensor]
    """The trained values at the start of the round, under the names of `Method.trained`."""
    losses: Callable[[Mapping[str, torch.Tensor], Examples], torch.Tensor]
    """The part of each row's loss that depends on data, [rows], as a differentiable function of such values."""


State = dict[str, Any]
"""A site's state between tasks: tensors and plain values, nested in dicts."""

Handler = Callable[[Site, State, Tensors, int], tuple[State, Tensors]]
"""Maps a site, its state, the received message and the round to the new state and the reply."""

EVALUATE = "evaluate"
"""The task that ends a job. The server computes nothing from its uploads, so that a site may leave them out."""

EPSILON = TensorSpec("epsilon", (2,), "float64", Kind.PUBLIC, "the job's epsilon before and after this message")
"""Travels with every message that costs epsilon. It follows from the job's settings alone."""


PARTS_BEHIND: Mapping[str, Part] = {
    **dict.fromkeys(("rows", "correct", "majority_correct", "prior_correct", "first_five"), "test"),
    **dict.fromkeys(("alone_correct", "alone_equal_correct", "finished_correct", "ensemble_correct"), "test"),
    "train_rows": "train",
    "accuracy": "validate",
    "kept_model": "validate",
}
"""The part of a site's rows that each figure in an upload is about."""


def withheld(task: str) -> str:
    """The name of a site's answer to `task` if the `min_count` of its policy keeps the figures at the site."""
    return f"{task}/withheld"


class MethodConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The base of every method's options: immutable, strict, bounded, and stable through JSON."""


Config = TypeVar("Config", bound=MethodConfig)


class Method(ABC, Generic[Config]):
    """One federated method. The handler of a task `x` is the method `x(site, state, received, round)`."""

    name: ClassVar[str]
    config_type: ClassVar[type[MethodConfig]]
    parts_behind: ClassVar[Mapping[str, Part]] = PARTS_BEHIND
    """See `PARTS_BEHIND`. A figure without an entry counts as being about the part with the fewest patients."""
    listed: ClassVar[bool] = True
    """Whether users name the method to make a job; jobs of unlisted methods have commands of their own."""
    trains: ClassVar[bool] = True
    """Whether sites train a model, which a test at the end scores."""
    needs_rows: ClassVar[bool] = True
    """Whether a job without differential privacy leaves out a site that has no rows to train on."""
    gathering: Gathering = Gathering()
    """How the server averages uploads, and the limit on their norm. `create` sets it."""

    def __init__(self, config: Config, dp: DPSettings | None = None, secagg: Secagg = False) -> None:
        """`dp`: train under differential privacy; `secagg`: whether, and how, to aggregate on shares.

        Raises `ConfigError` if this method with this configuration does not support them.
        """
        self.config, self.dp, self.secagg = config, dp, secagg
        if dp is not None and dp.is_shared and not getattr(config, "is_stepwise", False):
            raise ConfigError(f"'{self.name}' does not share noise with these options: set 'schedule' to 'stepwise'")
        if dp is not None and self._job_cost == Cost():
            raise ConfigError(f"the method '{self.name}' does not train under differential privacy")
        if secagg and not self.on_shares:
            raise ConfigError(
                f"with these options the method '{self.name}' needs every site's own upload at the server, "
                "or shares nothing: it does not run with secure aggregation"
            )

    @property
    def least_sites(self) -> int:
        """The fewest sites that this method needs, as configured: with shared noise, its sharers plus the colluders."""
        sharers = self.dp.sharers + self.dp.colluders if self.dp is not None and self.dp.is_shared else 1
        return max(MINIMUM, sharers) if self.secagg else 1

    @property
    def on_shares(self) -> Mapping[str, OnShares]:
        """The tasks whose uploads are aggregated on shares, and how. It is empty if the method needs single uploads.

        Raises `ConfigError` if an option stands in the way.
        """
        return {}

    @property
    def aggregated(self) -> Mapping[str, OnShares]:
        """`on_shares` as this job computes it; empty for a job that aggregates in clear."""
        return {task: how.by(self.secagg) for task, how in self.on_shares.items()} if self.secagg else {}

    @property
    def in_clear(self) -> Collection[str]:
        """The tasks whose uploads the server must see, even where other tasks are aggregated on shares."""
        return ()

    @property
    def code(self) -> tuple[object, ...]:
        """The classes and functions that the job loads by name: the method itself, and those that its options name."""
        return (type(self),)

    @property
    def averages(self) -> bool:
        """Whether the server uses the sites' uploads only through their means."""
        return False

    @property
    def rejoins(self) -> bool:
        """Whether a site that missed rounds may take part in the next. Then every message must hold all that the site
        needs from them, and the server must keep nothing for single sites. If False, a site that misses a round is
        left out for the rest of the job."""
        return False

    @property
    def repeats_uploads(self) -> bool:
        """Whether a site's uploads in consecutive rounds are nearly the same. Then the sums of two rounds must not
        differ by a few sites, or their difference shows those sites' uploads."""
        return False

    @property
    def mixture_share(self) -> float:
        """The largest share that one site's values may have in the mixture that another receives; 0: no mixture."""
        return 0.0

    @property
    def bystanders(self) -> int:
        """The number of the job's sites that upload nothing."""
        return 0

    @abstractmethod
    def exchange(self, shape: BackboneShape) -> Exchange:
        """The declaration of everything that travels, for a backbone of this shape."""

    def declared(self, shape: BackboneShape) -> Exchange:
        """The exchange with the job's limit on the norm of uploads.

        Raises `ConfigError` if there is a limit and no task uploads parameters.
        """
        exchange, most = self.exchange(shape), self.gathering.most_norm
        if most is None:
            return exchange
        limited = [task.name for task in exchange.tasks if any(spec.kind is Kind.PARAMETERS for spec in task.up)]
        if not limited:
            raise ConfigError(
                f"with these options the method '{self.name}' uploads no parameters: leave out 'most_norm'"
            )
        tasks = (replace(task, most_norm=most) if task.name in limited else task for task in exchange.tasks)
        return replace(exchange, tasks=tuple(tasks))

    def shortened(self, task: TaskSpec, shape: BackboneShape, reply: Tensors) -> Tensors:
        """The reply, with its parameters scaled down together if their norm exceeds the job's limit."""
        most = self.gathering.most_norm
        if most is None:
            return reply
        return {**reply, **clip_to_norm(self.exchange(shape).task(task.name).parameters(reply), most)}

    @abstractmethod
    def tasks(self) -> Iterator[tuple[str, int]]:
        """The tasks of a whole job in order, each with its round. A site answers them in this order only."""

    def cost(self, task: str) -> Cost:
        """The privacy cost of one run of a task, under `dp`."""
        return Cost()

    @property
    def _job_cost(self) -> Cost:
        return sum((self.cost(task) for task, _ in self.tasks()), Cost())

    @cached_property
    def noise(self) -> NoiseLevels:
        """The noise that keeps a whole job within its `dp` settings. It is the same at every site."""
        if self.dp is None:
            raise ConfigError("the job trains without differential privacy, so it has no noise")
        return self.dp.levels(self._job_cost)

    @property
    def privacy(self) -> Privacy | None:
        """The settings and the noise of private training; None without differential privacy."""
        return None if self.dp is None else Privacy(self.dp, self.noise, self.jumps)

    @property
    def jumps(self) -> bool:
        """Whether the private loss has a gradient that jumps somewhere, as at a maximum; see `Privacy.pass_size`."""
        return False

    def plan(self) -> tuple[PlannedTask, ...]:
        """The charges of a whole job to each patient, task by task. Tasks that charge nothing are left out."""
        if self.dp is None:
            return ()
        costs = ((task, round, self.cost(task)) for task, round in self.tasks())
        return tuple(
            PlannedTask(task, round, self.dp.events(cost, self.noise)) for task, round, cost in costs if cost != Cost()
        )

    def final_exchange(self, shape: BackboneShape) -> Exchange:
        """The exchange as it travels, after differential privacy and secure aggregation.

        Under differential privacy, the tensors of a charged task are marked as private and the epsilon travels with
        them. The uploads of a task without a charge stay at the site.

        With secure aggregation, further tasks after each task aggregate its uploads. Uploads that are not aggregated
        stay at the site, unless the method sends them in clear. No message holds an aggregate that only the sites know.
        The last tasks draw a committee of sites, if one is drawn.

        Where test results leave in clear, one more task declares the answer of a site whose policy withholds them.
        """
        exchange = self.declared(shape)
        if self.dp is not None:
            exchange = replace(exchange, tasks=tuple(self._private(task) for task in exchange.tasks))
        if self.secagg:
            at_sites = {n for task, how in self.aggregated.items() for n in how.kept(exchange.task(task))}
            parts = (part for task in exchange.tasks for part in self._on_shares(task, at_sites))
            exchange = replace(exchange, tasks=(*parts, *DRAWING))
        results = [spec for task in exchange.tasks if task.name == EVALUATE for spec in task.up]
        if any(spec.kind is Kind.STATISTIC and spec.protection is Protection.NONE for spec in results):
            exchange = replace(exchange, tasks=(*exchange.tasks, TaskSpec(withheld(EVALUATE), (), ())))
        return exchange

    def withheld_figures(self, task: TaskSpec, policy: SitePolicy, patients: Mapping[Part, int]) -> list[str]:
        """Names of the figures in a task of `final_exchange` that stay at a site with these numbers of patients.

        Errs towards more: a figure without an entry in `parts_behind` is about the part with the fewest patients.
        """
        fewest = min(patients.values())
        behind = {name: patients[part] for name, part in self.parts_behind.items()}
        return [spec.name for spec in task.up if policy.withholds(spec, behind.get(spec.name, fewest))]

    def _private(self, task: TaskSpec) -> TaskSpec:
        if self.cost(task.name) == Cost():
            return replace(task, up=())
        return replace(task, up=(*(replace(spec, protection=Protection.DP) for spec in task.up), EPSILON))

    def _on_shares(self, task: TaskSpec, at_sites: set[str]) -> Iterator[TaskSpec]:
        in_clear = task.name in self.in_clear
        up = tuple(spec for spec in task.up if in_clear or spec.kind is Kind.PUBLIC)
        how = self.aggregated.get(task.name)
        if how is not None:
            up += how.beside
        yield replace(task, up=up, down=tuple(spec for spec in task.down if spec.name not in at_sites))
        if how is not None:
            yield from how.tasks(task)

    def trained(self, state: State) -> Mapping[str, torch.Tensor]:
        """Everything that a site trains, from its state."""
        values: Mapping[str, torch.Tensor] = state["values"]
        return values

    def attention(self, site: Site, state: State, examples: Examples) -> torch.Tensor:
        """The attention of a site's model to the parts of each row's picture, [rows, parts], parts in row-major order.

        Only the site sees it: no task sends it. Raises `ConfigError` if the method has none.
        """
        raise ConfigError(f"the method '{self.name}' has no attention over pictures to show")

    def answering(self, site: Site, state: State) -> Answering:
        """The model with which a site with this state, after `evaluate`, answers new questions. It stays at the site.

        Raises `ConfigError` if the method keeps none.
        """
        raise ConfigError(f"the method '{self.name}' keeps no answer head at a site: there is no model to ask")

    def probe(self, site: Site, state: State, received: Tensors) -> Probe:
        """The round that starts from this state and message, for audits on the site's own machine.

        Raises `ConfigError` if the method's round is not the training of one set of values on its rows.
        """
        raise ConfigError(f"the method '{self.name}' cannot be attacked: its round trains more than one model")

    def check_answers(self, declared: bool) -> None:
        """Raises `ConfigError` if the answer space must be public and is not. `declared`: whether the site lists it.

        A method without an answer space has nothing to check.
        """

    def check_kind(self, site: Site) -> None:
        """Raises `ConfigError` if the method cannot learn from the site's kind of rows. By default captions are
        refused.
        """
        if site.data.captioned:
            raise ConfigError(
                f"the method '{self.name}' answers questions, and this site has pictures with captions: name a method "
                "with retrieval, 'creamfl' or 'feddat'"
            )

    def check_rows(self, data: SiteData) -> None:
        """Raises `DataError` if fewer than half of the site's train rows have an answer of the answer space.

        The other rows are not learned. Under differential privacy a site does not call it, since the error would reveal
        something about its rows; a run on this machine's data always calls it first.
        """
        answers, train = {*(self.public_answers or data.answers)}, data.train.answers.tolist()
        learned = sum(number >= 0 and data.answers[number] in answers for number in train)
        if self.trains and 2 * learned < max(1, len(train)):
            raise DataError(
                "fewer than half of the train rows have an answer of the answer space: list the classes or answers "
                "in the option 'answers', change the split, or give each site its own list and head ('own' as 'head')"
            )

    def answers_of(self, declared: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """The answer list that a site uses: `declared`, or else the job's where no list may be made from the rows."""
        return self.public_answers if declared is None and (self.dp or not self.needs_rows) else declared

    @property
    def rounds(self) -> int:
        """The number of rounds of a whole job."""
        config: Any = self.config
        return int(config.rounds)

    @property
    def public_answers(self) -> tuple[str, ...] | None:
        """The answer space that the job itself names; None if it names none."""
        return None

    @abstractmethod
    def setup(self, site: Site) -> State:
        """The site's state before its first task."""

    @abstractmethod
    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """The server's loop; returns the uploads of the task `evaluate`, by site."""

    def handle(self, task: TaskSpec, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """Runs a task's handler on the site's state and the received message; returns the new state and the reply."""
        return self.handler(task, site)(site, state, received, round)

    def handler(self, task: TaskSpec, site: Site) -> Handler:
        """The handler of a declared task at this site: the method of that name."""
        handler: Handler = getattr(self, task.name)
        return handler


def tensors_of(arrays: Tensors, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Copies of the received arrays as torch tensors."""
    return {name: torch.from_numpy(np.array(array)).to(device) for name, array in arrays.items()}


def arrays_of(values: Mapping[str, torch.Tensor]) -> Tensors:
    """Torch tensors as the arrays of a message."""
    return {name: value.numpy(force=True) for name, value in values.items()}


def trained_by_rounds(rounds: int) -> Iterator[tuple[str, int]]:
    """The tasks of most methods, each with its round: `start` in the first, `train` in the others, `evaluate`."""
    yield "start", 1
    yield from (("train", number) for number in range(2, rounds + 1))
    yield "evaluate", rounds
