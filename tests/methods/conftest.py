"""Small sites in memory, and a federation of them that goes through the real server's hub."""

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from medfedvqa.data import Row, Split, VQAData, build_site
from medfedvqa.federation.hub import Reply, ServerHub
from medfedvqa.methods import Method, Site, State, Tensors
from medfedvqa.models import Backbone
from privacy import RepeatableRandomness

ASKED = (("is it bright", "yes"), ("is it dark", "no"), ("which side", "left"), ("what is this", "something odd"))
PARTS = ("train", "train", "train", "validate", "test", "test")


def drawn(row: Row, size: int) -> torch.Tensor:
    """The picture that a row names by its seed."""
    return torch.rand(1, size, size, generator=torch.Generator().manual_seed(int(row.image.name)))


def small_site(backbone: Backbone, name: str, questions: int = 3, seed: int = 0) -> Site:
    """A site with three training patients, of whom the first has twice as many rows."""
    number = sum(map(ord, name))
    rows = [
        Row(index, "chest", part, True, question, answer, f"{name}{patient}", Path(str(1000 * number + patient)))
        for index, (patient, part) in enumerate(enumerate(PARTS))
        for question, answer in (ASKED[:questions] * 2)[: questions * (2 if patient == 0 else 1)]
    ]
    data = build_site(VQAData("small", ("chest",), rows, drawn), "chest", Split())
    return Site(name, data, backbone, "cpu", seed, RepeatableRandomness(number))


@pytest.fixture(scope="session")
def single(backbone: Backbone) -> Backbone:
    """The tiny CLIP in float32, as sites have it."""
    return replace(backbone, clip=copy.deepcopy(backbone.clip).float())


@pytest.fixture
def site(single: Backbone) -> Callable[..., Site]:
    """Makes a small site of this name, on the tiny CLIP or another backbone."""

    def make(name: str = "here", backbone: Backbone = single, **options: int) -> Site:
        return small_site(backbone, name, **options)

    return make


@dataclass
class Federation:
    """A method's server loop over sites in this process, without gates; remembers all that travelled."""

    method: Method
    sites: dict[str, Site]
    states: dict[str, State] = field(default_factory=dict)
    sent: list[tuple[str, int, str, Tensors]] = field(default_factory=list)
    """Task, round, site, upload."""
    received: list[tuple[str, int, str, Tensors]] = field(default_factory=list)
    forgetful: bool = False
    """Whether each task runs in a process of its own, with nothing but the saved state."""

    def run(self) -> dict[str, Tensors]:
        return self.method.serve(ServerHub(tuple(self.sites), self._call))

    def uploads(self, task: str, round: int) -> dict[str, Tensors]:
        return {site: tensors for name, number, site, tensors in self.sent if (name, number) == (task, round)}

    def _call(self, task, round, messages, answered, excused=None):
        return {name: Reply(self._answer(task, round, name, down), 0.0) for name, down in messages.items()}

    def _answer(self, task: str, round: int, name: str, down: Tensors) -> Tensors:
        site = self.sites[name]
        state = self.states.get(name) or self.method.setup(site)
        if self.forgetful:
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            state, site = torch.load(file, weights_only=True), replace(site, _derived={})
        spec = self.method.exchange(site.backbone.shape).task(task)
        self.received.append((task, round, name, {k: v.copy() for k, v in down.items()}))
        self.states[name], reply = self.method.handle(spec, site, state, down, round)
        self.sent.append((task, round, name, {k: v.copy() for k, v in reply.items()}))
        return reply


@pytest.fixture(scope="session")
def federation() -> type[Federation]:
    return Federation


SMALL = {"rounds": 2, "local_epochs": 1, "batch_rows": 6, "reduction": 4, "rank": 2, "hidden": 8, "learning_rate": 0.01}


@pytest.fixture(scope="session")
def small() -> dict[str, object]:
    """Options of every averaging method for a job of a moment."""
    return dict(SMALL)
