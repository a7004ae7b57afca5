"""Pictures of sites' rows, or of a trained system's results on them: `OUT/NAME-SITE.png`, for their owner only.

They show questions, answers and images of patients, so they stay on the machine that made them.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
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
from medfedvqa.figures import BLUE, COLOURS, GREEN, GREY, INK, MARKERS, VERMILION, encoded, new_figure, styled
from medfedvqa.models import PROMPT
from medfedvqa.papers.methods.fedp3 import FedP3
from medfedvqa.papers.methods.unicon import UniCon
from medfedvqa.research.benchmark.grid import Grid, data_of
from medfedvqa.research.benchmark.single_run import Machine, federated
from medfedvqa.research.reproduce.entries import Drawn, PaperPicture

# Drawings of rows with answers, of label distributions, and of prompts. Those of rows show patients' pictures.

Candidates = tuple[tuple[str, float], ...]
"""Answers with their shares in 0..1, the largest first."""
MOST_LABELS = 100
"""Answers in a label distribution, the most frequent ones over all sites, as in FedP3's Fig. 6."""
SEED = 0


@dataclass(frozen=True)
class DrawnRow:
    """The content of one row in a figure."""

    picture: torch.Tensor
    """float32 [1, size, size] in 0..1."""
    question: str
    answer: str
    """The right answer."""
    given: str = ""
    """The model's answer, or whether it is right; empty without a model."""
    candidates: Candidates = ()
    """Answers that a model is forgetting; empty for other pictures."""


@styled()
def draw_samples(samples: Sequence[DrawnRow]) -> bytes:
    """A PNG with a column for each row: picture, question, right answer, and a model's answer."""
    figure = new_figure(2.7 * len(samples), 3.9)
    for axes, sample in zip(figure.subplots(1, len(samples), squeeze=False)[0], samples, strict=True):
        axes.imshow(sample.picture[0].numpy(), cmap="gray", vmin=0, vmax=1)
        axes.set_title(fill(sample.question, 34), fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
        lines = [f"answer: {sample.answer}"]
        if sample.given:
            lines.append(f"model: {sample.given}")
        lines += [f"r = {share:.2f}  {answer}" for answer, share in sample.candidates]
        colour = GREEN if sample.given in ("right", sample.answer) else VERMILION if sample.given else INK
        axes.set_xlabel("\n".join(fill(line, 34) for line in lines), color=colour)
    return encoded(figure, "png")


@styled()
def draw_labels(counts: Mapping[str, Mapping[str, int]]) -> bytes:
    """A PNG of each site's share of training rows by answer; answers that only one site has are highlighted.

    `counts`: training rows by answer, by site.
    """
    totals: dict[str, int] = {}
    for by_answer in counts.values():
        for answer, count in by_answer.items():
            totals[answer] = totals.get(answer, 0) + count
    order = sorted(totals, key=lambda answer: -totals[answer])[:MOST_LABELS]
    holders = {answer: sum(by_answer.get(answer, 0) > 0 for by_answer in counts.values()) for answer in order}
    figure = new_figure(min(12.0, 3.0 + 0.14 * len(order)), 1.0 + 1.1 * len(counts))
    rows = figure.subplots(len(counts), 1, sharex=True, squeeze=False)
    for axes, (site, by_answer) in zip(rows[:, 0], counts.items(), strict=True):
        rows_of_site = max(1, sum(by_answer.values()))
        shares = [100 * by_answer.get(answer, 0) / rows_of_site for answer in order]
        axes.bar(range(len(order)), shares, color=[VERMILION if holders[answer] == 1 else BLUE for answer in order])
        axes.set_title(site)
        axes.set_ylabel("rows, %")
    named = order if len(order) <= 40 else []
    rows[-1, 0].set_xticks(range(len(named)), named, rotation=90, fontsize=6)
    rows[-1, 0].set_xlabel("answer, by rows of all sites; red: of this site alone")
    return encoded(figure, "png")


@styled()
def draw_prompts(prompts: Mapping[str, torch.Tensor]) -> bytes:
    """A PNG of a t-SNE of prompts' tokens, [blocks, length, width] by name: colours show names, numbers blocks.

    Source: L. van der Maaten and G. Hinton, 2008, as scikit-learn has it.
    """
    from sklearn.manifold import TSNE

    tokens = torch.cat([prompt.flatten(0, 1) for prompt in prompts.values()]).float().numpy()
    perplexity = min(30.0, (len(tokens) - 1) / 3)
    places = TSNE(perplexity=perplexity, init="pca", random_state=SEED).fit_transform(tokens)
    figure = new_figure(5.4, 4.4)
    axes = figure.subplots()
    start = 0
    for number, (name, prompt) in enumerate(prompts.items()):
        blocks, length, _ = prompt.shape
        of_site = places[start : start + blocks * length]
        start += blocks * length
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
        axes.scatter(of_site[:, 0], of_site[:, 1], color=colour, marker=marker, s=14, label=name)
        for block in range(blocks):
            x, y = of_site[block * length : (block + 1) * length].mean(axis=0)
            axes.annotate(str(block + 1), (x, y), color=GREY, fontsize=7)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("t-SNE of prompts' tokens; numbers are blocks")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    return encoded(figure, "png")


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
