"""UniCon: unidirectional split learning with a contrastive loss (Sun and Ochiai, 2023, also known as BiCSL).

Sites hold the trunk and the answer projection; the server holds two adapters for each site. In every step a site sends
the activations of a batch and receives the gradients of the loss; at the end of a round both sides average their parts.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from audits import Exchange, Kind, TaskSpec, Tensors, TensorSpec
from medfedvqa.bounds import (
    MOST_DECAYS,
    MOST_LENGTH,
    MOST_PASSES,
    MOST_ROUNDS,
    MOST_ROWS,
    Factor,
    Passes,
    Rate,
    Rounds,
    Space,
    Temperature,
)
from medfedvqa.core.hub import Hub
from medfedvqa.core.method import Method, State, arrays_of, tensors_of
from medfedvqa.core.on_shares import MeanOnShares, OnShares
from medfedvqa.core.registry import register
from medfedvqa.core.scores import SCORED, counts, scored
from medfedvqa.core.trunk_options import TrunkOptions
from medfedvqa.data import Examples
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.models import (
    BackboneShape,
    Contrast,
    ServerNetworks,
    ServerPart,
    Shapes,
    SiteNetworks,
    TokenEmbeddings,
    similarities,
    site_shapes,
)
from medfedvqa.models.split import APN, LTA, adam, average
from medfedvqa.training import Site, cached
from privacy import DPSettings

ROWS, ANSWERS = "v_mha", "v_apn"
"""The activations that a step sends. The gradients come back under the same names."""
_CUT = {ROWS: "what the trunk makes of pictures and questions", ANSWERS: "what the projection makes of answers"}
_OUT_OF_ORDER = "the server asked for a step out of order: start the job again"


class UniConConfig(TrunkOptions, frozen=True):
    """Options; `variant` and `averaged` say `paper` or `reference` where the paper and its released code differ."""

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
    temperature: Temperature = Field(0.07, description="tau (paper: 0.07)")
    variant: Literal["reference", "paper"] = Field(
        "reference", description="InfoNCE: cosine, own key included, mean (code); or dot product, excluded, sum"
    )
    mask_duplicates: bool = Field(True, description="rows with one answer are no negatives of each other (paper: are)")
    mask_padding: bool = Field(True, description="zeros beyond an answer's end take no part in the maximum (code: do)")
    answering: Literal["trained", "dot"] = Field("trained", description="similarity at test: as trained, or dot (code)")
    norm: Literal["layer", "batch"] = Field("layer", description="normalisation of v_NHA (paper: batch)")
    averaged: Literal["paper", "reference"] = Field(
        "paper", description="all four modules, or trunk and NHA alone, which is what the released code averages"
    )
    aggregate: Literal["sites", "none"] = Field(
        "sites", description="the sites' parts: averaged among them on shares, or each stays its own"
    )
    words: int = Field(8, ge=1, le=MOST_LENGTH, description="tokens of an answer (paper: 8)")
    width: Space = Field(512, description="width of v_MHA and v_APN (paper: 512)")
    space: Space = Field(256, description="width of v_NHA and v_LTA (paper: 256)")

    def rate(self, round: int, step: int) -> float:
        """The learning rate of a step; rounds and steps count from 1."""
        steps = (round - 1) * self.steps + step
        warm = min(1.0, steps / self.warmup) if self.warmup else 1.0
        return self.learning_rate * warm * self.decay ** sum(round > after for after in self.decay_after)

    @property
    def contrast(self) -> Contrast:
        """The loss at the server."""
        return Contrast(self.variant, self.temperature, self.mask_duplicates)


@register
class UniCon(Method[UniConConfig]):
    """Split learning: activations go to the server, gradients come back; answers are chosen by similarity."""

    name = "unicon"
    config_type = UniConConfig

    def __init__(self, config: UniConConfig, dp: DPSettings | None = None, secagg: bool = False) -> None:
        if dp is not None:
            raise ConfigError(
                "the method 'unicon' does not train under differential privacy: its loss holds every row against the "
                "others of its batch, so that no patient's part of a gradient can be bounded by itself"
            )
        if config.aggregate == "sites" and not secagg:
            raise ConfigError(
                "'unicon' averages the sites' parts among the sites, so that the server never has them: ask for secure "
                "aggregation, or let each site keep its own by aggregate 'none'"
            )
        super().__init__(config, dp, secagg)

    @property
    def on_shares(self) -> Mapping[str, OnShares]:
        """The sites' parts: only the sites learn their mean."""
        return {"update": MeanOnShares(to="sites")} if self.config.aggregate == "sites" else {}

    @property
    def in_clear(self) -> Collection[str]:
        """The tasks that send activations, since the server computes on them."""
        return ["start", "forward", *self._steps]

    def exchange(self, shape: BackboneShape) -> Exchange:
        """Activations go up and gradients come down in each step; a round ends in a mean, the job with the adapters."""
        up = tuple(self._at_cut(name, of) for name, of in _CUT.items())
        down = tuple(self._at_cut(name, f"gradient of the loss by {of}") for name, of in _CUT.items())
        parts = tuple(_parameters(name, size, "the site's") for name, size in self.shared(shape).items())
        adapters = tuple(_parameters(name, size, "the server's") for name, size in self._server.shapes.items())
        return Exchange(
            self.name,
            (
                TaskSpec("start", up, ()),
                TaskSpec("forward", up, parts),
                *(TaskSpec(step, up, down) for step in self._steps),
                TaskSpec("update", parts, down),
                TaskSpec("evaluate", counts(*SCORED), (*parts, *adapters)),
            ),
        )

    def shared(self, shape: BackboneShape) -> Shapes:
        """The shapes of the averaged tensors of the sites' parts, by name.

        Raises `ConfigError` for a backbone without token embeddings, or without the grid that a trunk reads.
        """
        shapes = site_shapes(self.config.trained_shape(shape), self.config.tuned, self.config.width)
        averages = self.config.aggregate == "sites"
        return {name: size for name, size in shapes.items() if averages and self._is_averaged(name)}

    def tasks(self) -> Iterator[tuple[str, int]]:
        """Each round's steps and its mean, and the evaluation."""
        for number in range(1, self.config.rounds + 1):
            for task in ("start" if number == 1 else "forward", *self._steps, "update"):
                yield task, number
        yield "evaluate", self.config.rounds

    def setup(self, site: Site) -> State:
        """The same values at all sites, whatever their data."""
        values = self._networks(site).initial(torch.Generator().manual_seed(site.seed))
        return {"values": values, "optimizer": None, "step": 0}

    def handle(self, task: TaskSpec, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """Each step is a task of its own, so that a site answers it once even if the server repeats it."""
        if task.name not in self._steps:
            return super().handle(task, site, state, received, round)
        if task.name != _step(state["step"] + 1):
            raise FederationError(_OUT_OF_ORDER)
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
            raise FederationError(_OUT_OF_ORDER)
        state = self._stepped(site, state, received, round)
        return state, arrays_of({name: state["values"][name] for name in self.shared(site.backbone.shape)})

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The counts of test rows whose most similar answer is right, beside those of the free baselines."""
        values, test = {**state["values"], **tensors_of(received, site.device)}, site.data.test
        return scored(state, site.data, self.chosen(site, values, test).eq(test.answers))

    @torch.no_grad()
    def chosen(self, site: Site, values: Mapping[str, torch.Tensor], examples: Examples) -> torch.Tensor:
        """The answer to each row from both sides' values, int64 [rows] into the site's answers."""
        networks, cosine = self._networks(site), self.config.contrast.cosine and self.config.answering == "trained"
        answers = networks.answers(values, self._words(site), self.config.mask_padding)
        keys, choices = self._server.answers(values, answers), []
        for part in torch.split(torch.arange(len(examples)), self.config.batch_rows):
            activations = networks.rows(values, self._batch(site, examples, part))
            rows = self._server.rows(values, activations, training=False)
            choices.append(similarities(rows, keys, cosine).argmax(dim=1).cpu())
        return torch.cat(choices)

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Rounds of steps with all sites at once, each with two means at its end; then the evaluation."""
        # The sites draw from the seed itself: the server must not draw the same numbers.
        parts = {site: ServerPart(self._server, self.config.contrast, hub.seed + 1) for site in hub.sites}
        for number in hub.rounds(self.config.rounds):
            activations = hub.collect("start" if number == 1 else "forward")
            for step in range(1, self.config.steps + 1):
                rate = self.config.rate(number, step)
                gradients = {site: _learn(parts[site], activations[site], rate) for site in hub.sites}
                if step < self.config.steps:
                    activations = hub.collect(_step(step + 1), gradients)
            if self.config.aggregate == "sites":
                hub.mean("update", gradients)
            else:
                hub.collect("update", gradients)
            average([parts[site] for site in hub.sites], self._is_averaged)
        return hub.collect("evaluate", {site: arrays_of(parts[site].values) for site in hub.sites})

    @property
    def _steps(self) -> list[str]:
        """The tasks of a round's steps, from the second on."""
        return [_step(number) for number in range(2, self.config.steps + 1)]

    @property
    def _server(self) -> ServerNetworks:
        return ServerNetworks(self.config.width, self.config.space, self.config.norm)

    def _networks(self, site: Site) -> SiteNetworks:
        return SiteNetworks(self.config.trained_backbone(site), self.config.tuned, self.config.width)

    def _is_averaged(self, name: str) -> bool:
        return self.config.averaged == "paper" or not name.startswith((APN, LTA))

    def _at_cut(self, name: str, meaning: str) -> TensorSpec:
        return TensorSpec(name, (self.config.batch_rows, self.config.width), "float32", Kind.ACTIVATIONS, meaning)

    def _words(self, site: Site) -> TokenEmbeddings:
        return site.derive(
            ("words", self.config.words), lambda: site.backbone.words(site.data.answers, self.config.words)
        )

    def _batch(self, site: Site, examples: Examples, chosen: torch.Tensor) -> Any:
        networks = self._networks(site)
        cache = cached(site, networks.depth, networks.backbone.cache_of)
        questions = cache.question_ids([examples.questions[row] for row in chosen.tolist()])
        return cache.batch(examples.pictures[chosen], questions, examples.answers[chosen])

    def _activations(
        self, site: Site, values: Mapping[str, torch.Tensor], round: int, step: int
    ) -> dict[str, torch.Tensor]:
        """The activations of a step. Its rows follow from the site's seed and the round, so no state holds them."""
        networks, train = self._networks(site), site.data.train.answered
        generator = torch.Generator().manual_seed(site.task_seed("rows", round))
        rows = _batches(len(train), self.config.steps, self.config.batch_rows, generator)[step - 1]
        answers = networks.answers(values, self._words(site), self.config.mask_padding)
        right = train.answers[rows].to(answers.device)
        return {ROWS: networks.rows(values, self._batch(site, train, rows)), ANSWERS: answers[right]}

    @torch.no_grad()
    def _uploads(self, site: Site, state: State, round: int) -> Tensors:
        return arrays_of(self._activations(site, state["values"], round, state["step"]))

    def _stepped(self, site: Site, state: State, gradients: Tensors, round: int) -> State:
        """The state after the step of the last activations, which are computed again from the saved state."""
        values = {name: value.clone().requires_grad_() for name, value in state["values"].items()}
        optimizer = adam(values, self.config.rate(round, state["step"]), state["optimizer"])
        activations = self._activations(site, values, round, state["step"])
        at_cut = tensors_of(gradients, site.device)
        torch.autograd.backward([activations[name] for name in _CUT], [at_cut[name] for name in _CUT])
        optimizer.step()
        values = {name: value.detach() for name, value in values.items()}
        return {**state, "values": values, "optimizer": optimizer.state_dict()}


def _learn(part: ServerPart, activations: Tensors, rate: float) -> Tensors:
    """A step at the server, which returns the gradients of the activations."""
    at_cut = tensors_of(activations)
    return arrays_of(dict(zip(_CUT, part.learn(at_cut[ROWS], at_cut[ANSWERS], rate), strict=True)))


def _step(number: int) -> str:
    """The name of the task that brings one step's gradients down and the activations of step `number` up."""
    return f"step/{number}"


def _batches(rows: int, steps: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """The rows of a round, int64 [steps, size]: repeated passes in random order. Every batch is full."""
    epochs = -(-steps * size // rows)
    order = torch.cat([torch.randperm(rows, generator=generator) for _ in range(epochs)])
    return torch.unflatten(order[: steps * size], 0, (steps, size))


def _parameters(name: str, shape: tuple[int, ...], whose: str) -> TensorSpec:
    return TensorSpec(name, shape, "float32", Kind.PARAMETERS, f"{whose} part of the model")
