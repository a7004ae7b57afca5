"""The report's plots: budget by charge and by job, bytes by round and kind, accuracy, attacks and the claim.

Each plot stands beside a table of the same figures. An unknown figure is not drawn.
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
    RULE,
    SKY,
    VERMILION,
    new_figure,
    settle,
    styled,
)
from medfedvqa.report.blocks import Drawing, at_least, at_most, percent, printable, words
from privacy.report.figures import Sections

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT, ROW = 4.6, 2.4, 0.34
"""Inches of a plot, and of one of its rows."""
SERIES = (BLUE, VERMILION, SKY, PURPLE, GREEN)
DRAWN_JOBS = 10
MAX_NAME = 20
"""The most characters of a name beside an axis."""
KIBIBYTE = 1024


@styled(PAGE_STYLE)
def budget_course(accounting: Sections, job: str) -> Drawing | None:
    """Epsilon after each charge, of all jobs and of this job, with the limit."""
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
def budget_by_job(accounting: Sections, job: str) -> Drawing | None:
    """Epsilon of each of the newest jobs, the last one last, with the limit of one job, or else of all."""
    jobs = accounting.jobs[-DRAWN_JOBS:]
    values = [account.epsilon if account.epsilon is not None and isfinite(account.epsilon) else 0.0 for account in jobs]
    if all(account.epsilon is None for account in jobs):
        return None
    per_job = accounting.limit_per_job is not None
    axes = _rows([account.job for account in jobs])
    colours = [VERMILION if account.job == job else SKY for account in jobs]
    bars = axes.barh(range(len(jobs)), values, 0.6, color=colours)
    texts = ["no bound" if account.epsilon is None else _bound(account.epsilon) for account in jobs]
    axes.bar_label(bars, texts, padding=4)
    limit = accounting.limit_per_job if per_job else accounting.limit
    if limit is not None:
        axes.axvline(
            limit, color=RED, linestyle="--", label=f"limit of {'a job' if per_job else 'all jobs'}: {limit:g}"
        )
    axes.set_xlim(0, 1.25 * max([*values, limit or 0.0]) or 1.0)
    part = f", the newest {len(jobs)} of {len(accounting.jobs)}" if len(jobs) < len(accounting.jobs) else ""
    lines = [f"{account.job}: {text}" for account, text in zip(jobs, texts, strict=True)]
    return _drawing(f"Epsilon by job{part}", axes, lines)


@styled(PAGE_STYLE)
def egress_by_round(egress: Sections) -> Drawing | None:
    """Bytes that left in each round, stacked by kind, the kind with the most bytes first."""
    totals = dict.fromkeys((share.kind for share in egress.by_kind), 0)
    for share in egress.by_kind:
        totals[share.kind] += share.nbytes
    rounds = sorted({share.round for share in egress.by_round}, key=lambda number: (number is None, number or 0))
    if not any(share.nbytes for share in egress.by_round):
        return None
    axes, below = _axes(HEIGHT), [0.0] * len(rounds)
    for colour, kind in zip(SERIES, sorted(totals, key=lambda kind: (-totals[kind], kind)), strict=False):
        heights = [
            sum(share.nbytes for share in egress.by_round if (share.round, share.kind) == (number, kind)) / KIBIBYTE
            for number in rounds
        ]
        label = f"{_short(kind, MAX_NAME)}: {totals[kind]:,} bytes"
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
def accuracy(empirical: Sections) -> Drawing | None:
    """Accuracies with their intervals: with and without privacy, finished at the site, trained alone, and the prior."""
    if empirical.accuracy_private is None and empirical.accuracy_without is None:
        return None
    lines = accuracies(empirical)
    texts = [f"{name}: {'not known' if value is None else words([percent(value)])}" for name, _, value, *_ in lines]
    axes = _rows(texts)
    for place, ((_, _, value, low, high), colour) in enumerate(zip(lines, SERIES, strict=False)):
        if low is not None and high is not None:
            axes.plot([100 * low, 100 * high], [place, place], color=colour, linewidth=2.5)
        if value is not None:
            axes.plot(100 * value, place, color=colour, marker=MARKERS[place % len(MARKERS)], markersize=7)
    if empirical.accuracy_prior is not None:
        label = f"prior: {words([percent(empirical.accuracy_prior)])}"
        axes.axvline(100 * empirical.accuracy_prior, color=RED, linestyle="--", label=label)
    axes.set_xticks(range(0, 101, 25), [f"{tick} %" for tick in range(0, 101, 25)])
    axes.set_xlim(0, 100)
    return _drawing("Accuracy on the site's test rows, 95 % intervals", axes, texts)


def accuracies(e: Sections) -> list[tuple[str, str, float | None, float | None, float | None]]:
    """Each model's name in the plot and in the table, its accuracy, and its interval."""
    trained = (
        ("finished", "The same, finished at the site without noise", e.accuracy_finished),
        ("alone", "Trained by the site alone, without noise", e.accuracy_alone),
        ("alone, equal", "Trained alone with equal steps, without noise", e.accuracy_alone_equal),
    )
    without = (e.accuracy_without, e.accuracy_without_low, e.accuracy_without_high)
    return [
        ("without DP", "Without differential privacy", *without),
        ("with DP", "With differential privacy", e.accuracy_private, e.accuracy_private_low, e.accuracy_private_high),
        *((short, name, model.accuracy, model.low, model.high) for short, name, model in trained if model),
    ]


