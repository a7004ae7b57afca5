"""A federation of small sites in memory that goes through the real server's hub, and quick methods."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_clip import TINY

from medfedvqa.core import Method, Site, State, Tensors, create
from medfedvqa.data import Split, load_site
from medfedvqa.federation.hub import Reply, ServerHub
from medfedvqa.models import load_backbone
from privacy import RepeatableRandomness


@dataclass
class Federation:
    """A method's server loop over sites in this process, without gates; remembers all that travelled."""

    method: Method
    sites: dict[str, Site]
    states: dict[str, State] = field(default_factory=dict)
    sent: list[tuple[str, int, str, Tensors]] = field(default_factory=list)
    """Task, round, site, upload."""
    received: list[tuple[str, int, str, Tensors]] = field(default_factory=list)
    hub: ServerHub | None = None
    """The server's hub, once the job runs."""
    forgetful: bool = False
    """Whether each task runs in a process of its own, with nothing but the saved state."""

    def run(self) -> dict[str, Tensors]:
        exchange = self.method.exchange(next(iter(self.sites.values())).backbone.shape)
        self.hub = ServerHub(tuple(self.sites), self._call, exchange)
        return self.method.serve(self.hub)

    def uploads(self, task: str, round: int) -> dict[str, Tensors]:
        return {site: tensors for name, number, site, tensors in self.sent if (name, number) == (task, round)}

    def _call(self, call):
        return {
            name: Reply(self._answer(call.task, call.round, name, down), 0.0) for name, down in call.messages.items()
        }

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


QUICK = {
    "rounds": 3, "local_epochs": 2, "local_unit": "batches", "batch_rows": 12, "tuning": "adapter", "blocks": 1,
    "hidden": 16, "learning_rate": 1e-3,
}  # fmt: skip

Rounds = Callable[..., list[Tensors]]


@pytest.fixture(scope="session")
def phantom_site(tiny_backbone: Path) -> Site:
    """A phantom site of twelve patients, on a very small random backbone."""
    backbone = load_backbone(TINY, {TINY: tiny_backbone}, "cpu")
    data = load_site("phantom", None, "site-001", Split(), 0)
    return Site("site-001", data, backbone, "cpu", 0, RepeatableRandomness(0))


@pytest.fixture(scope="session")
def small_method() -> Callable[..., Method]:
    """A method with options that train in a moment."""

    def make(name: str, **options: object) -> Method:
        return create(name, {**QUICK, **options})

    return make


@pytest.fixture(scope="session")
def rounds(phantom_site: Site, small_method: Callable[..., Method]) -> Rounds:
    """A site's uploads over some rounds, where the other sites' mean is always a little larger than its own."""

    def run(name: str, count: int = 2, **options: object) -> list[Tensors]:
        method, received, uploads = small_method(name, **options), {}, []
        state = method.setup(phantom_site)
        for number in range(1, count + 1):
            handler = method.start if number == 1 else method.train
            state, reply = handler(phantom_site, state, received, number)
            reply.pop("train_rows", None)
            received = {name: np.float32(1.02) * array for name, array in reply.items()}
            uploads.append(reply)
        return uploads

    return run


@pytest.fixture
def logits() -> tuple[torch.Tensor, torch.Tensor]:
    """A teacher's and a student's, float64 [5, 7]."""
    generator = torch.Generator().manual_seed(5)
    return tuple(2 * torch.randn(5, 7, generator=generator, dtype=torch.float64) for _ in range(2))
