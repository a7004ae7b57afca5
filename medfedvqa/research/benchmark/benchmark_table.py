"""The benchmark's table in Markdown, and the prompt paper's tables beside this project's figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from audits.escaping import NAME, for_markdown
from medfedvqa.atomic_files import write_whole
from medfedvqa.core.trunk_options import TrunkName
from medfedvqa.evaluation import FIRST, Proportion, ServerScore
from medfedvqa.evaluation.accuracy import late_gain
from medfedvqa.figures import BLUE, COLOURS, GREY, MARKERS, new_figure, styled, svg_file
from medfedvqa.public_answers import ANSWER_TYPES
from medfedvqa.research.benchmark.printed import LITERATURE, LITERATURE_NOTE, PRINTED, LiteratureRow, PrintedTable
from medfedvqa.research.benchmark.results_file import RunOutcome, of_kind, of_type
from medfedvqa.research.benchmark.statistics import (
    PERSONAL,
    Comparison,
    Gain,
    SeedSummary,
    TTest,
    average,
    by_site,
    deviation,
    gain,
    holm,
    over_rows,
    paired,
    paired_t,
    unpaired_t,
)
from medfedvqa.research.benchmark.systems import CONTRASTIVE, SUPERVISED, TRUNKS

# The server's own models on public rows: retrieval and answers, as CreamFL's paper (Q. Yu et al., 2023) tests them.

SERVER_HEAD = (
    "system",
    "seeds",
    *(f"{way} R@{first}" for way in ("image to text", "text to image") for first in FIRST),
    "rsum",
    "VQA",
)
READING = (
    "Models that the server itself holds, tested at the server on public phantom pictures that it did not learn from: "
    "no row of a site takes part. Recall at 1, 5 and 10 in per cent, among the different captions or all pictures; "
    "rsum is the sum of all six. VQA: accuracy on closed public questions, of which words alone answer half, with its "
    "standard deviation over seeds and the Wilson interval of its mean. A dash: the model has no common space of "
    "pictures and texts."
)


def with_server_models(comparison: Comparison) -> dict[str, Sequence[RunOutcome]]:
    """The runs of each system that tested a model of the server's own in every run, by label."""
    return {
        label: runs
        for label, runs in comparison.rows.items()
        if not label.endswith(PERSONAL) and all(run.server for run in runs)
    }


def _cells(runs: Sequence[RunOutcome]) -> list[str]:
    scores = [ServerScore(**run.server) for run in runs]
    recalls = [f"{100 * fmean(each):.1f}" for each in zip(*(score.recalls for score in scores), strict=True)]
    retrieval = [*recalls, f"{fmean(score.rsum for score in scores):.1f}"] if recalls else ["–"] * (2 * len(FIRST) + 1)
    right = [score.correct / score.questions for score in scores]
    rows = scores[0].questions
    low, high = Proportion(round(fmean(score.correct for score in scores)), rows).wilson()
    return [*retrieval, f"{100 * fmean(right):.1f} ± {100 * deviation(right):.1f} [{100 * low:.0f}, {100 * high:.0f}]"]


Outcomes = Mapping[str, Sequence[RunOutcome]]
ABSENT = "–"


def markdown(comparison: Comparison) -> str:
    """The whole page: the settings, every system, and the paper's table if it has one for this data."""
    parts = [settings_and_systems(comparison)]
    if comparison.setting["data"] in PRINTED and comparison.questions != "open":
        printed = PRINTED[comparison.setting["data"]]
        closed = {label: of_kind(runs, True) for label, runs in comparison.rows.items()}
        parts += [f"## {printed.title}", beside_printed(printed, closed, comparison.unseen)]
        if comparison.questions == "all":
            parts.append("Here: the closed rows, of systems that train on open questions as well.")
    if trunks_in(comparison):
        lines = table(TRUNK_HEAD, beside_tables_2_and_3(comparison))
        parts += ["## Trunks: Tables 2 and 3 of UniCon's paper", lines, trunk_tests(comparison)]
    parts += server_models(comparison)
    if comparison.setting["data"] in LITERATURE:
        rows = LITERATURE[comparison.setting["data"]]
        parts += ["## Closed and open questions in the literature", beside_literature(rows, comparison)]
    return "\n\n".join(parts) + "\n"


