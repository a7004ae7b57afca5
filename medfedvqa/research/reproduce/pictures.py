"""Pictures of sites' rows, or of a trained system's results on them: `OUT/NAME-SITE.png`, for their owner only.

They show questions, answers and images of patients, so they stay on the machine that made them.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.core import Method, Site, State
from medfedvqa.core.method import TESTED
from medfedvqa.core.scores import RIGHT
from medfedvqa.data import Examples, SiteData
from medfedvqa.devices import in_turn
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.picture_maps import draw_attention, draw_similarity
from medfedvqa.models import PROMPT
from medfedvqa.papers.methods.fedp3 import FedP3
from medfedvqa.papers.methods.unicon import UniCon
from medfedvqa.research.benchmark.grid import Grid, data_of
from medfedvqa.research.benchmark.single_run import Machine, federated
from medfedvqa.research.reproduce.drawings import DrawnRow, draw_labels, draw_prompts, draw_samples
from medfedvqa.research.reproduce.entries import Drawn, PaperPicture

SHOWN, CANDIDATES, COMPARED, SIDE = 4, 4, 64, 256
"""Rows in a picture of samples, forgotten answers beside each, rows of a similarity matrix, a picture's pixels."""


@dataclass(frozen=True)
class Trained:
    """Sites of one job, with their data and, after training, their states."""

    data: Mapping[str, SiteData]
    method: Method[Any] | None = None
    sites: Mapping[str, Site] | None = None
    states: Mapping[str, State] | None = None

    def each(self) -> Iterator[tuple[Method[Any], Site, State]]:
        """Yields the method, the site and the site's state, for every site."""
        assert self.method and self.sites and self.states is not None
        for name, site in self.sites.items():
            yield self.method, site, self.states[name]


def draw(protocol: PaperPicture, grid: Grid) -> list[Path]:
    """Trains the grid's one system, if the picture needs one, and draws. Returns the files.

    Raises `ConfigError` or `DataError`.
    """
    trained = _trained(grid) if protocol.system else Trained(data_of(grid, 0))
    paths = []
    for name, content in PICTURES[protocol.draws](trained):
        paths.append(write_whole(grid.out / f"{protocol.draws}-{name}.png", content, PRIVATE))
    return paths


def _trained(grid: Grid) -> Trained:
    """The first seed's run of the grid's system, whose states this process keeps."""
    (system,), data = grid.systems, data_of(grid, 0)
    job, folder = grid.job(system, 0), grid.out / "run"
    if folder.exists():
        shutil.rmtree(folder)
    machine = Machine(in_turn(grid.devices, 0), grid.store, grid.files)
    _, states = federated(job, grid.root, folder, data, machine)
    backbone = machine.backbone(job)
    sites = {name: Site(name, each, backbone, machine.device, job.seed) for name, each in data.items()}
    return Trained(data, job.build(), sites, states)


def _first(rows: Examples, most: int) -> list[int]:
    """The first rows with a listed answer; those that share no picture and no question come first."""
    listed = (rows.answers >= 0).nonzero().flatten().tolist()
    taken: set[object] = set()
    distinct = []
    for row in listed:
        facts = {rows.questions[row], int(rows.pictures[row])}
        if not facts & taken:
            distinct.append(row)
            taken |= facts
    return [*distinct, *(row for row in listed if row not in distinct)][:most]


def _labels(trained: Trained) -> Iterator[tuple[str, bytes]]:
    counts = {}
    for site, data in trained.data.items():
        answers = data.train.answered.answers
        numbers = torch.bincount(answers, minlength=len(data.answers)).tolist()
        counts[site] = dict(zip(data.answers, numbers, strict=True))
    yield "all", draw_labels(counts)


