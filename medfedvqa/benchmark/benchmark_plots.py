"""Plots of every system's accuracy by round, and by number of sites."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from medfedvqa.atomic_files import write_whole
from medfedvqa.benchmark.outcome import RunOutcome
from medfedvqa.figures import BLUE, COLOURS, GREY, MARKERS, new_figure, styled, svg_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curves = Sequence[Sequence[float]]
"""A curve for each seed, in per cent."""
SHARE = "questions right, %"
COLUMNS = 5
"""Panels in a line of a plot that has one for each system."""


def draw_convergence(out: Path, outcomes: Mapping[str, Sequence[RunOutcome]]) -> Path | None:
    """`convergence.svg`: the accuracy on validation rows by round, as the mean over sites and seeds of each system.

    The band reaches from the worst seed to the best. More systems than colours have a panel each, beside the mean of
    all. Methods that validate only at the end have no line; None if there is no other.
    """
    curves: dict[str, Curves] = {}
    for label, runs in outcomes.items():
        validated = [run.validation_curve for run in runs if run.validated]
        if validated:
            curves[label] = [[100 * accuracy for accuracy in curve] for curve in validated]
    if not curves:
        return None
    rounds = max(len(run) for runs in curves.values() for run in runs)
    whole = {label: runs for label, runs in curves.items() if all(len(run) == rounds for run in runs)}
    return _draw(out / "convergence.svg", whole, "round", range(1, 1 + rounds))


def draw_scale(out: Path, accuracies: Mapping[str, Mapping[int, float]]) -> Path:
    """`scale.svg`: average test accuracy in 0..1 of each system by number of sites."""
    counts = sorted({count for by_count in accuracies.values() for count in by_count})
    curves = {label: [[100 * by_count[count] for count in counts]] for label, by_count in accuracies.items()}
    return _draw(out / "scale.svg", curves, "sites", counts)


@styled()
def _draw(path: Path, curves: Mapping[str, Curves], across: str, places: Sequence[int]) -> Path:
    """In one panel as long as there is a colour for each curve, else in a panel each."""
    draw = _in_one_panel if len(curves) <= len(COLOURS) else _in_panels
    return write_whole(path, svg_file(draw(curves, across, places)))


def _in_one_panel(curves: Mapping[str, Curves], across: str, places: Sequence[int]) -> "Figure":
    figure = new_figure(7.0, 4.2)
    axes = figure.subplots()
    for (label, runs), colour, marker in zip(curves.items(), COLOURS, MARKERS, strict=False):
        axes.plot(list(places), _mean(runs), label=label, color=colour, marker=marker)
        _draw_band(axes, places, runs, colour)
    axes.set_xlabel(across)
    axes.set_xticks(list(places))
    axes.set_ylabel(SHARE)
    axes.grid(axis="y")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    return figure


def _in_panels(curves: Mapping[str, Curves], across: str, places: Sequence[int]) -> "Figure":
    """A panel for each curve, on the same axes, with the mean of all curves in grey."""
    lines = -(-len(curves) // COLUMNS)
    figure = new_figure(1.9 * COLUMNS, 1.1 * lines + 0.5)
    panels = figure.subplots(lines, COLUMNS, sharex=True, sharey=True, squeeze=False).flat
    everywhere = _mean([_mean(runs) for runs in curves.values()])
    for axes, (label, runs) in zip(panels, curves.items(), strict=False):
        axes.plot(list(places), everywhere, color=GREY, linewidth=0.8)
        axes.plot(list(places), _mean(runs), color=BLUE)
        _draw_band(axes, places, runs, BLUE)
        axes.set_title(label, fontsize=6, loc="left")
        axes.tick_params(labelsize=6)
        axes.set_xticks([places[0], places[len(places) // 2], places[-1]])
        axes.grid(axis="y")
    for axes in panels[len(curves) :]:
        axes.set_axis_off()
    figure.supxlabel(across)
    figure.supylabel(SHARE)
    return figure


def _mean(curves: Curves) -> list[float]:
    """The mean curve."""
    return list(map(fmean, zip(*curves, strict=True)))


def _draw_band(axes: "Axes", places: Sequence[int], runs: Curves, colour: str) -> None:
    """From the worst seed to the best, of several seeds."""
    if len(runs) > 1:
        seeds = list(zip(*runs, strict=True))
        axes.fill_between(list(places), list(map(min, seeds)), list(map(max, seeds)), color=colour, alpha=0.12)
