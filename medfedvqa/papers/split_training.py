"""The base of split learning: sites hold a model's lower part, the server an upper one for each site.

In every step a site sends a batch's activations and receives the loss's gradients with respect to them. At the end of
a round both sides average their parts. A site keeps no graph in between: it recomputes the batch from its saved
values, so that it may be restarted between the two.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field

from audits import Exchange, Kind, TaskSpec, Tensors, TensorSpec
from medfedvqa.bounds import MOST_DECAYS, MOST_PASSES, MOST_ROUNDS, MOST_ROWS, Factor, Passes, Rate, Rounds, Space
from medfedvqa.core.hub import Hub
from medfedvqa.core.method import TESTED, Method, State, arrays_of, tensors_of
from medfedvqa.core.on_shares import MeanOnShares, OnShares
from medfedvqa.core.scores import SCORED, counts, scored
from medfedvqa.core.trunk_options import TrunkOptions
from medfedvqa.data import Examples
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.models import BackboneShape, Shapes
from medfedvqa.papers.networks.split import ServerNetworks, SiteNetworks, adam, average
from medfedvqa.training import Site, cached
from privacy import DPSettings, Secagg

ROWS = "v_mha"
"""The activations of a batch's pictures and questions. Their gradient comes back under the same name."""
SERVER_SEED = 1
"""Added to the job's seed at the server, so that its random numbers differ from those of the sites."""
OUT_OF_ORDER = "the server asked for a step out of order: start the job again"


class SplitConfig(TrunkOptions, frozen=True):
    """Options of a split model, with the values of UniCon's paper."""

    rounds: Rounds = Field(10, description="rounds, each ended by averaging (paper: 20, one epoch each)")
    steps: Passes = Field(30, description="batches per round, the same number at all sites")
    batch_rows: int = Field(64, ge=2, le=MOST_ROWS, description="rows per batch, exactly (paper: 128)")
    learning_rate: Rate = Field(1e-3, description="Adam's, on both sides (paper: 0.0001)")
    warmup: int = Field(
        0, ge=0, le=MOST_ROUNDS * MOST_PASSES, description="steps of linear warm-up (paper: 10000 of 69340)"
    )
    decay: Factor = Field(0.2, description="factor on the learning rate (paper: 0.2)")
    decay_after: tuple[Annotated[int, Field(ge=0, le=MOST_ROUNDS)], ...] = Field(
        (10, 15), max_length=MOST_DECAYS, description="rounds after which it decays (paper: 10 and 15)"
    )
    norm: Literal["layer", "batch"] = Field("layer", description="normalisation of v_NHA (paper: batch)")
    aggregate: Literal["sites", "none"] = Field(
        "sites", description="the sites' parts: averaged among them on shares, or each stays its own"
    )
    width: Space = Field(512, description="width of v_MHA and v_APN (paper: 512)")
    space: Space = Field(256, description="width of v_NHA and v_LTA (paper: 256)")

    def rate(self, round: int, step: int) -> float:
        """The learning rate of a step; rounds and steps count from 1."""
        steps = (round - 1) * self.steps + step
        warm = min(1.0, steps / self.warmup) if self.warmup else 1.0
        return self.learning_rate * warm * self.decay ** sum(round > after for after in self.decay_after)


Config = TypeVar("Config", bound=SplitConfig)