@styled(PAGE_STYLE)
def attacks(empirical: Sections) -> Drawing | None:
    """The range of epsilon above each attack's lower bound, and the epsilon that is claimed."""
    estimates = empirical.attacks
    if not estimates:
        return None
    claimed = empirical.claimed_epsilon
    axes = _rows([f"{attack.artefact}, {attack.attack}" for attack in estimates])
    largest = (
        1.15 * max(claimed or 0.0, *(max(attack.provable, attack.epsilon_at_least) for attack in estimates)) or 1.0
    )
    bounds = [f"at least {words([at_least(attack.epsilon_at_least)])}" for attack in estimates]
    for place, (attack, text) in enumerate(zip(estimates, bounds, strict=True)):
        colour = RED if attack.refutes else BLUE
        axes.plot([attack.epsilon_at_least, largest], [place, place], color=colour, marker="o", markevery=[0])
        axes.plot(largest, place, color=colour, marker=">")
        axes.annotate(
            text, (attack.epsilon_at_least, place), (6, -10), textcoords="offset points", color=INK, fontsize=8
        )
    if claimed is not None:
        axes.axvline(claimed, color=RED, linestyle="--", label=f"claimed: {_bound(claimed)}")
    axes.set_xlim(0, largest)
    lines = [f"{attack.artefact}, {attack.attack}: {text}" for attack, text in zip(estimates, bounds, strict=True)]
    return _drawing("Epsilon that the attacks prove, beside the claim", axes, lines)


@styled(PAGE_STYLE)
def people(
    found: int,
    guessed: int,
    labels: Sequence[str] = ("by guessing", "besides, at most", "not found"),
    title: str = "Of 100 people who took part",
) -> Drawing:
    """A hundred people in two rows, by who finds them."""
    axes = new_figure(1.5 * WIDTH, 0.75).subplots()
    spots = [(place % 50, -(place // 50)) for place in range(100)]
    groups = (
        (labels[0], SKY, "s", spots[: min(guessed, found)]),
        (labels[1], VERMILION, "o", spots[guessed:found]),
        (labels[2], RULE, "o", spots[found:]),
    )
    for name, colour, marker, group in groups:
        if group:
            across, down = zip(*group, strict=True)
            label = f"{name}: {len(group)}"
            axes.plot(across, down, marker, color=colour, markersize=7, label=label)
    axes.set_ylim(-1.6, 0.6)
    axes.set_axis_off()
    return _drawing(title, axes, columns=3)


def _axes(height: float) -> "Axes":
    axes = new_figure(WIDTH, height).subplots()
    axes.tick_params(length=0)
    return axes


def _rows(names: Sequence[str]) -> "Axes":
    """Axes with a row for each name, downwards."""
    axes = _axes(ROW * len(names) + 0.8)
    axes.set_yticks(range(len(names)), [_short(name, MAX_NAME) for name in names], color=INK)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x")
    return axes


def _drawing(title: str, axes: "Axes", lines: Sequence[str] = (), columns: int = 2) -> Drawing:
    """The plot with its legend. Its rows and its legend describe it."""
    from matplotlib.figure import Figure

    figure = axes.get_figure(root=True)
    if not isinstance(figure, Figure):
        raise TypeError("these axes belong to no figure")
    texts = [str(label) for label in axes.get_legend_handles_labels()[1]]
    if texts:
        figure.legend(loc="outside upper left", ncols=columns, fontsize=8)
    settle(figure)
    return Drawing(title, "; ".join([*lines, *texts]), figure)


def _runs(charges: Sequence[Sections]) -> list[tuple[int, int]]:
    """The first index and the end of each run of consecutive charges of one job."""
    runs, begin = list[tuple[int, int]](), 0
    for _, group in groupby(charges, key=lambda charge: charge.job):
        end = begin + len(list(group))
        runs.append((begin, end))
        begin = end
    return runs


def _newer(before: float | None, after: float | None) -> float | None:
    """The epsilon after a charge; it stays as it was while other jobs are charged."""
    return before if after is None else after


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _bound(value: float) -> str:
    return words([at_most(value)])


def _short(name: str, room: int) -> str:
    """The name cut to `room` characters, in letters that every font has."""
    text = printable(name).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= room else f"{text[: room - 1]}…"
