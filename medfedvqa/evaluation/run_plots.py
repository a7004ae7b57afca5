"""The plots of a run. matplotlib is imported with the first plot."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from medfedvqa.atomic_files import write_whole
from medfedvqa.evaluation.accuracy_table import Entry, Results, Statistics, answering, categories_of, rows_of
from medfedvqa.evaluation.history import History, tested_weights
from medfedvqa.figures import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PURPLE,
    VERMILION,
    encoded,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "plots"
LOOKS = {
    "majority": (GREY, "s"),
    "question_prior": (BLACK, "D"),
    "alone": (VERMILION, "^"),
    "alone_equal": (ORANGE, "v"),
    "released": (BLUE, "o"),
    "finished": (GREEN, "P"),
    "kept_accuracy": (PURPLE, "X"),
}
"""The colour and marker of each way of answering."""
BASELINES = {"majority": ":", "question_prior": "--", "alone": "-."}
"""The baselines in the plot of accuracy by round, and their line styles."""
SMOOTHED_PART = 10
"""Accuracy by round is a running mean over this part of the rounds: a tenth."""
NUMBERED_SITES = 12
"""The most sites with which points and the cells of a heat map have labels."""
CELL, WIDEST_MAP = 0.45, 7.0
"""The width of a heat map's cell and the largest width of a map, inches."""


@styled()
def draw_plots(out: Path, results: Results, history: History) -> list[Path]:
    """Draws the plots of a run into the folder `out`/plots, and returns their files.

    It leaves out accuracy by round if fewer than two rounds have one, reliability and prompts if the method has none,
    and final accuracies before the evaluation. Under differential privacy sites keep their accuracies, so that traffic
    may be the only plot.
    """
    return [
        write_whole(out / FOLDER / f"{name}.png", encoded(figure, "png")) for name, figure in _figures(results, history)
    ]


def _figures(results: Results, history: History) -> "Iterator[tuple[str, Figure]]":
    if sum(bool(record.accuracy) for record in history.rounds) >= 2:
        yield "accuracy", accuracy_figure(results, history)
    if any(record.reliability for record in history.rounds):
        yield "reliability", reliability_figure(history)
    if _prompt_names(history):
        yield "prompts", prompts_figure(history)
    if results["average"]["accuracy"] is not None:
        yield "final", final_figure(results)
        if results["average"]["baselines"]["alone"]:
            yield "together", together_figure(results)
    if results.get("statistics"):
        yield "statistics", statistics_figure(results["statistics"])
    if any(record.bytes_up for record in history.rounds):
        yield "traffic", traffic_figure(history)


def accuracy_figure(results: Results, history: History) -> "Figure":
    """Validation accuracy by round, as running means of each site (thin) and of all sites.

    It also shows averages on the test rows: the baselines as lines, the method as a dot with its 95 % interval.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    curves = {site: _curve(history, site) for site in history.sites}
    window = max(len(history.rounds) // SMOOTHED_PART, 1)
    few = len(curves) <= len(COLOURS)
    for place, (site, (rounds, accuracy)) in enumerate(curves.items()):
        look: dict[str, Any] = {"color": COLOURS[place], "label": site} if few else {"color": GREY}
        axes.plot(rounds, running_mean(accuracy, window), linewidth=0.9, alpha=0.7, **look)
    records = [record for record in history.rounds if record.accuracy]
    means = running_mean([100 * float(np.mean(list(record.accuracy.values()))) for record in records], window)
    axes.plot(
        [record.round for record in records], means, color=BLACK, linewidth=2.4, label=f"mean of {len(curves)} sites"
    )
    _baselines(axes, results, history.rounds[-1].round)
    axes.set_xlabel("round" if window == 1 else f"round; running mean over {window} rounds")
    axes.set_ylabel("validation accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="y")
    figure.legend(loc="outside upper center", ncols=4, fontsize=8)
    return figure


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The means of at most `window` values, each value and those before it."""
    return [float(np.mean(values[max(end - window, 0) : end])) for end in range(1, len(values) + 1)]


def _baselines(axes: "Axes", results: Results, last: int) -> None:
    """Adds the averages over the sites' test rows, after the evaluation."""
    average = results["average"]
    if average["accuracy"] is None:
        return
    for row in answering(results):
        entry = row.entries[-1]
        if row.name in BASELINES and entry is not None:
            label = f"{row.label} (test)"
            axes.axhline(100 * entry["accuracy"], color=LOOKS[row.name][0], linestyle=BASELINES[row.name], label=label)
    look = {"color": BLUE, "marker": "o", "label": f"{results['method']} (test)"}
    _whiskers(axes, [1.02 * last + 0.1], [average], upright=True, **look)


