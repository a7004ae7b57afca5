"""A hub over sites in the test's own process, and a site in float64: to hold split training against one graph."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tiny_clip import TINY

from medfedvqa.core import Method, Site, Tensors
from medfedvqa.data import Examples, Pictures, Row, SiteData, Source
from medfedvqa.models import load_backbone
from privacy import mean


class Together:
    """A hub over sites in this test, without gate or wire, that averages in clear and hands the mean out itself."""

    seed = 0

    def __init__(self, method: Method[Any], sites: Mapping[str, Site]) -> None:
        self.method, self._sites, self.sites = method, sites, tuple(sites)
        self.states = {name: method.setup(site) for name, site in sites.items()}
        self._exchange = method.exchange(next(iter(sites.values())).backbone.shape)
        self._round, self._mean = 0, {}

    def rounds(self, count: int) -> Iterator[int]:
        for self._round in range(1, count + 1):
            yield self._round

    def collect(self, task: str, down: Mapping[str, Tensors] | None = None) -> dict[str, Tensors]:
        found, spec = {}, self._exchange.task(task)
        for name, site in self._sites.items():
            message = {**(down or {}).get(name, {}), **(self._mean if task in ("forward", "evaluate") else {})}
            self.states[name], found[name] = self.method.handle(spec, site, self.states[name], message, self._round)
        return found

    def mean(self, task: str, down: Mapping[str, Tensors] | None = None, weight: str | None = None) -> Tensors:
        self._mean = mean(self.collect(task, down))
        return {}


def drawn(row: Row, size: int) -> torch.Tensor:
    """A random picture in float64."""
    return torch.rand(1, size, size, generator=torch.Generator().manual_seed(row.index), dtype=torch.float64)


def pictures(count: int) -> Pictures:
    named = (Row(n, "all", "train", True, "is it?", "no", f"p{n}", Path(str(n))) for n in range(count))
    return Pictures(Source(row, drawn, drawn) for row in named)


@contextmanager
def double_site(tiny_backbone: Path) -> Iterator[Site]:
    """A site with eight rows, all in float64."""
    backbone = load_backbone(TINY, {TINY: tiny_backbone})
    backbone.clip.double()
    rows = torch.arange(8)
    examples = Examples(("is it?", "where?") * 4, rows % 3, rows, rows)
    answers, patients = ("left", "no", "yes"), tuple(f"p{row}" for row in range(8))
    data = SiteData("drawn", "all", answers, examples, examples, examples, pictures(8), frozenset(), patients)
    torch.set_default_dtype(torch.float64)
    yield Site("one", data, backbone, "cpu", 0)
    torch.set_default_dtype(torch.float32)