def settings_and_systems(comparison: Comparison) -> str:
    """The settings, the table of all systems, and notes on how to read it."""
    return "\n\n".join([_facts(comparison), _table_of(comparison), _reading(comparison)])


def server_models(comparison: Comparison) -> list[str]:
    """The table of the server's own models, with a heading and notes; empty if no server has a model."""
    lines = [
        [for_markdown(label), str(len(runs)), *_cells(runs)] for label, runs in with_server_models(comparison).items()
    ]
    return ["## The server's own model", table(SERVER_HEAD, lines), READING] if lines else []


def corrected(comparison: Comparison) -> dict[str, float]:
    """The Holm-corrected p value of each row against the reference, for rows that share a seed with it."""
    rows, reference = comparison.rows, comparison.rows[comparison.reference]
    others = {label: each for label, each in rows.items() if each is not reference and paired(each, reference)}
    return holm({label: gain(each, reference).p for label, each in others.items()})


def gains(comparison: Comparison, label: str) -> tuple[Gain | None, Gain | None]:
    """A row's gain from pictures and its gain from federation; None where the table has no row to compare with."""
    rows = comparison.rows
    pairs = (comparison.pair(label, others) for others in (comparison.without_picture, comparison.alone))
    pictures, federation = (gain(rows[label], rows[other]) if other else None for other in pairs)
    return pictures, federation


def _table_of(comparison: Comparison) -> str:
    tested, reference = corrected(comparison), comparison.reference
    sites = [for_markdown(site, NAME) for site in comparison.sites]
    compared = [f"p against {for_markdown(reference)}", "from pictures", "from federation"]
    averages = comparison.averages(reference)
    head = ["system", "seeds", *sites, *averages, *compared, "late", "bytes up", "bytes down", "s", "trained"]
    rows = []
    for label, runs in comparison.rows.items():
        first = runs[0]
        cost = ["", "", "", ""]
        if first.parameters:
            cost = [f"{first.bytes_up:,.0f}", f"{first.bytes_down:,.0f}", f"{first.seconds:.1f}"]
            cost.append(f"{first.parameters:,}")
        p = "reference" if label == reference else p_cell(tested[label]) if label in tested else ABSENT
        accuracies = map(cell, (*by_site(runs).values(), *comparison.averages(label).values()))
        both = map(gain_cell, gains(comparison, label))
        rows.append([for_markdown(label), str(len(runs)), *accuracies, p, *both, _late_cell(runs), *cost])
    return table(head, rows)


def beside_printed(printed: PrintedTable, outcomes: Outcomes, unseen: Sequence[str] = ()) -> str:
    """The paper's table in its own layout, with its figures and ours, and what differs in each row.

    `unseen`: the sites that only test. A cell that the paper leaves empty stays empty here too.
    """
    tested = next(iter(outcomes.values()))[0].right if outcomes else {}
    places = {heading: place.sites(list(tested), unseen) for heading, place in printed.columns.items()}
    head = [""]
    for heading, place in printed.columns.items():
        named = place.number is not None and places[heading]
        head += [f"{heading} (paper)", f"{for_markdown(places[heading][0], NAME) if named else heading} (here)"]
    rows = []
    for row in printed.rows:
        runs = outcomes.get(row.label + PERSONAL, ()) if printed.personal else ()
        ours = by_site(runs) if (runs := runs or outcomes.get(row.label, ())) else {}
        cells = []
        for heading, figure in zip(printed.columns, row.figures, strict=True):
            means = [100 * ours[site].mean for site in places[heading] if site in ours]
            leaves_out = figure is None and any(each is not None for each in row.figures)
            here = f"{fmean(means):.2f}" if means and not leaves_out else ABSENT
            cells += [ABSENT if figure is None else f"{figure:.2f}", here]
        rows.append([row.name, *cells, row.differs])
    return "\n\n".join([table([*head, "what differs"], rows), *printed.notes])