class SplitTraining(Method[Config]):
    """A site's part, the server's part, and their exchange. Subclasses define the loss."""

    at_cut: ClassVar[Mapping[str, str]]
    """The tensors that a step sends, each [batch_rows, width]: their descriptions by name."""
    why_not_private: ClassVar[str]
    """Why the method does not train under differential privacy."""

    def __init__(self, config: Config, dp: DPSettings | None = None, secagg: Secagg = False) -> None:
        if dp is not None:
            raise ConfigError(
                f"the method '{self.name}' does not train under differential privacy: {self.why_not_private}"
            )
        if config.aggregate == "sites" and not secagg:
            raise ConfigError(
                f"'{self.name}' averages the sites' parts among the sites, so that the server never has them: ask for "
                "secure aggregation, or let each site keep its own by aggregate 'none'"
            )
        super().__init__(config, dp, secagg)

    @property
    def on_shares(self) -> Mapping[str, OnShares]:
        """The tensors that are averaged on shares: the sites' parts, whose mean only the sites learn."""
        return {"update": MeanOnShares(to="sites")} if self.config.aggregate == "sites" else {}

    @property
    def in_clear(self) -> Collection[str]:
        """The tasks that send activations, since the server computes on them."""
        return ["start", "forward", *self.steps]

    @property
    def steps(self) -> list[str]:
        """The tasks of a round's steps, from the second on."""
        return [step_name(number) for number in range(2, self.config.steps + 1)]

    def exchange(self, shape: BackboneShape) -> Exchange:
        """Each step sends activations up and gradients down; a round ends with a mean, the job with the adapters."""
        up = tuple(self.activations_of(name, of) for name, of in self.at_cut.items())
        down = tuple(self.activations_of(name, f"gradient of the loss by {of}") for name, of in self.at_cut.items())
        parts = tuple(_parameters(name, size, "the site's") for name, size in self.shared(shape).items())
        adapters = tuple(_parameters(name, size, "the server's") for name, size in self.server_shapes.items())
        return Exchange(
            self.name,
            (
                TaskSpec("start", up, ()),
                TaskSpec("forward", up, parts),
                *self.between,
                *(TaskSpec(step, up, down) for step in self.steps),
                TaskSpec("update", parts, down),
                TaskSpec("evaluate", counts(*SCORED), (*parts, *adapters)),
            ),
        )

    @property
    def between(self) -> tuple[TaskSpec, ...]:
        """Tasks between a step's activations and their gradients."""
        return ()

    def shared(self, shape: BackboneShape) -> Shapes:
        """The shapes of the averaged tensors of the sites' parts, by name.

        Raises `ConfigError` for a backbone that the site's part cannot stand on.
        """
        shapes, averages = self.site_shapes(self.config.trained_shape(shape)), self.config.aggregate == "sites"
        return {name: size for name, size in shapes.items() if averages and self.is_averaged(name)}

    def is_averaged(self, name: str) -> bool:
        """Whether the value of this name, of either side, is averaged at a round's end."""
        return True

    @abstractmethod
    def site_shapes(self, shape: BackboneShape) -> Shapes:
        """The shapes of all that a site trains on a network of this shape, by name."""

    @property
    @abstractmethod
    def server_shapes(self) -> Shapes:
        """The shapes of the server's values, by name."""

    @abstractmethod
    def server_part(self, seed: int) -> Any:
        """The server's part for one site, with `values`. Parts with the same seed have the same initial values."""

    @abstractmethod
    def gradients(
        self, hub: Hub, parts: Mapping[str, Any], activations: Mapping[str, Tensors], step: int, rate: float
    ) -> dict[str, Tensors]:
        """A step at the server, which returns the gradients of each site's activations."""

    @abstractmethod
    def activations(
        self, site: Site, values: Mapping[str, torch.Tensor], round: int, step: int
    ) -> dict[str, torch.Tensor]:
        """The activations that a site sends in a step, as functions of its values."""

    @abstractmethod
    def right(self, site: Site, values: Mapping[str, torch.Tensor], examples: Examples) -> torch.Tensor:
        """Whether both sides' values answer each row right, bool [rows]."""

    def tasks(self) -> Iterator[tuple[str, int]]:
        """Each round's steps and its mean, and the evaluation."""
        between = [task.name for task in self.between]
        for number in range(1, self.config.rounds + 1):
            first = ["start" if number == 1 else "forward", *between[:1]]
            middle = chain(*zip(self.steps, between[1:], strict=True)) if between[1:] else self.steps
            for task in (*first, *middle, "update"):
                yield task, number
        yield "evaluate", self.config.rounds

    def handle(self, task: TaskSpec, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """See `Method.handle`. Each step is a task of its own, so that a site answers it once even if the server
        repeats it.
        """
        if task.name not in self.steps:
            return super().handle(task, site, state, received, round)
        if task.name != step_name(state["step"] + 1):
            raise FederationError(OUT_OF_ORDER)
        state = self._stepped(site, state, received, round)
        state = {**state, "step": state["step"] + 1}
        return state, self._uploads(site, state, round)

    def start(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The first round's first activations, from the initial values."""
        return self.forward(site, state, received, round)

    def forward(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """A later round's first activations, from the sites' mean."""
        state = {**state, "values": {**state["values"], **tensors_of(received, site.device)}, "step": 1}
        return state, self._uploads(site, state, round)

    def update(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The step for the round's last gradients, and the values for the mean."""
        if state["step"] != self.config.steps:
            raise FederationError(OUT_OF_ORDER)
        state = self._stepped(site, state, received, round)
        return state, arrays_of({name: state["values"][name] for name in self.shared(site.backbone.shape)})

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The counts of test rows that are answered right, beside those of the free baselines.

        The state keeps the message, without which the finished model would lack the server's part.
        """
        message = tensors_of(received, site.device)
        right = self.right(site, {**state["values"], **message}, site.data.test)
        return scored({**state, TESTED: message}, site.data, right)

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Rounds of steps with all sites at once, each with two means at its end; then the evaluation."""
        parts = {site: self.server_part(hub.seed + SERVER_SEED) for site in hub.sites}
        for number in hub.rounds(self.config.rounds):
            activations = hub.collect("start" if number == 1 else "forward")
            for step in range(1, self.config.steps + 1):
                gradients = self.gradients(hub, parts, activations, step, self.config.rate(number, step))
                if step < self.config.steps:
                    activations = hub.collect(step_name(step + 1), gradients)
            if self.config.aggregate == "sites":
                hub.mean("update", gradients)
            else:
                hub.collect("update", gradients)
            average([parts[site] for site in hub.sites], self.is_averaged)
        return hub.collect("evaluate", {site: arrays_of(parts[site].values) for site in hub.sites})

    def activations_of(self, name: str, meaning: str, width: int | None = None) -> TensorSpec:
        """The declaration of activations or their gradients, [batch_rows, width]; `width`: by default that of
        the cut.
        """
        size = (self.config.batch_rows, width or self.config.width)
        return TensorSpec(name, size, "float32", Kind.ACTIVATIONS, meaning)

    @property
    def server(self) -> ServerNetworks:
        """The server's networks."""
        return ServerNetworks(self.config.width, self.config.space, self.config.norm)

    def networks(self, site: Site) -> SiteNetworks:
        """The site's networks."""
        return SiteNetworks(self.config.trained_backbone(site), self.config.tuned, self.config.width)

    def batch(self, site: Site, examples: Examples, chosen: torch.Tensor) -> Any:
        """The rows `chosen`, int64 [rows], in the trunk's input format."""
        networks = self.networks(site)
        cache = cached(site, networks.depth, networks.backbone.cache_of)
        questions = cache.question_ids([examples.questions[row] for row in chosen.tolist()])
        return cache.batch(examples.pictures[chosen], questions, examples.answers[chosen])

    def rows_of(self, site: Site, count: int, round: int, step: int) -> torch.Tensor:
        """The rows of a step's batch, of `count`, int64 [batch_rows].

        They follow from the site's seed and the round, so no state holds them.
        """
        generator = torch.Generator().manual_seed(site.task_seed("rows", round))
        return _batches(count, self.config.steps, self.config.batch_rows, generator)[step - 1]

    @torch.no_grad()
    def _uploads(self, site: Site, state: State, round: int) -> Tensors:
        return arrays_of(self.activations(site, state["values"], round, state["step"]))

    def _stepped(self, site: Site, state: State, gradients: Tensors, round: int) -> State:
        """The state after the step of the last activations, which are computed again from the saved state."""
        values = leaves_of(state)
        activations = self.activations(site, values, round, state["step"])
        at_cut = tensors_of(gradients, site.device)
        torch.autograd.backward([activations[name] for name in self.at_cut], [at_cut[name] for name in self.at_cut])
        return self.learned(state, values, round)

    def learned(self, state: State, leaves: dict[str, torch.Tensor], round: int) -> State:
        """The state after a step of Adam with these leaves' gradients; a leaf without a gradient stays unchanged."""
        optimizer = adam(leaves, self.config.rate(round, state["step"]), state["optimizer"])
        optimizer.step()
        values = {name: value.detach() for name, value in leaves.items()}
        return {**state, "values": values, "optimizer": optimizer.state_dict()}


def leaves_of(state: State) -> dict[str, torch.Tensor]:
    """Copies of a state's values that require gradients."""
    return {name: value.clone().requires_grad_() for name, value in state["values"].items()}


def step_name(number: int) -> str:
    """The name of the task that brings one step's gradients down and the activations of step `number` up."""
    return f"step/{number}"


def _batches(rows: int, steps: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """The rows of a round, int64 [steps, size]: repeated passes in random order. Every batch is full."""
    epochs = -(-steps * size // rows)
    order = torch.cat([torch.randperm(rows, generator=generator) for _ in range(epochs)])
    return torch.unflatten(order[: steps * size], 0, (steps, size))


def _parameters(name: str, shape: tuple[int, ...], whose: str) -> TensorSpec:
    return TensorSpec(name, shape, "float32", Kind.PARAMETERS, f"{whose} part of the model")