def reliability_figure(history: History) -> "Figure":
    """The last reliability weights, as the mean over the prompts. The weights that a site receives sum to 1.

    The colour scale spans the smallest to the largest weight, so that small differences show.
    """
    last = [record for record in history.rounds if record.reliability][-1]
    sites = history.sites
    diagonal = np.eye(len(sites), dtype=bool)
    weights = np.ma.masked_where(diagonal, np.mean(list(last.reliability.values()), axis=0))
    side = min(max(CELL * len(sites), 1.6), WIDEST_MAP)
    figure = new_figure(side + 2.3, side + 1.6)
    axes = figure.subplots()
    picture = axes.imshow(weights, cmap="cividis")
    axes.set_facecolor("#EFEFEF")
    test = tested_weights(history)
    axes.set_title("\n".join([f"reliability in round {last.round}", *([test.verdict] if test else [])]), fontsize=9)
    axes.set_xlabel("giving site")
    axes.set_ylabel("receiving site")
    axes.set_xticks(range(len(sites)), sites, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(sites)), sites)
    axes.tick_params(length=0, labelsize=min(9.0, 50 * side / len(sites)))
    axes.spines[:].set_visible(False)
    if len(sites) <= NUMBERED_SITES:
        _number_cells(axes, weights)
    equal = f"; equal shares: {1 / (len(sites) - 1):.2f}" if len(sites) > 1 else ""
    figure.colorbar(picture, ax=axes, label=f"weight{equal}", aspect=14, shrink=0.9)
    return figure


def prompts_figure(history: History) -> "Figure":
    """Principal components of the last prompts: one point per site, a line from its local to its shared prompt."""
    names = _prompt_names(history)
    sites = [site for site in history.sites if site in history.uploads]
    figure = new_figure(4.2 * len(names), 4.4)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _prompt_panel(axes, history, sites, name)
    for kind in ("local", "shared"):
        axes.scatter([], [], label=f"{kind} prompt", **_look(kind, "#404040", MARKERS[0]))
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def final_figure(results: Results) -> "Figure":
    """Test accuracy with its 95 % interval, by site and on average: the method against the baselines."""
    groups = [*(f"{site}\n({rows_of(results, site) or 'no results'})" for site in results["sites"]), "average"]
    rows = answering(results)
    figure = new_figure(6.0, max(0.175 * len(rows), 0.5) * len(groups) + 1.2)
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


