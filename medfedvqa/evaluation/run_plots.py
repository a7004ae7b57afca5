"""The pictures of a run. matplotlib is imported when the first one is drawn, not before."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from medfedvqa.atomic_files import write_whole
from medfedvqa.evaluation.accuracy_table import Entry, Results, answering
from medfedvqa.evaluation.history import History
from medfedvqa.evaluation.tsne import LEAST_POINTS, Floats, tsne

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "plots"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart by colour-blind readers, without the yellow that white paper swallows."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#8C8C8C"
LOOKS = {
    "majority": (GREY, "s"),
    "question_prior": ("#000000", "D"),
    "alone": (COLOURS[1], "^"),
    "alone_equal": (COLOURS[4], "v"),
    "released": (COLOURS[0], "o"),
    "finished": (COLOURS[2], "P"),
}
"""Colour and marker of each way of answering."""
NUMBERED_SITES = 12
"""Up to so many sites, the cells of a heat map have room for their number."""
CELL, WIDEST_MAP = 0.45, 7.0
"""Inches of a heat map's cell, and of a whole map."""
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "figure.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "savefig.dpi": 200,
}


def draw_plots(out: Path, results: Results, history: History) -> list[Path]:
    """Draw what the run has to show into the folder `out`/plots, and return the files written.

    Left out: accuracy by round with fewer than two rounds that tell one, reliability and prompts where
    the method has none, final accuracies before the evaluation.
    """
    import matplotlib

    written = []
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures(results, history):
            content = io.BytesIO()
            figure.savefig(content, format="png", metadata={"Software": None})
            written.append(write_whole(out / FOLDER / f"{name}.png", content.getvalue()))
    return written


def _figures(results: Results, history: History) -> "Iterator[tuple[str, Figure]]":
    if sum(bool(record.accuracy) for record in history.rounds) >= 2:
        yield "accuracy", accuracy_figure(history)
    if any(record.reliability for record in history.rounds):
        yield "reliability", reliability_figure(history)
    if _prompt_names(history):
        yield "prompts", prompts_figure(history)
    if results["average"]["accuracy"] is not None:
        yield "final", final_figure(results)


def accuracy_figure(history: History) -> "Figure":
    """Validation accuracy by round: a line per site, or grey lines and their mean if there are many sites."""
    from matplotlib.ticker import MaxNLocator

    figure = _figure(6.0, 3.8)
    axes = figure.subplots()
    curves = {site: _curve(history, site) for site in history.sites}
    if len(curves) <= len(COLOURS):
        for (site, (rounds, accuracy)), colour, marker in zip(curves.items(), COLOURS, MARKERS, strict=False):
            axes.plot(rounds, accuracy, color=colour, marker=marker, label=site, clip_on=False)
    else:
        for rounds, accuracy in curves.values():
            axes.plot(rounds, accuracy, color=GREY, linewidth=0.6, alpha=0.6)
        told = [record for record in history.rounds if record.accuracy]
        means = [100 * float(np.mean(list(record.accuracy.values()))) for record in told]
        axes.plot([record.round for record in told], means, color="black", label=f"mean of {len(curves)} sites")
    axes.set_xlabel("round")
    axes.set_ylabel("validation accuracy (%)")
    axes.set_xlim(0.5, history.rounds[-1].round + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="y")
    figure.legend(loc="outside upper center", ncols=4)
    return figure


def reliability_figure(history: History) -> "Figure":
    """The last reliability weights: one heat map per prompt tensor; what a site receives sums to 1."""
    last = [record for record in history.rounds if record.reliability][-1]
    sites = history.sites
    side = min(max(CELL * len(sites), 1.6), WIDEST_MAP)
    largest = max(np.max(rows) for rows in last.reliability.values())
    figure = _figure((side + 0.3) * len(last.reliability) + 2.0, side + 1.6)
    panels = figure.subplots(1, len(last.reliability), squeeze=False, sharey=True)[0]
    for axes, (name, rows) in zip(panels, last.reliability.items(), strict=True):
        picture = axes.imshow(
            np.ma.masked_where(np.eye(len(sites), dtype=bool), np.array(rows)), cmap="Blues", vmin=0, vmax=largest
        )
        axes.set_facecolor("#EFEFEF")
        axes.set_title(_title(name))
        axes.set_xlabel("giving site")
        axes.set_xticks(range(len(sites)), sites, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(sites)), sites)
        axes.tick_params(length=0, labelsize=min(9.0, 50 * side / len(sites)))
        axes.spines[:].set_visible(False)
        if len(sites) <= NUMBERED_SITES:
            _number_cells(axes, rows, 0.6 * largest)
    panels[0].set_ylabel("receiving site")
    figure.colorbar(picture, ax=list(panels), label=f"reliability in round {last.round}", aspect=14, shrink=0.9)
    return figure


def prompts_figure(history: History) -> "Figure":
    """t-SNE of the last prompts, one point per block and token: do blocks, sites, local and shared part?

    Drawn are as many sites as there are colours; a block has its number where its points lie together.
    """
    names = _prompt_names(history)
    sent = [site for site in history.sites if site in history.uploads]
    sites = sent[: len(COLOURS)]
    figure = _figure(4.2 * len(names), 4.9)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _prompt_panel(axes, history, sites, name)
    for site, colour in zip(sites, COLOURS, strict=False):
        axes.scatter([], [], s=24, marker="s", color=colour, label=site)
    for kind in ("local", "shared"):
        axes.scatter([], [], label=kind, **_look(kind, "#404040"))
    figure.legend(loc="outside lower center", ncols=5)
    which = f" of {len(sites)} of {len(sent)} sites" if len(sites) < len(sent) else ""
    figure.suptitle(f"Prompt tokens{which} by t-SNE; number: block, K: keys, V: values, where they keep together")
    return figure


