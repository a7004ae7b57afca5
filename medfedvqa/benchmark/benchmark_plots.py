"""Plots of every system's accuracy by round, and by number of sites."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from medfedvqa.atomic_files import write_whole
from medfedvqa.benchmark.outcome import RunOutcome
from medfedvqa.figures import COLOURS, MARKERS, new_figure, styled, svg_file

Curves = Sequence[Sequence[float]]
"""A curve for each seed, in per cent."""


def draw_convergence(out: Path, outcomes: Mapping[str, Sequence[RunOutcome]]) -> Path | None:
    """`convergence.svg`: the accuracy on validation rows by round, as the mean over sites and seeds of each system.

    The band reaches from the worst seed to the best. Methods that validate only at the end have no line; None if there
    is no other.
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
    figure = new_figure(7.0, 4.2)
    axes = figure.subplots()
    for number, (label, runs) in enumerate(curves.items()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
        seeds = list(zip(*runs, strict=True))
        axes.plot(list(places), list(map(fmean, seeds)), label=label, color=colour, marker=marker)
        if len(runs) > 1:
            axes.fill_between(list(places), list(map(min, seeds)), list(map(max, seeds)), color=colour, alpha=0.12)
    axes.set_xlabel(across)
    axes.set_xticks(list(places))
    axes.set_ylabel("questions right, %")
    axes.grid(axis="y")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    return write_whole(path, svg_file(figure))
