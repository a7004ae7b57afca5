"""The base of methods whose sites exchange answers to public questions, and never weights.

Server and sites draw the same public pictures, with closed questions, that no site holds. In a round a site learns from
the others' logits on them, then from its own rows, and sends its own logits. So each site may choose its model's size.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, TypeVar

import numpy as np
import torch
from pydantic import Field

from audits import Exchange, Kind, TaskSpec, Tensors, TensorSpec
from medfedvqa.bounds import (
    MOST_PAIRS,
    MOST_ROWS,
    MOST_SITES,
    BackboneName,
    Blocks,
    ExtraPasses,
    Passes,
    PublicSet,
    Rank,
    Rate,
    SiteName,
    Width,
)
from medfedvqa.core.averaging import Averaging, AveragingConfig
from medfedvqa.core.hub import Hub
from medfedvqa.core.method import MethodConfig, Probe, State, arrays_of, tensors_of
from medfedvqa.core.scores import counts, validated
from medfedvqa.data import PublicPairs, held_out_pairs, public_pairs
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation import ServerScore
from medfedvqa.models import (
    AnswerModel,
    Backbone,
    BackboneShape,
    HeadConfig,
    Shapes,
    TunedModel,
    TuningConfig,
    has_seen,
    load_backbone,
)
from medfedvqa.models.tuning import Kind as TuningKind
from medfedvqa.training import Part, Site, answer_losses
from medfedvqa.training.frozen_rows import FrozenRows
from privacy import DPSettings

LOGITS = "logits"
MOST_LOGIT = 30.0
"""Logits are clipped to -30..30 before they leave. A probability of e^-60 is practically zero."""
_BOUND = 30.01
"""The bound in the exchange, with room for rounding in a mean."""
CHUNK = 64
"""Public rows per forward pass without training."""

OutputLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""The loss of each row, [rows], given a model's logits [rows, answers] and the public rows' numbers, int64 [rows]."""
Lesson = tuple[OutputLoss, int]
"""A loss on public rows, and the number of passes."""


class SiteModel(MethodConfig, frozen=True):
    """One site's model. A null field takes the job's option."""

    tuning: TuningKind | None = None
    blocks: Blocks = None
    reduction: Width | None = None
    rank: Rank | None = None
    hidden: Width | None = None


class PublicOutputsConfig(AveragingConfig, frozen=True):
    """Options. Those of FedAvg describe the sites' models, which are never averaged."""

    models: dict[SiteName, SiteModel] = Field(
        {},
        max_length=MOST_SITES,
        description="by site's name, what is different there: tuning, blocks, reduction, rank, hidden",
    )
    public_pairs: int = Field(
        64, ge=4, le=MOST_PAIRS, description="public pictures; all closed questions about them are public rows"
    )
    public: PublicSet = None
    public_rows: int = Field(32, ge=2, le=MOST_ROWS, description="public rows per step")
    public_epochs: ExtraPasses = Field(
        1, description="a site's passes over the public rows per round, before its own rows; 0 is local training"
    )

    def of(self, site: str) -> "PublicOutputsConfig":
        """The options of this site's model."""
        return self.model_copy(update=self.models.get(site, SiteModel()).model_dump(exclude_none=True))


Config = TypeVar("Config", bound=PublicOutputsConfig)


