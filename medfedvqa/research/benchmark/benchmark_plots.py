"""Plots of every system's accuracy by round, and by number of sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from medfedvqa.atomic_files import write_whole
from medfedvqa.figures import BLUE, COLOURS, GREY, MARKERS, new_figure, styled, svg_file
from medfedvqa.research.benchmark.results_file import RunOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curves = Sequence[Sequence[float]]
"""A curve for each seed, in per cent."""
SHARE = "questions right, %"
COLUMNS = 5
"""Panels per row in a plot with one panel per system."""
MOST_TICKS = 20
"""Up to this many places on the x axis, each has a tick."""


@dataclass(frozen=True)
class SystemCurves:
    """The curves of one system in a plot."""

    places: Sequence[int]
    """The x values: rounds, or numbers of sites."""
    curves: Curves

    @property
    def ticks(self) -> list[int]:
        """The first, the middle and the last place."""
        return sorted({self.places[0], self.places[len(self.places) // 2], self.places[-1]})


def draw_convergence(out: Path, outcomes: Mapping[str, Sequence[RunOutcome]]) -> Path | None:
    """Draws `convergence.svg`, the validation accuracy of each system by round, as the mean over sites and seeds.

    The band reaches from the worst seed to the best. If there are more systems than colours, each has its own panel,
    with the mean of all systems that have as many rounds. A system has no line if it validates only at the end, has a
    single round while others have more, or has seeds with unequal rounds. Returns None if no line is left.
    """
    curves: dict[str, Curves] = {}
    for label, runs in outcomes.items():
        validated = [run.validation_curve for run in runs if run.validated]
        if validated:
            curves[label] = [[100 * accuracy for accuracy in curve] for curve in validated]
    lines = {
        label: SystemCurves(range(1, 1 + len(runs[0])), runs) for label, runs in curves.items() if _equally_long(runs)
    }
    if not lines:
        return None
    several = {label: line for label, line in lines.items() if len(line.places) > 1}
    return _draw(out / "convergence.svg", several or lines, "round")


def draw_scale(out: Path, accuracies: Mapping[str, Mapping[int, float]]) -> Path:
    """Draws `scale.svg`, the average test accuracy in 0..1 of each system by number of sites; returns its path."""
    counts = sorted({count for by_count in accuracies.values() for count in by_count})
    lines = {
        label: SystemCurves(counts, [[100 * by_count[count] for count in counts]])
        for label, by_count in accuracies.items()
    }
    return _draw(out / "scale.svg", lines, "sites")


@styled()
def _draw(path: Path, lines: Mapping[str, SystemCurves], across: str) -> Path:
    """Draws all lines in one panel if there is a colour for each, else each line in its own panel."""
    draw = _in_one_panel if len(lines) <= len(COLOURS) else _in_panels
    return write_whole(path, svg_file(draw(lines, across)))


def _in_one_panel(lines: Mapping[str, SystemCurves], across: str) -> "Figure":
    figure = new_figure(7.0, 4.2)
    axes = figure.subplots()
    for (label, line), colour, marker in zip(lines.items(), COLOURS, MARKERS, strict=False):
        axes.plot(line.places, _mean(line.curves), label=label, color=colour, marker=marker)
        _draw_band(axes, line, colour)
    axes.set_xlabel(across)
    places = sorted({place for line in lines.values() for place in line.places})
    if len(places) <= MOST_TICKS:
        axes.set_xticks(places)
    axes.set_ylabel(SHARE)
    axes.grid(axis="y")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    return figure


def _in_panels(lines: Mapping[str, SystemCurves], across: str) -> "Figure":
    """Draws a panel for each line, with the mean of all lines at the same x values in grey."""
    rows = -(-len(lines) // COLUMNS)
    figure = new_figure(1.9 * COLUMNS, 1.2 * rows + 0.5)
    panels = figure.subplots(rows, COLUMNS, sharey=True, squeeze=False).flat
    for axes, (label, line) in zip(panels, lines.items(), strict=False):
        like = [_mean(other.curves) for other in lines.values() if other.places == line.places]
        axes.plot(line.places, _mean(like), color=GREY, linewidth=0.8)
        axes.plot(line.places, _mean(line.curves), color=BLUE)
        _draw_band(axes, line, BLUE)
        axes.set_title(label, fontsize=6, loc="left")
        axes.tick_params(labelsize=6)
        axes.set_xticks(line.ticks)
        axes.grid(axis="y")
    for axes in panels[len(lines) :]:
        axes.set_axis_off()
    figure.supxlabel(across)
    figure.supylabel(SHARE)
    return figure


def _equally_long(curves: Curves) -> bool:
    """Whether all curves have the same length."""
    return len({len(curve) for curve in curves}) == 1


def _mean(curves: Curves) -> list[float]:
    """The mean curve."""
    return list(map(fmean, zip(*curves, strict=True)))


def _draw_band(axes: "Axes", line: SystemCurves, colour: str) -> None:
    """Fills the area from the worst seed to the best, if there are several seeds."""
    if len(line.curves) > 1:
        seeds = list(zip(*line.curves, strict=True))
        axes.fill_between(line.places, list(map(min, seeds)), list(map(max, seeds)), color=colour, alpha=0.12)