def together_figure(results: Results) -> "Figure":
    """Each site's accuracy by the model that it trained alone and by the federation's, and the bytes that it sent."""
    sites = {name: site for name, site in results["sites"].items() if site["baselines"]["alone"]}
    figure = new_figure(7.2, 0.34 * len(sites) + 1.3)
    accuracies, traffic = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
    ways = {"alone": [site["baselines"]["alone"] for site in sites.values()], "together": [*sites.values()]}
    shares = {name: [100 * entry["accuracy"] for entry in entries] for name, entries in ways.items()}
    accuracies.hlines(range(len(sites)), *shares.values(), color=GREY, zorder=1)
    for name, (colour, marker) in {"alone": LOOKS["alone"], "together": LOOKS["released"]}.items():
        accuracies.scatter(shares[name], range(len(sites)), color=colour, marker=marker, label=name, zorder=2)
    accuracies.set_yticks(range(len(sites)), [f"{name} ({rows_of(results, name)})" for name in sites])
    accuracies.set_ylim(len(sites) - 0.5, -0.5)
    accuracies.set_xlabel("test rows right, %")
    traffic.barh(range(len(sites)), [site["bytes"]["up"] / 1e6 for site in sites.values()], 0.6, color=BLUE)
    traffic.set_xlabel("sent, MB")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def statistics_figure(statistics: Statistics) -> "Figure":
    """Numbers of patients by category and site, a panel for each table, without empty categories."""
    sites, tables = list(statistics), categories_of(statistics)
    heights = [max(len(names), 1) for names in tables.values()]
    figure = new_figure(min(CELL * len(sites), WIDEST_MAP) + 2.8, 0.24 * sum(heights) + 0.5 * len(tables) + 1.0)
    panels = figure.subplots(len(tables), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (table, names) in zip(panels, tables.items(), strict=True):
        counts = np.array([[statistics[site][table][name] for site in sites] for name in names]).reshape(-1, len(sites))
        axes.imshow(counts, cmap="cividis", aspect="auto", vmin=0)
        axes.set_yticks(range(len(names)), names)
        axes.set_title(f"patients by {table.replace('_', ' ')}", fontsize=9)
        axes.tick_params(length=0, labelsize=7)
        axes.spines[:].set_visible(False)
        if len(sites) <= NUMBERED_SITES and len(names):
            _number_cells(axes, counts, whole=True)
    panels[-1].set_xticks(range(len(sites)), sites, rotation=45, ha="right", rotation_mode="anchor")
    return figure


def traffic_figure(history: History) -> "Figure":
    """The traffic that all sites together sent and received in each round, in KiB."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(6.4, 3.0)
    axes = figure.subplots()
    rounds = [record.round for record in history.rounds]
    for name, shift, colour, amounts in (
        ("sent by the sites", -0.2, BLUE, [record.bytes_up for record in history.rounds]),
        ("received by the sites", 0.2, ORANGE, [record.bytes_down for record in history.rounds]),
    ):
        heights = [sum(by_site.values()) / 1024 for by_site in amounts]
        axes.bar([number + shift for number in rounds], heights, 0.4, color=colour, label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel("KiB of tensors")
    axes.grid(axis="y")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def _curve(history: History, site: str) -> tuple[list[int], list[float]]:
    """The rounds in which the site released its accuracy, and the accuracies in percent."""
    records = [record for record in history.rounds if site in record.accuracy]
    return [record.round for record in records], [100 * record.accuracy[site] for record in records]


def _number_cells(axes: "Axes", values: Any, whole: bool = False) -> None:
    """Writes each value into its cell, in black if the cell is bright: weights off the diagonal, or whole counts."""
    middle = (values.min() + values.max()) / 2
    for (row, column), value in np.ndenumerate(values):
        if whole or row != column:
            colour, text = "black" if value > middle else "white", f"{value:.0f}" if whole else f"{value:.2f}"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7 if whole else None)


def _prompt_names(history: History) -> list[str]:
    """The names of tensors [blocks, tokens, width] that at least two sites sent."""
    first = next(iter(history.uploads.values()), {})
    return [name for name, array in first.items() if array.ndim == 3 and len(history.uploads) > 1]


def _prompt_panel(axes: "Axes", history: History, sites: list[str], name: str) -> None:
    kinds = (("local", history.uploads), ("shared", history.shared))
    prompts = [(kind, site, by_site[site][name]) for kind, by_site in kinds for site in sites if site in by_site]
    positions, shares = principal_components(np.stack([array.ravel() for *_, array in prompts]).astype(np.float64))
    by_site: dict[str, list[NDArray[np.float64]]] = {site: [] for site in sites}
    for (kind, site, _), position in zip(prompts, positions, strict=True):
        place = sites.index(site)
        look = _look(kind, COLOURS[place % len(COLOURS)], MARKERS[place // len(COLOURS) % len(MARKERS)])
        axes.scatter(*position, zorder=3, **look)
        by_site[site].append(position)
    for place, (site, points) in enumerate(by_site.items()):
        axes.plot(*np.transpose(points), color=COLOURS[place % len(COLOURS)], linewidth=0.8, alpha=0.6)
        if len(sites) <= NUMBERED_SITES:
            axes.annotate(site, tuple(points[0]), (6, 4), textcoords="offset points", fontsize=8)
    axes.set_title(" ".join(reversed(name.split("."))))  # `prompt.image` is the image prompt
    axes.set_xlabel(f"first component ({100 * shares[0]:.0f} % of the variance)")
    axes.set_ylabel(f"second component ({100 * shares[1]:.0f} %)")
    axes.margins(0.15)
    axes.grid()


def principal_components(points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first two principal components of points [points, width]: positions [points, 2] and shares of the variance.

    The largest coordinate of a component is positive. Equal points lie at 0.
    """
    left, sizes, axes = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    signs = np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)).ravel()
    variance = sizes**2
    return (left * sizes * signs)[:, :2], variance[:2] / (variance.sum() or 1.0)


def _look(kind: str, colour: str, marker: str) -> dict[str, Any]:
    """The marker of a prompt: filled for a local prompt, hollow for a shared one."""
    return {"s": 36, "marker": marker, "edgecolors": colour, "facecolors": colour if kind == "local" else "none"}


def _whiskers(axes: "Axes", places: list[float], entries: Sequence[Entry], upright: bool = False, **look: Any) -> None:
    """Draws a dot and its interval for each entry with an accuracy."""
    present = ((place, e) for place, e in zip(places, entries, strict=True) if e and e["accuracy"] is not None)
    points = [(place, e["accuracy"], e["interval"]) for place, e in present]
    if not points:
        return
    places = [place for place, _, _ in points]
    dots = [100 * accuracy for _, accuracy, _ in points]
    ends = [[100 * (accuracy - low) for _, accuracy, (low, _) in points]]
    ends += [[100 * (high - accuracy) for _, accuracy, (_, high) in points]]
    where: dict[str, Any] = (
        {"x": places, "y": dots, "yerr": ends} if upright else {"x": dots, "y": places, "xerr": ends}
    )
    axes.errorbar(**where, linestyle="none", elinewidth=1.2, **look)
