"""The report's pictures: budget by charge and by job, bytes by round and kind, accuracy, attacks beside the claim.

Each stands beside a table of the same figures; a figure that is not known is not drawn.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby
from math import isfinite, nan
from typing import TYPE_CHECKING

from medfedvqa.figures import (
    BLUE,
    GREEN,
    INK,
    MARKERS,
    PAGE_STYLE,
    PURPLE,
    RED,
    SKY,
    VERMILION,
    new_figure,
    settle,
    styled,
)
from medfedvqa.report.blocks import Drawing, at_least, at_most, percent, shown, words
from privacy.report.model_conduct import Egress, Empirical
from privacy.report.model_guarantee import Accounting, ReportCharge
from privacy.report.report_evidence import Accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT, ROW = 4.6, 2.4, 0.34
"""Inches of a picture, and of one of its rows."""
SERIES = (BLUE, VERMILION, SKY, PURPLE, GREEN)
DRAWN_JOBS = 10
LONGEST = 20
"""Characters of a name beside an axis."""
KIBIBYTE = 1024


@styled(PAGE_STYLE)
def budget_course(accounting: Accounting, job: str) -> Drawing | None:
    """Epsilon after each charge: of all jobs, and of this job, below the limit."""
    charges = accounting.charges
    site = [charge.site_epsilon_after for charge in charges]
    this = list(accumulate((charge.job_epsilon_after if charge.job == job else None for charge in charges), _newer))
    if not any(value is not None and isfinite(value) for value in (*site, *this, accounting.limit)) or not charges:
        return None
    axes = _axes(HEIGHT)
    for name, values, colour, width in (
        ("all jobs, worst patient", site, BLUE, 3.5),
        ("this job", this, VERMILION, 1.5),
    ):
        if (latest := _last(values)) is not None:
            heights = [nan if value is None else value for value in values]
            label = f"{name}: {_bound(latest)}"
            axes.stairs(heights, range(len(heights) + 1), baseline=None, color=colour, linewidth=width, label=label)
    if accounting.limit is not None:
        axes.axhline(accounting.limit, color=RED, linestyle="--", label=f"limit: {accounting.limit:g}")
    places = list[float]()
    for begin, end in (runs := _runs(charges)):
        places.append((begin + end) / 2)
        if begin:
            axes.axvline(begin, color="#d8dad4", linestyle="--", linewidth=0.8)
    room = int(70 / len(runs))
    axes.set_xticks(places, [_short(charges[begin].job, room) if room > 3 else "" for begin, _ in runs])
    axes.grid(axis="y")
    axes.set_ylim(bottom=0)
    return _drawing("Epsilon after each charge, in the ledger's order", axes)


@styled(PAGE_STYLE)
def budget_by_job(accounting: Accounting, job: str) -> Drawing | None:
    """Epsilon of each job, the newest last, with the limit of a job or of all."""
    jobs = accounting.jobs[-DRAWN_JOBS:]
    values = [one.epsilon if one.epsilon is not None and isfinite(one.epsilon) else 0.0 for one in jobs]
    if all(one.epsilon is None for one in jobs):
        return None
    per_job = accounting.limit_per_job is not None
    axes = _rows([one.job for one in jobs])
    colours = [VERMILION if one.job == job else SKY for one in jobs]
    bars = axes.barh(range(len(jobs)), values, 0.6, color=colours)
    texts = ["no bound" if one.epsilon is None else _bound(one.epsilon) for one in jobs]
    axes.bar_label(bars, texts, padding=4)
    limit = accounting.limit_per_job if per_job else accounting.limit
    if limit is not None:
        axes.axvline(
            limit, color=RED, linestyle="--", label=f"limit of {'a job' if per_job else 'all jobs'}: {limit:g}"
        )
    axes.set_xlim(0, 1.25 * max([*values, limit or 0.0]) or 1.0)
    part = f", the newest {len(jobs)} of {len(accounting.jobs)}" if len(jobs) < len(accounting.jobs) else ""
    said = [f"{one.job}: {text}" for one, text in zip(jobs, texts, strict=True)]
    return _drawing(f"Epsilon by job{part}", axes, said)


@styled(PAGE_STYLE)
def egress_by_round(egress: Egress) -> Drawing | None:
    """Bytes that left in each round, stacked by kind, the kind with the most bytes first."""
    totals = dict.fromkeys((one.kind for one in egress.by_kind), 0)
    for one in egress.by_kind:
        totals[one.kind] += one.nbytes
    rounds = sorted({one.round for one in egress.by_round}, key=lambda number: (number is None, number or 0))
    if not any(one.nbytes for one in egress.by_round):
        return None
    axes, below = _axes(HEIGHT), [0.0] * len(rounds)
    for colour, kind in zip(SERIES, sorted(totals, key=lambda kind: (-totals[kind], kind)), strict=False):
        heights = [
            sum(one.nbytes for one in egress.by_round if (one.round, one.kind) == (number, kind)) / KIBIBYTE
            for number in rounds
        ]
        label = f"{_short(kind, LONGEST)}: {totals[kind]:,} bytes"
        axes.bar(range(len(rounds)), heights, 0.72, below, color=colour, label=label)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    every = -(-len(rounds) // 16)
    names = ["none" if number is None else str(number) for number in rounds]
    axes.set_xticks(range(0, len(rounds), every), names[::every])
    axes.set_xlabel("round")
    axes.set_ylabel("KiB")
    axes.grid(axis="y")
    return _drawing("Bytes that left, by round and kind", axes)


@styled(PAGE_STYLE)
def accuracy(empirical: Empirical) -> Drawing | None:
    """Accuracy with and without differential privacy, finished at the site and alone, with intervals; the prior."""
    if empirical.accuracy_private is None and empirical.accuracy_without is None:
        return None
    it, trained = empirical, list[tuple[str, str, float | None, float | None, float | None]]()
    for name, colour, model in (
        ("finished", SKY, it.accuracy_finished),
        ("alone", PURPLE, it.accuracy_alone),
        ("alone, equal", GREEN, it.accuracy_alone_equal),
    ):
        trained += [(name, colour, model.accuracy, model.low, model.high)] if isinstance(model, Accuracy) else []
    lines = [
        ("without DP", BLUE, it.accuracy_without, it.accuracy_without_low, it.accuracy_without_high),
        ("with DP", VERMILION, it.accuracy_private, it.accuracy_private_low, it.accuracy_private_high),
        *trained,
    ]
    texts = [f"{name}: {'not known' if value is None else words([percent(value)])}" for name, _, value, *_ in lines]
    axes = _rows(texts)
    for place, (_, colour, value, low, high) in enumerate(lines):
        if low is not None and high is not None:
            axes.plot([100 * low, 100 * high], [place, place], color=colour, linewidth=2.5)
        if value is not None:
            axes.plot(100 * value, place, color=colour, marker=MARKERS[place % len(MARKERS)], markersize=7)
    if it.accuracy_prior is not None:
        label = f"prior: {words([percent(it.accuracy_prior)])}"
        axes.axvline(100 * it.accuracy_prior, color=RED, linestyle="--", label=label)
    axes.set_xticks(range(0, 101, 25), [f"{tick} %" for tick in range(0, 101, 25)])
    axes.set_xlim(0, 100)
    return _drawing("Accuracy on the site's test rows, 95 % intervals", axes, texts)


@styled(PAGE_STYLE)
def attacks(empirical: Empirical) -> Drawing | None:
    """From each attack's lower bound upwards, and the epsilon that is claimed."""
    found = empirical.attacks
    if not found:
        return None
    claimed = empirical.claimed_epsilon
    axes = _rows([f"{one.artefact}, {one.attack}" for one in found])
    largest = 1.15 * max(claimed or 0.0, *(max(one.provable, one.epsilon_at_least) for one in found)) or 1.0
    bounds = [f"at least {words([at_least(one.epsilon_at_least)])}" for one in found]
    for place, (one, text) in enumerate(zip(found, bounds, strict=True)):
        colour = RED if one.refutes else BLUE
        axes.plot([one.epsilon_at_least, largest], [place, place], color=colour, marker="o", markevery=[0])
        axes.plot(largest, place, color=colour, marker=">")
        axes.annotate(text, (one.epsilon_at_least, place), (6, -10), textcoords="offset points", color=INK, fontsize=8)
    if claimed is not None:
        axes.axvline(claimed, color=RED, linestyle="--", label=f"claimed: {_bound(claimed)}")
    axes.set_xlim(0, largest)
    said = [f"{one.artefact}, {one.attack}: {text}" for one, text in zip(found, bounds, strict=True)]
    return _drawing("Epsilon that the attacks prove, beside the claim", axes, said)