def _samples(trained: Trained) -> Iterator[tuple[str, bytes]]:
    """Test rows, with a trained system's answers, or whether these are right if its sites keep no answer head."""
    if trained.method is None:
        for name, data in trained.data.items():
            yield name, draw_samples([_sample(data, data.test, row) for row in _first(data.test, SHOWN)])
        return
    for method, site, state in trained.each():
        test = site.data.test
        places = _first(test, SHOWN)
        given = _given(method, site, state, test.chosen(torch.tensor(places)), state[RIGHT][places].tolist())
        pairs = zip(places, given, strict=True)
        yield site.name, draw_samples([_sample(site.data, test, row, given=answer) for row, answer in pairs])


def _sample(data: SiteData, rows: Examples, row: int, **more: Any) -> DrawnRow:
    picture = data.pictures.read(int(rows.pictures[row]), SIDE)
    return DrawnRow(picture, rows.questions[row], data.answers[int(rows.answers[row])], **more)


def _given(method: Method[Any], site: Site, state: State, rows: Examples, right: list[bool]) -> list[str]:
    try:
        model = method.answering(site, state)
    except ConfigError:
        return ["right" if each else "wrong" for each in right]
    return [model.answers[place] for place in model.probabilities(site, rows).argmax(dim=1).tolist()]


def _forgotten(trained: Trained) -> Iterator[tuple[str, bytes]]:
    """Training rows of each site, with the answers of largest r (`FedP3.forgetting`)."""
    for method, site, state in trained.each():
        if not isinstance(method, FedP3):
            raise ConfigError("forgotten answers are those of FedP3's filter: choose a system of it")
        train, space = site.data.train, method.answers or site.data.answers
        places = _first(train, SHOWN)
        best = method.forgetting(site, state, train.chosen(torch.tensor(places))).topk(CANDIDATES, dim=1)
        samples = []
        for row, answers, shares in zip(places, best.indices.tolist(), best.values.tolist(), strict=True):
            candidates = tuple((space[answer], share) for answer, share in zip(answers, shares, strict=True))
            samples.append(_sample(site.data, train, row, candidates=candidates))
        yield site.name, draw_samples(samples)


def _prompts(trained: Trained) -> Iterator[tuple[str, bytes]]:
    """The prompt tokens of every block: of all sites, and of one site with the shared prompts it received."""
    local = {site.name: state["values"] for _, site, state in trained.each()}
    target = "abdomen" if "abdomen" in local else next(iter(local))
    shared = (trained.states or {})[target][TESTED]
    for name in (name for name in local[target] if name.startswith(PROMPT)):
        tower = name.removeprefix(PROMPT)
        yield f"{tower}-sites", draw_prompts({site: values[name].cpu() for site, values in local.items()})
        pair = {f"{target}, local": local[target][name].cpu(), f"{target}, shared": shared[name].cpu()}
        yield f"{tower}-shared", draw_prompts(pair)


def _similarity(trained: Trained) -> Iterator[tuple[str, bytes]]:
    for method, site, state in trained.each():
        if not isinstance(method, UniCon):
            raise ConfigError("only UniCon has similarities of rows and answers: choose one of its systems")
        answered = site.data.test.answered
        rows = answered.chosen(torch.arange(min(COMPARED, len(answered))))
        before, after = method.similarity(site, state, rows)
        yield site.name, draw_similarity(before.float().cpu(), after.float().cpu())


def _attention(trained: Trained) -> Iterator[tuple[str, bytes]]:
    for method, site, state in trained.each():
        rows = site.data.test.chosen(torch.tensor(_first(site.data.test, 1)))
        picture = site.data.pictures.read(int(rows.pictures[0]), site.backbone.shape.image_size)
        weights = method.attention(site, state, rows)[0].float().cpu()
        yield site.name, draw_attention(picture, weights, rows.questions[0])


PICTURES: Mapping[Drawn, Callable[[Trained], Iterator[tuple[str, bytes]]]] = {
    "labels": _labels,
    "samples": _samples,
    "forgotten": _forgotten,
    "prompts": _prompts,
    "similarity": _similarity,
    "attention": _attention,
}
"""The drawing functions by kind of picture: each returns file contents by name."""
