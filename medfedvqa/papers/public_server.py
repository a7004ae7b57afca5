"""A model of the server's own that answers public questions, for methods whose server learns from the sites' logits."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from pydantic import Field

from audits import Tensors
from medfedvqa.bounds import MOST_PAIRS, BackboneName, Passes, Rate, Width
from medfedvqa.core.hub import Hub
from medfedvqa.core.method import State, arrays_of
from medfedvqa.data import PublicPairs, held_out_pairs, public_pairs
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation import ServerScore
from medfedvqa.models import Backbone, HeadConfig, TunedModel, TuningConfig, has_seen, load_backbone
from medfedvqa.models.tuning import Kind as TuningKind
from medfedvqa.papers.public_outputs import LOGITS, OutputLoss, PublicOutputs, PublicOutputsConfig, learn, logits_on
from medfedvqa.training import Part, Site
from medfedvqa.training.frozen_rows import FrozenRows


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


Config = TypeVar("Config", bound=TaughtServerConfig)


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


class TaughtServer(PublicOutputs[Config]):
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