def _axes(height: float) -> "Axes":
    axes = new_figure(WIDTH, height).subplots()
    axes.tick_params(length=0)
    return axes


def _rows(names: Sequence[str]) -> "Axes":
    """A row for each name, downwards."""
    axes = _axes(ROW * len(names) + 0.8)
    axes.set_yticks(range(len(names)), [_short(name, LONGEST) for name in names], color=INK)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x")
    return axes


def _drawing(title: str, axes: "Axes", said: Sequence[str] = ()) -> Drawing:
    """The picture with its legend; it is described by its rows and its legend."""
    from matplotlib.figure import Figure

    figure = axes.get_figure(root=True)
    if not isinstance(figure, Figure):
        raise TypeError("a picture's axes belong to a figure")
    texts = [str(label) for label in axes.get_legend_handles_labels()[1]]
    if texts:
        figure.legend(loc="outside upper left", ncols=2, fontsize=8)
    settle(figure)
    return Drawing(title, "; ".join([*said, *texts]), figure)


def _runs(charges: Sequence[ReportCharge]) -> list[tuple[int, int]]:
    """Begin and end of each run of charges of the same job."""
    runs, begin = list[tuple[int, int]](), 0
    for _, group in groupby(charges, key=lambda charge: charge.job):
        end = begin + len(list(group))
        runs.append((begin, end))
        begin = end
    return runs


def _newer(known: float | None, after: float | None) -> float | None:
    """A job's epsilon stays while other jobs are charged."""
    return known if after is None else after


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _bound(value: float) -> str:
    return words([at_most(value)])


def _short(name: str, room: int) -> str:
    """As much of a name as there is room for, in letters that every font has."""
    text = shown(name).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= room else f"{text[: room - 1]}…"