def beside_literature(models: Sequence[LiteratureRow], comparison: Comparison) -> str:
    """The models' printed figures and ours on the same kinds of questions, with sources and differences.

    The last row is the best of this table's baselines.
    """
    head = ["", *(f"{kind} ({which})" for kind in ("closed", "open", "together") for which in ("paper", "here"))]
    best = comparison.reference
    rows = [
        [
            model.name,
            *_pairs((model.closed, model.open, model.together), comparison, model.label),
            model.source,
            model.differs,
        ]
        for model in models
    ]
    rows.append([f"here: {for_markdown(best)}", *_pairs((None, None, None), comparison, best), "this table", ABSENT])
    return "\n\n".join([table([*head, "source", "what differs"], rows), LITERATURE_NOTE])


def _pairs(printed: Sequence[float | None], comparison: Comparison, label: str) -> list[str]:
    """For each kind of questions, the printed accuracy and the system's own over all test rows, in per cent."""
    runs = comparison.rows.get(label, ())
    ours = (of_kind(runs, True), of_kind(runs, False), runs if comparison.questions == "all" else ())
    cells = []
    for figure, own in zip(printed, ours, strict=True):
        cells += [ABSENT if figure is None else f"{figure:.1f}", f"{100 * over_rows(own):.1f}" if own else ABSENT]
    return cells


def _facts(comparison: Comparison) -> str:
    setting, ran = comparison.setting, [options for options in comparison.options.values() if options]
    common = {name: value for name, value in setting["budget"].items() if any(each.get(name) == value for each in ran)}
    own: dict[str, list[str]] = {}
    for label, options in comparison.options.items():
        apart = {
            name: options[name] for name in setting["budget"] if options.get(name, common.get(name)) != common.get(name)
        }
        if apart:
            own.setdefault(listed(apart), []).append(label)
    others = "".join(f" {', '.join(map(for_markdown, labels))}: {values}." for values, labels in own.items())
    budget = listed(common) or "each method's own budget"
    return (
        f"Data {for_markdown(setting['data'])}, {for_markdown(str(setting['split'].get('kind')))} split, "
        f"{len(comparison.sites)} sites, {for_markdown(setting['regime'])}; backbone "
        f"{for_markdown(setting['backbone'])}, frozen except for the trained part; {for_markdown(budget)}.{others}"
    )


def listed(options: Mapping[str, Any]) -> str:
    """Options as text, such as `rounds 15, keep best`."""
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _reading(comparison: Comparison) -> str:
    both = comparison.questions == "all"
    kinds = "closed and open" if both else comparison.questions
    types = _TYPES if comparison.types else ""
    together = (
        "Sites, p and gains are of both kinds together; each average is over the sites that have such questions. "
    )
    return (
        f"Accuracy on {kinds} questions: mean over seeds, its standard deviation, and its 95 % interval over patients "
        "and seeds (Wilson with effective rows). "
        f"{together if both else ''}{types}{_UNSEEN if comparison.unseen else ''}p: by the t test of the paired "
        f"difference from {for_markdown(comparison.reference)}, the best of the baselines, over patients and seeds, "
        "corrected after Holm for all rows. From pictures: points of the average above the same system on black "
        "pictures; from federation: above the same model trained alone with equal steps; each with its 95 % interval "
        "over patients and seeds, not corrected. With a single seed every interval is over patients alone. "
        "(personal): each site's own model before the last mean, of the same run. Late: by how many points the mean of "
        "the sites' validation rows is higher at its best round than at the best of the first two thirds of the "
        "rounds. Bytes per site and round; s are processor seconds per round, of all sites together, without decoding "
        f"pictures. All runs together: {comparison.seconds / 3600:.1f} processor hours."
    )