class PublicOutputs(Averaging[Config]):
    """Lessons on public rows, private training, and the site's logits on the public rows."""

    shares = False
    teacher: ClassVar[str] = "the server's"
    """The sender of the logits that come down, in words."""

    def __init__(self, config: Config, dp: DPSettings | None = None, secagg: bool = False) -> None:
        super().__init__(config, dp, secagg)
        asked = {*self._pairs().questions.answers}
        if missing := sorted(asked - {*(self.answers or ())}):
            raise ConfigError(
                f"'{self.name}' compares answers to public questions by their numbers: 'answers' must be a list for "
                f"all sites that holds {', '.join(missing[:5])}{' and others' if missing[5:] else ''}"
            )

    @abstractmethod
    def lessons(self, state: State, rows: FrozenRows, received: torch.Tensor | None) -> Iterator[Lesson]:
        """The lessons of a site on public rows at the beginning of a round.

        `state`: before the round; `received`: the teacher's logits, [rows, answers]; None before there are any.
        """

    @property
    def silent(self) -> bool:
        """No: logits go up in every round."""
        return False

    def shared(self, shape: BackboneShape) -> Shapes:
        """Nothing: no weights travel."""
        return {}

    def exchange(self, shape: BackboneShape) -> Exchange:
        """A site's logits on the public rows go up, the teacher's come down, and counts go up at the end."""
        self.config.check_head(self.config.tuned, shape)
        up, down = (self._logits("the site's"),), (self._logits(self.teacher),)
        evaluate = TaskSpec("evaluate", counts(*self.scores), ())
        return Exchange(self.name, (TaskSpec("start", up, ()), TaskSpec("train", up, down), evaluate))

    def model(self, site: Site) -> TunedModel:
        """The site's model, by its options."""
        config = self.config.of(site.name)
        plain = self.model_of(site, config.tuned)
        return replace(plain, head=replace(plain.head, hidden=config.hidden))

    def train(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """Lessons on public rows, then the private steps. The site's logits on the public rows go up."""
        trainer, rows, seed = self.trainer(site), self.public(site), site.task_seed("train", round)
        part, model = trainer.part(state["values"], round), trainer.model
        generator = torch.Generator().manual_seed(seed + 1)
        for loss, passes in self.lessons(state, rows, tensors_of(received, site.device).get(LOGITS)):
            learn(part, model, rows, loss, passes, self.config.public_rows, generator)
        private = answer_losses(model)
        for (draw,) in trainer.draws(seed):
            trainer.step([part], private, draw)
        state = {**state, "values": part.trained(), "begun": True}
        state |= validated(state, self.right(trainer, state["values"], site.data.validate)) | trainer.clipped(state)
        return state, arrays_of({LOGITS: logits_on(model, state["values"], rows)})

    def without_others(self, local_epochs: int | None = None) -> "PublicOutputs[Config]":
        """See `Alone.without_others`. The public rows, from which the others teach, are left out."""
        alone = super().without_others(local_epochs)
        return type(self)(alone.config.model_copy(update={"public_epochs": 0}))

    def probe(self, site: Site, state: State, received: Tensors) -> Probe:
        """See `Method.probe`. Raises `ConfigError`."""
        raise ConfigError(f"the method '{self.name}' cannot be attacked: its round learns from public rows too")

    def check_models(self, sites: tuple[str, ...]) -> None:
        """Raises `ConfigError` if `models` names a site that does not take part."""
        if not self.config.models.keys() <= {*sites}:
            raise ConfigError("'models' names a site that does not take part")

    def public(self, site: Site) -> FrozenRows:
        """The public rows, which go through the frozen part of the site's backbone once."""
        model, count, size = self.model(site), self.config.public_pairs, site.backbone.shape.image_size
        return site.derive(
            ("public questions", count, self.config.public, self.answers, model.cache_key, tuple(model.depth.items())),
            lambda: FrozenRows.of_questions(model.cache, size, model.depth, self._pairs(), self.answers or ()),
        )

    def _pairs(self) -> PublicPairs:
        return public_pairs(self.config.public_pairs, self.config.public)

    def _logits(self, whose: str) -> TensorSpec:
        rows = len(self._pairs().questions)
        meaning = f"{whose} logits of answers to public questions"
        shape = rows, len(self.answers or ())
        return TensorSpec(LOGITS, shape, "float32", Kind.REPRESENTATIONS, meaning, bounds=(-_BOUND, _BOUND))


def learn(
    part: Part,
    model: AnswerModel,
    rows: FrozenRows,
    loss: OutputLoss,
    passes: int,
    size: int,
    generator: torch.Generator,
) -> None:
    """Passes over the public rows in random order, `size` rows a step, without dropout."""
    for _ in range(passes):
        for items in torch.split(torch.randperm(len(rows), generator=generator), size):
            logits = model.logits(part.values, rows.batch(items))
            torch.autograd.backward(loss(logits, items).mean())
            part.step()


@torch.no_grad()
def logits_on(model: AnswerModel, values: Mapping[str, torch.Tensor], rows: FrozenRows) -> torch.Tensor:
    """The model's logits on all public rows, [rows, answers], clipped to the bound."""
    parts = torch.split(torch.arange(len(rows)), CHUNK)
    return torch.cat([model.logits(values, rows.batch(items)) for items in parts]).clamp(-MOST_LOGIT, MOST_LOGIT)


# A model of the server's own that answers public questions, for methods whose server learns from the sites' logits.


class TaughtServerConfig(PublicOutputsConfig, frozen=True):
    """Options of the sites' models and of the server's."""

    trunk: BackboneName | None = Field(
        None, description="the server's backbone, one that needs no file; null is the job's"
    )
    server_tuning: TuningKind = Field("classifier", description="what of its backbone the server tunes")
    server_hidden: Width = Field(1024, description="width of the hidden layer of the server's answer head")
    server_epochs: Passes = Field(5, description="the server's passes over the public rows per round")
    server_rate: Rate = Field(1e-3, description="the server's learning rate, Adam")
    test_pairs: int = Field(
        128,
        ge=0,
        le=MOST_PAIRS,
        description="other public pictures, which test the server's model; 0 is no test",
    )


ServerConfig = TypeVar("ServerConfig", bound=TaughtServerConfig)


class AnsweringServer:
    """The server's model: a backbone with tuned parts and an answer head. It sees public rows only."""

    def __init__(self, backbone: Backbone, config: TaughtServerConfig, answers: tuple[str, ...], seed: int) -> None:
        self._backbone, self._config, self._answers = backbone, config, answers
        head = HeadConfig(
            len(answers), config.server_hidden, fusion=config.fusion, question=config.question_input, units=config.units
        )
        self._model = TunedModel(backbone, TuningConfig(config.server_tuning), head)
        self._generator = torch.Generator().manual_seed(seed)
        with one_thread():
            self.rows = self._rows(public_pairs(config.public_pairs, config.public))
        initial = self._model.initial(self._generator, self._generator)
        values = {name: value.requires_grad_() for name, value in initial.items()}
        self._part = Part(values, torch.optim.Adam(values.values(), config.server_rate))

    def logits(self) -> torch.Tensor:
        """The server's logits on all public rows, [rows, answers]."""
        with one_thread():
            return logits_on(self._model, self._part.values, self.rows)

    def learn(self, loss: OutputLoss) -> None:
        """Trains the server's model for one round, `server_epochs` passes over the public rows."""
        config = self._config
        with one_thread():
            learn(self._part, self._model, self.rows, loss, config.server_epochs, config.public_rows, self._generator)

    def score(self, held_out: PublicPairs) -> ServerScore:
        """The score on questions about pictures that the server did not learn from."""
        with one_thread():
            rows = self._rows(held_out)
            right = logits_on(self._model, self._part.values, rows).argmax(dim=1) == rows.answers
        return ServerScore(len(rows), int(right.sum()))

    def _rows(self, pairs: PublicPairs) -> FrozenRows:
        model, size = self._model, self._backbone.shape.image_size
        return FrozenRows.of_questions(model.cache, size, model.depth, pairs, self._answers)


class TaughtServer(PublicOutputs[ServerConfig]):
    """The server learns from the sites' logits, and the sites from the server's."""

    @abstractmethod
    def lesson_of_server(self, server: AnsweringServer, uploads: torch.Tensor) -> OutputLoss:
        """The server's lessons in a round, from the sites' logits [sites, rows, answers]."""

    def setup(self, site: Site) -> State:
        """See `Averaging.setup`. Raises `ConfigError` if the server's backbone knows the site's data set."""
        check_trunk(self.config.trunk, site)
        return super().setup(site)

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Rounds in which the server learns from the sites' logits and sends its own; then the tests of server and
        sites.
        """
        self.check_models(hub.sites)
        # The sites draw from the seed itself: the server must not draw the same numbers.
        backbone = server_backbone(self.config.trunk, hub.backbone)
        server = AnsweringServer(backbone, self.config, self.answers or (), hub.seed + 1)
        shared: Tensors = {}
        for number in hub.rounds(self.config.rounds):
            task, called = "start" if number == 1 else "train", self.drawn(hub, number, hub.sites)
            uploads = hub.collect(task, dict.fromkeys(called, shared))
            server.learn(self.lesson_of_server(server, stacked(uploads)))
            shared = arrays_of({LOGITS: server.logits()})
        config = self.config
        if config.test_pairs:
            hub.tested(server.score(held_out_pairs(config.test_pairs, config.public, config.public_pairs)))
        return hub.collect("evaluate")


def stacked(uploads: Mapping[str, Tensors]) -> torch.Tensor:
    """The sites' logits in order of their names, [sites, rows, answers]."""
    return torch.stack([torch.from_numpy(np.array(uploads[site][LOGITS])) for site in sorted(uploads)])


def server_backbone(trunk: str | None, backbone: str) -> Backbone:
    """The server's backbone. Raises `ConfigError` if the server has no file of it."""
    name = trunk or backbone
    if "@" in name:
        raise ConfigError("the server has no file of the job's backbone: give it a bundled one by 'trunk'")
    return load_backbone(name)


def check_trunk(trunk: str | None, site: Site) -> None:
    """Raises `ConfigError` if the server's own backbone knows the site's data set, which it would pass on."""
    if trunk is not None and has_seen(trunk, site.data.name):
        raise ConfigError("the server's 'trunk' has seen this site's data set, its test rows too: choose another")


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch on one thread, so that sums have the same order wherever the server runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
