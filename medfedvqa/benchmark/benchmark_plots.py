"""Accuracy by round of every system, and by number of sites."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from medfedvqa.atomic_files import write_whole
from medfedvqa.benchmark.grid import RunOutcome
from medfedvqa.evaluation.run_plots import COLOURS, MARKERS, STYLE


def draw_convergence(out: Path, outcomes: Mapping[str, Sequence[RunOutcome]]) -> Path:
    """`convergence.svg`: the mean over sites and seeds of the share of validation rows right, by round.

    Methods that validate only at the end have no line.
    """
    curves = {}
    for label, found in outcomes.items():
        each = [curve for outcome in found for curve in outcome.validated.values()]
        if each:
            curves[label] = [100 * fmean(values) for values in zip(*each, strict=False)]
    rounds = max(map(len, curves.values()), default=0)
    whole = {label: curve for label, curve in curves.items() if len(curve) == rounds}
    return _draw(out / "convergence.svg", whole, "round", range(1, 1 + rounds))


def draw_scale(out: Path, accuracies: Mapping[str, Mapping[int, float]]) -> Path:
    """`scale.svg`: average test accuracy in 0..1 of each system by number of sites."""
    counts = sorted({count for by_count in accuracies.values() for count in by_count})
    curves = {label: [100 * by_count[count] for count in counts] for label, by_count in accuracies.items()}
    return _draw(out / "scale.svg", curves, "sites", counts)


def _draw(path: Path, curves: Mapping[str, Sequence[float]], across: str, places: Sequence[int]) -> Path:
    import matplotlib

    with matplotlib.rc_context(STYLE | {"svg.hashsalt": across}):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        axes = figure.subplots()
        for number, (label, values) in enumerate(curves.items()):
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
            axes.plot(list(places), values, label=label, color=colour, marker=marker)
        axes.set_xlabel(across)
        axes.set_xticks(list(places))
        axes.set_ylabel("closed questions right, %")
        axes.grid(axis="y")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
    return write_whole(path, content.getvalue())