_TYPES = (
    "Yes/no, number and other are types of answers, as in VQA v2: a number stands alone, in digits or as a word up to "
    "twelve. "
)


_UNSEEN = (
    "Seen: the mean over sites that train; unseen: over sites that only test the others' last mean, where rows of "
    "training alone, and majority and prior, have learned from the site's own training rows. "
)


def cell(summary: SeedSummary) -> str:
    """Mean, deviation and interval in per cent, `61.2 ± 1.4 [52, 70]`."""
    low, high = summary.interval
    return f"{100 * summary.mean:.1f} ± {100 * summary.deviation:.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def p_cell(p: float) -> str:
    """A p value, `0.023` or `<0.001`."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def gain_cell(difference: Gain | None) -> str:
    """A gain in points with its interval, `+2.1 [-0.4, 4.6]`; a dash where there is nothing to compare with."""
    if difference is None:
        return ABSENT
    if difference.interval is None:
        return f"{100 * difference.mean:+.1f}"
    low, high = difference.interval
    return f"{100 * difference.mean:+.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _late_cell(runs: Sequence[RunOutcome]) -> str:
    """The gain in validation accuracy over the last third of the rounds, in points, as the mean over seeds."""
    curves = [run.validation_curve for run in runs]
    return f"{100 * fmean(map(late_gain, curves)):.1f}" if all(len(curve) > 2 for curve in curves) else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown: the first column aligned to the left, the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# UniCon's Tables 2 and 3 beside runs here: each trunk supervised, contrasted on all rows, and split among sites.
#
# Source: Y. Sun and H. Ochiai, 2023, whose figures are per cent of VQA v2's validation questions.

TRUNK_SPLIT = "UniCon"
TRUNK_COLUMNS = (SUPERVISED, CONTRASTIVE, TRUNK_SPLIT)
"""The label prefixes of a trunk's systems, in the order of the paper's columns."""
TRUNK_HEADINGS = ("overall", *ANSWER_TYPES)

_Four = tuple[float, float, float, float]
_TABLES: tuple[tuple[TrunkName, _Four, _Four, _Four], ...] = (
    ("ban", (65.86, 83.53, 46.36, 57.56), (36.23, 66.90, 12.71, 19.11), (35.11, 63.84, 11.06, 19.61)),
    ("butd", (63.84, 81.40, 43.81, 55.78), (45.08, 75.82, 29.27, 25.86), (40.96, 66.98, 13.34, 28.74)),
    ("mfb", (65.35, 83.23, 45.31, 57.05), (46.98, 73.95, 32.81, 30.20), (42.43, 68.65, 23.33, 27.52)),
    ("mcan-small", (67.17, 84.82, 49.31, 58.48), (53.18, 81.06, 41.95, 34.93), (48.42, 74.93, 30.88, 32.89)),
    ("mcan-large", (67.50, 85.14, 49.66, 58.80), (53.32, 81.21, 42.66, 34.90), (48.44, 77.44, 30.72, 32.01)),
    ("mmnas-small", (67.79, 85.02, 52.25, 58.80), (51.54, 78.06, 39.76, 34.46), (45.14, 70.55, 28.04, 30.33)),
    ("mmnas-large", (67.98, 85.22, 52.04, 59.09), (53.82, 80.06, 42.86, 36.75), (49.89, 74.85, 36.88, 34.33)),
)
PRINTED_TRUNKS: Mapping[TrunkName, Mapping[str, _Four]] = {
    trunk: dict(zip(TRUNK_COLUMNS, figures, strict=True)) for trunk, *figures in _TABLES
}
"""For each trunk and column the figures under `TRUNK_HEADINGS`."""


def trunks_in(comparison: Comparison) -> list[TrunkName]:
    """The trunks with at least one system in the table, in the project's order."""
    return [trunk for trunk in TRUNKS if any(f"{column} {trunk}" in comparison.rows for column in TRUNK_COLUMNS)]