def final_figure(results: Results) -> "Figure":
    """Test accuracy with its 95 % interval, by site and on average: the method against the baselines."""
    groups = [*(f"{site}\n(n = {entry['n']})" for site, entry in results["sites"].items()), "average"]
    rows = answering(results)
    figure = _figure(6.0, max(0.175 * len(rows), 0.5) * len(groups) + 1.2)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        heights = [group + 0.72 / len(rows) * (place - (len(rows) - 1) / 2) for group in range(len(groups))]
        colour, marker = LOOKS[row.name]
        _whiskers(axes, heights, row.entries, color=colour, marker=marker, label=row.label)
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"accuracy on the test rows of {results['data'] or 'each site'} (%), 95 % interval")
    axes.grid(axis="x")
    if results["seen_test_data"]:
        axes.set_title("the backbone was trained on this data set", fontsize=9)
    figure.legend(loc="outside upper center", ncols=4 if len(rows) <= 4 else 2)
    return figure


def _figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches, that belongs to no window and no global list."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _curve(history: History, site: str) -> tuple[list[int], list[float]]:
    """Rounds in which the site told its accuracy, and that accuracy in percent."""
    told = [record for record in history.rounds if site in record.accuracy]
    return [record.round for record in told], [100 * record.accuracy[site] for record in told]


def _number_cells(axes: "Axes", rows: list[list[float]], dark: float) -> None:
    """Write every weight into its cell, but for a site's own; in white above `dark`."""
    for row, weights in enumerate(rows):
        for column, weight in enumerate(weights):
            if row != column:
                colour = "white" if weight > dark else "black"
                axes.text(column, row, f"{weight:.2f}", ha="center", va="center", color=colour)


def _prompt_names(history: History) -> list[str]:
    """Tensors of shape [blocks, tokens, width] that the sites sent, with tokens enough for a picture."""
    first, sites = next(iter(history.uploads.values()), {}), len(history.uploads)
    return [name for name, array in first.items() if array.ndim == 3 and sites * array[..., 0].size >= LEAST_POINTS]


def _prompt_panel(axes: "Axes", history: History, sites: list[str], name: str) -> None:
    kinds = [("local", history.uploads), ("shared", history.shared)]
    drawn = [(kind, site, by_site[site][name]) for kind, by_site in kinds for site in sites if site in by_site]
    blocks, tokens, width = drawn[0][2].shape
    points = np.concatenate([array.reshape(-1, width) for _, _, array in drawn]).astype(np.float64)
    clouds = np.split(tsne(points).positions, len(drawn))
    for (kind, site, _), cloud in zip(drawn, clouds, strict=True):
        axes.scatter(*cloud.T, **_look(kind, COLOURS[sites.index(site)]))
    _number_blocks(axes, np.stack(clouds).reshape(len(drawn), blocks, tokens, 2))
    axes.set_title(f"{_title(name)}: {blocks} blocks of {tokens} tokens")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.08)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(GREY)


def _look(kind: str, colour: str) -> dict[str, Any]:
    """Local prompts are filled dots, shared ones hollow diamonds."""
    if kind == "local":
        return {"s": 14, "marker": "o", "color": colour, "linewidths": 0}
    return {"s": 14, "marker": "D", "edgecolors": colour, "facecolors": "none", "linewidths": 0.9}


def _number_blocks(axes: "Axes", clouds: Floats) -> None:
    """Number the blocks, from 1, where their points [prompts, blocks, tokens, 2] keep together.

    Keys (first half of the tokens) and values (second) have a label each where they part.
    """
    prompts, blocks, tokens, _ = clouds.shape
    points = clouds.reshape(-1, 2)
    places = np.arange(len(points)).reshape(prompts, blocks, tokens)
    for block in range(blocks):
        own = places[:, block]
        halves = {f"{block + 1}K": own[:, : tokens // 2].ravel(), f"{block + 1}V": own[:, tokens // 2 :].ravel()}
        if all(_together(points, half) for half in halves.values()):
            for label, half in halves.items():
                _write_above(axes, points[half], label)
        elif _together(points, own.ravel()):
            _write_above(axes, points[own.ravel()], str(block + 1))


def _together(points: Floats, own: NDArray[np.intp]) -> bool:
    """Whether three quarters of the points nearest to the middle of `own`, as many as those are, are among them."""
    middle = np.median(points[own], axis=0)
    nearest = np.argsort(np.linalg.norm(points - middle, axis=1))[: len(own)]
    return len(own) > 0 and bool(np.isin(nearest, own).mean() >= 0.75)


def _write_above(axes: "Axes", cloud: Floats, label: str) -> None:
    x, top = np.median(cloud[:, 0]), cloud[:, 1].max()
    above: dict[str, Any] = {"xytext": (0, 4), "textcoords": "offset points"}
    axes.annotate(label, (x, top), ha="center", va="bottom", fontsize=8, fontweight="bold", **above)


def _whiskers(axes: "Axes", heights: list[float], entries: Sequence[Entry], **look: Any) -> None:
    """A dot and its interval for each entry that has an accuracy."""
    shown = [(y, e["accuracy"], e["interval"]) for y, e in zip(heights, entries, strict=True) if e is not None]
    if not shown:
        return
    dots = [100 * accuracy for _, accuracy, _ in shown]
    below = [100 * (accuracy - low) for _, accuracy, (low, _) in shown]
    above = [100 * (high - accuracy) for _, accuracy, (_, high) in shown]
    axes.errorbar(dots, [y for y, _, _ in shown], xerr=[below, above], linestyle="none", elinewidth=1.2, **look)


def _title(name: str) -> str:
    """`prompt.image` as readers say it: image prompt."""
    return " ".join(reversed(name.split(".")))
