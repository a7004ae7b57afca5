"""One small site whose tasks a test runs by hand, without engine and gate."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from medfedvqa.data import Split, load_site
from medfedvqa.methods import Method, Site, Tensors, create
from medfedvqa.models import load_backbone
from privacy import RepeatableRandomness

SMALL = {
    "rounds": 3, "local_epochs": 2, "local_unit": "batches", "batch_rows": 12, "tuning": "adapter", "blocks": 1,
    "hidden": 16, "learning_rate": 1e-3,
}  # fmt: skip

Rounds = Callable[..., list[Tensors]]


@pytest.fixture(scope="session")
def site(random_backbone: Path) -> Site:
    """A phantom site of twelve patients, on a random backbone."""
    backbone = load_backbone("medclip@random", {"medclip@random": random_backbone}, "cpu")
    data = load_site("phantom", None, "site-001", Split(), 0)
    return Site("site-001", data, backbone, "cpu", 0, RepeatableRandomness(0))


@pytest.fixture(scope="session")
def small() -> Callable[..., Method]:
    """A method with options that train in a moment."""

    def make(name: str, **options: object) -> Method:
        return create(name, {**SMALL, **options})

    return make


@pytest.fixture(scope="session")
def rounds(site: Site, small: Callable[..., Method]) -> Rounds:
    """A site's uploads over some rounds, where the other sites' mean is always a little larger than its own."""

    def run(name: str, count: int = 2, **options: object) -> list[Tensors]:
        method, received, uploads = small(name, **options), {}, []
        state = method.setup(site)
        for number in range(1, count + 1):
            handler = method.start if number == 1 else method.train
            state, reply = handler(site, state, received, number)
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