def trunk_figures(comparison: Comparison, column: str, trunk: TrunkName) -> list[float | None]:
    """The averages over sites for `TRUNK_HEADINGS`, in per cent; None where the table has none."""
    runs = comparison.rows.get(f"{column} {trunk}", ())
    parts = [runs, *(of_type(runs, letter) for letter in ANSWER_TYPES.values())]
    return [100 * average(part).mean if part else None for part in parts]


def trunk_pairs(comparison: Comparison) -> tuple[list[float], list[float]]:
    """The overall averages by contrast on all rows and by UniCon, in per cent, of the trunks that have both."""
    both = [
        (trunk_figures(comparison, CONTRASTIVE, trunk)[0], trunk_figures(comparison, TRUNK_SPLIT, trunk)[0])
        for trunk in TRUNKS
    ]
    complete = [(first, second) for first, second in both if first is not None and second is not None]
    return [first for first, _ in complete], [second for _, second in complete]


def beside_tables_2_and_3(comparison: Comparison) -> list[list[str]]:
    """The lines of the table: trunk, training, then for each heading the paper's figure and ours."""
    lines = []
    for trunk in trunks_in(comparison):
        for column in TRUNK_COLUMNS:
            cells = [trunk, column]
            for printed, here in zip(
                PRINTED_TRUNKS[trunk][column], trunk_figures(comparison, column, trunk), strict=True
            ):
                cells += [f"{printed:.2f}", "–" if here is None else f"{here:.2f}"]
            lines.append(cells)
    return lines


TRUNK_HEAD = [
    "trunk",
    "training",
    *(f"{heading} ({which})" for heading in TRUNK_HEADINGS for which in ("paper", "here")),
]


def trunk_tests(comparison: Comparison) -> str:
    """The paired t-test by trunk, and the paper's unpaired one, of its figures and ours."""
    printed = tuple([PRINTED_TRUNKS[trunk][column][0] for trunk in TRUNKS] for column in (CONTRASTIVE, TRUNK_SPLIT))
    return (
        f"Contrast on all rows against UniCon, overall, by trunk. In the paper {_trunk_test(*printed)}; the 1.357 that "
        f"it calls paired is the unpaired one. Here {_trunk_test(*trunk_pairs(comparison))}. The paper has VQA v2's "
        "questions about photographs, a detector's regions and two clients; here the sites are the run's, and the "
        "trunk reads a frozen backbone's grid, or region files that --backbone names."
    )


def _trunk_test(first: list[float], second: list[float]) -> str:
    paired, unpaired = paired_t(first, second), unpaired_t(first, second)
    if paired is None or unpaired is None:
        return "fewer than two trunks have both, or the differences do not vary"
    difference = fmean(first) - fmean(second)
    return f"{len(first)} trunks, {difference:+.2f} points: paired {_shown(paired)}, unpaired {_shown(unpaired)}"


def _shown(test: TTest) -> str:
    return f"t = {test.t:.3f} ({test.freedom} degrees of freedom, p = {test.p:.4f})"


# Plots of every system's accuracy by round, and by number of sites.

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
        label: SystemCurves(range(1, 1 + len(runs[0])), runs)
        for label, runs in curves.items()
        if len({len(curve) for curve in runs}) == 1
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


def _mean(curves: Curves) -> list[float]:
    """The mean curve."""
    return list(map(fmean, zip(*curves, strict=True)))


def _draw_band(axes: "Axes", line: SystemCurves, colour: str) -> None:
    """Fills the area from the worst seed to the best, if there are several seeds."""
    if len(line.curves) > 1:
        seeds = list(zip(*line.curves, strict=True))
        axes.fill_between(line.places, list(map(min, seeds)), list(map(max, seeds)), color=colour, alpha=0.12)
