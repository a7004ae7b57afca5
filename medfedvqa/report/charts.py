"""The report's pictures: budget by charge and by job, bytes by round and kind, accuracy, attacks beside the claim.

Each stands beside a table of the same figures; a figure that is not known is not drawn.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby
from math import ceil, floor, isfinite, log10
from typing import Literal

from medfedvqa.report.blocks import at_least, at_most, percent, plain, words
from medfedvqa.report.shapes import SERIES, Box, Drawing, Line, Mark, Role, Words
from privacy.report.model_conduct import Egress, Empirical
from privacy.report.model_guarantee import Accounting, ReportCharge
from privacy.report.report_evidence import Accuracy

WIDTH, LEFT, RIGHT, TOP, ROW = 460.0, 52.0, 438.0, 44.0, 34.0
FLOOR = 208.0
"""Where a picture's horizontal axis lies, if its height is not that of its rows."""
DRAWN_JOBS = 10
MARKS: tuple[Literal["circle", "square", "diamond"], ...] = ("circle", "square", "diamond")
KIBIBYTE = 1024

Shapes = list[Line | Box | Mark | Words]


def budget_course(accounting: Accounting, job: str) -> Drawing | None:
    """Epsilon after each charge: of all jobs, and of this job, below the limit."""
    charges = accounting.charges
    site = [charge.site_epsilon_after for charge in charges]
    own = list(accumulate((charge.job_epsilon_after if charge.job == job else None for charge in charges), _newer))
    drawn = [value for value in [*site, *own, accounting.limit] if value is not None and isfinite(value)]
    if not charges or not drawn:
        return None
    ticks = _ticks(max(drawn))
    shapes: Shapes = _heights(ticks, [f"{tick:g}" for tick in ticks])
    step = (RIGHT - LEFT) / len(charges)
    for at, (name, several) in _runs(charges):
        x = LEFT + at * step
        if at:
            shapes.append(Line(((x, TOP), (x, FLOOR)), "line", dashed=True))
        if several * step > 40:
            shapes.append(Words(x + several * step / 2, FLOOR + 16, _short(name, int(several * step / 7)), "middle"))
    if accounting.limit is not None:
        y = _height(accounting.limit, ticks)
        shapes.append(Line(((LEFT, y), (RIGHT, y)), "limit", 1.5, dashed=True))
    shapes += _steps(site, ticks, "first", 4.5) + _steps(own, ticks, "second", 1.75)
    said: list[tuple[Role, str, float | None]] = [
        ("first", "all jobs, worst patient", _last(site)),
        ("second", "this job", _last(own)),
    ]
    legend = [(role, f"{name}: {_bound(value)}") for role, name, value in said if value is not None]
    if accounting.limit is not None:
        legend.append(("limit", f"limit: {accounting.limit:g}"))
    shapes += _legend(legend)
    words_ = "; ".join(text for _, text in legend)
    return Drawing("Epsilon after each charge, in the ledger's order", words_, WIDTH, FLOOR + 28, tuple(shapes))


def budget_by_job(accounting: Accounting, job: str) -> Drawing | None:
    """Epsilon of each job, the newest last, with the limit of a job or of all."""
    jobs = accounting.jobs[-DRAWN_JOBS:]
    values = [one.epsilon for one in jobs if one.epsilon is not None]
    if not values:
        return None
    limit = accounting.limit_per_job if accounting.limit_per_job is not None else accounting.limit
    whose = "limit of a job" if accounting.limit_per_job is not None else "limit of all jobs"
    ticks = _ticks(max([1.2 * max(values), *([limit] if limit is not None else [])]))
    bottom = TOP + ROW * len(jobs)
    shapes: Shapes = _widths(ticks, [f"{tick:g}" for tick in ticks], bottom, LEFT + 48)
    for place, one in enumerate(jobs):
        y = TOP + ROW * place
        shapes.append(Words(LEFT + 40, y + 21, _short(one.job, 13), "end", "ink" if one.job == job else "soft"))
        end = LEFT + 48
        if one.epsilon is not None:
            end = _across(one.epsilon, ticks, LEFT + 48)
            role: Role = "second" if one.job == job else "third"
            shapes.append(Box(LEFT + 48, y + 8, max(end - LEFT - 48, 1.0), ROW - 16, role))
        shapes.append(Words(end + 6, y + 21, _bound(one.epsilon) if one.epsilon is not None else "no bound"))
    if limit is not None:
        x = _across(limit, ticks, LEFT + 48)
        shapes.append(Line(((x, TOP - 4), (x, bottom)), "limit", 1.5, dashed=True))
        shapes.append(Words(RIGHT, TOP - 12, f"{whose}: {limit:g}", "end"))
    left_out = len(accounting.jobs) - len(jobs)
    title = f"Epsilon by job{f', the newest {len(jobs)} of {len(accounting.jobs)}' if left_out else ''}"
    said = "; ".join(f"{one.job}: {_bound(one.epsilon) if one.epsilon is not None else 'no bound'}" for one in jobs)
    return Drawing(title, said, WIDTH, bottom + 24, tuple(shapes))


def egress_by_round(egress: Egress) -> Drawing | None:
    """Bytes that left in each round, stacked by kind."""
    totals = {kind: sum(one.nbytes for one in egress.by_kind if one.kind == kind) for kind in _kinds(egress)}
    rounds = sorted({one.round for one in egress.by_round}, key=lambda number: (number is None, number or 0))
    sums = [sum(one.nbytes for one in egress.by_round if one.round == number) for number in rounds]
    if not sums or max(sums) == 0:
        return None
    ticks = _ticks(max(sums) / KIBIBYTE)
    shapes: Shapes = _heights(ticks, [f"{tick:g} KiB" if tick else "0" for tick in ticks], LEFT + 14)
    step = (RIGHT - LEFT - 14) / len(rounds)
    every = ceil(len(rounds) * 26 / (RIGHT - LEFT))
    for place, number in enumerate(rounds):
        x, top = LEFT + 14 + place * step, FLOOR
        for role, kind in zip(SERIES, totals, strict=False):
            nbytes = sum(one.nbytes for one in egress.by_round if one.round == number and one.kind == kind)
            y = _height(_height_of(top, ticks) + nbytes / KIBIBYTE, ticks)
            if nbytes:
                shapes.append(Box(x + 0.14 * step, y, 0.72 * step, top - y, role))
            top = y
        if place % every == 0:
            name = "none" if number is None else str(number)
            shapes.append(Words(x + step / 2, FLOOR + 16, name, "middle"))
    shapes.append(Words(RIGHT, FLOOR + 32, "round", "end"))
    legend = [(role, f"{kind}: {nbytes:,} bytes") for role, (kind, nbytes) in zip(SERIES, totals.items(), strict=False)]
    shapes += _legend(legend)
    said = "; ".join(text for _, text in legend)
    return Drawing("Bytes that left, by round and kind", said, WIDTH, FLOOR + 40, tuple(shapes))


def accuracy(empirical: Empirical) -> Drawing | None:
    """Accuracy with and without differential privacy, finished at the site and alone, with intervals; the prior."""
    private, low, high = empirical.accuracy_private, empirical.accuracy_private_low, empirical.accuracy_private_high
    without = empirical.accuracy_without
    trained: tuple[tuple[str, Role, Accuracy | None], ...] = (
        ("finished", "third", empirical.accuracy_finished),
        ("alone", "fourth", empirical.accuracy_alone),
        ("alone, equal", "fifth", empirical.accuracy_alone_equal),
    )
    lines: list[tuple[str, Role, float | None, float | None, float | None]] = [
        ("without DP", "first", without, empirical.accuracy_without_low, empirical.accuracy_without_high),
        ("with DP", "second", private, low, high),
        *((name, role, model.accuracy, model.low, model.high) for name, role, model in trained if model),
    ]
    if private is None and without is None:
        return None
    begin, bottom = LEFT + 96, TOP + ROW * len(lines)
    ticks = [0.0, 25.0, 50.0, 75.0, 100.0]
    shapes: Shapes = _widths(ticks, [f"{tick:g} %" for tick in ticks], bottom, begin)
    if empirical.accuracy_prior is not None:
        x = _across(100 * empirical.accuracy_prior, ticks, begin)
        shapes.append(Line(((x, TOP - 4), (x, bottom)), "limit", 1.5, dashed=True))
        shapes.append(Words(x, TOP - 10, f"prior {words([percent(empirical.accuracy_prior)])}", "middle"))
    for place, (name, role, value, least, most) in enumerate(lines):
        y = TOP + ROW * (place + 0.55)
        known = "not known" if value is None else words([percent(value)])
        shapes.append(Words(begin - 14, y + 4, f"{name}: {known}", "end", "ink"))
        if value is None:
            continue
        ends = [_across(100 * end, ticks, begin) for end in (least, most) if end is not None]
        if len(ends) == 2:
            shapes.append(Line(((ends[0], y), (ends[1], y)), role, 3.0))
        shapes.append(Mark(_across(100 * value, ticks, begin), y, role, MARKS[place % len(MARKS)]))
    said = "; ".join(f"{name}: {words([percent(value)])}" for name, _, value, _, _ in lines)
    prior = f"; prior: {words([percent(empirical.accuracy_prior)])}"
    title = "Accuracy on the site's test rows, 95 % intervals"
    return Drawing(title, said + prior, WIDTH, bottom + 24, tuple(shapes))


def attacks(empirical: Empirical) -> Drawing | None:
    """From each attack's lower bound upwards, and the epsilon that is claimed."""
    if not empirical.attacks:
        return None
    claimed = empirical.claimed_epsilon
    largest = max([one.provable for one in empirical.attacks] + [one.epsilon_at_least for one in empirical.attacks])
    ticks = _ticks(1.15 * max(largest, claimed or 0.0))
    begin, bottom = LEFT + 84, TOP + ROW * len(empirical.attacks)
    shapes: Shapes = _widths(ticks, [f"{tick:g}" for tick in ticks], bottom, begin)
    if claimed is not None:
        x = _across(claimed, ticks, begin)
        shapes.append(Line(((x, TOP - 4), (x, bottom)), "limit", 1.5, dashed=True))
        shapes.append(Words(x, TOP - 10, f"claimed {_bound(claimed)}", "middle"))
    for place, one in enumerate(empirical.attacks):
        y = TOP + ROW * (place + 0.45)
        x = _across(one.epsilon_at_least, ticks, begin)
        role: Role = "limit" if one.refutes else "first"
        shapes.append(Words(begin - 10, y + 4, _short(f"{one.artefact}, {one.attack}", 19), "end", "ink"))
        shapes.append(Line(((x, y), (RIGHT - 4, y)), role, 1.5))
        shapes.append(Line(((RIGHT - 10, y - 4), (RIGHT - 4, y), (RIGHT - 10, y + 4)), role, 1.5))
        shapes.append(Mark(x, y, role))
        shapes.append(Words(x + 10, y + 15, f"at least {words([at_least(one.epsilon_at_least)])}"))
    said = "; ".join(
        f"{one.artefact}, {one.attack}: at least {words([at_least(one.epsilon_at_least)])}" for one in empirical.attacks
    )
    claim = "" if claimed is None else f"; claimed: {_bound(claimed)}"
    title = "Epsilon that the attacks prove, beside the claim"
    return Drawing(title, said + claim, WIDTH, bottom + 28, tuple(shapes))


def _kinds(egress: Egress) -> list[str]:
    """Kinds by their bytes, the most first; there are as many kinds as colours."""
    totals = dict.fromkeys((one.kind for one in egress.by_kind), 0)
    for one in egress.by_kind:
        totals[one.kind] += one.nbytes
    return sorted(totals, key=lambda kind: (-totals[kind], kind))


def _ticks(largest: float) -> list[float]:
    """Round numbers from 0 to at least `largest`."""
    if largest <= 0:
        return [0.0, 1.0]
    power = 10.0 ** floor(log10(largest / 4))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size * 4 >= largest * (1 - 1e-9))
    return [float(f"{step * place:.6g}") for place in range(ceil(largest / step - 1e-9) + 1)]


def _height(value: float, ticks: Sequence[float]) -> float:
    return FLOOR - (FLOOR - TOP) * min(value, ticks[-1]) / ticks[-1]


def _height_of(y: float, ticks: Sequence[float]) -> float:
    return (FLOOR - y) / (FLOOR - TOP) * ticks[-1]


def _across(value: float, ticks: Sequence[float], begin: float) -> float:
    return begin + (RIGHT - begin) * min(value, ticks[-1]) / ticks[-1]


def _heights(ticks: Sequence[float], names: Sequence[str], begin: float = LEFT) -> Shapes:
    """A vertical axis: a level line and its name for each tick."""
    shapes: Shapes = []
    for tick, name in zip(ticks, names, strict=True):
        y = _height(tick, ticks)
        shapes += [Line(((begin, y), (RIGHT, y)), "line"), Words(begin - 8, y + 4, name, "end")]
    return shapes


def _widths(ticks: Sequence[float], names: Sequence[str], bottom: float, begin: float) -> Shapes:
    """A horizontal axis: an upright line and its name for each tick."""
    shapes: Shapes = []
    for tick, name in zip(ticks, names, strict=True):
        x = _across(tick, ticks, begin)
        shapes += [Line(((x, TOP), (x, bottom)), "line"), Words(x, bottom + 16, name, "middle")]
    return shapes


def _legend(lines: Sequence[tuple[Role, str]]) -> Shapes:
    """A swatch and words for each, above the picture, as many in a line as there is room for."""
    shapes: Shapes = []
    x, y = 8.0, 12.0
    for role, text in lines:
        width = 32 + 6.2 * len(text)
        if x > 8.0 and x + width > WIDTH:
            x, y = 8.0, y + 17
        shapes += [Box(x, y - 8, 10, 10, role), Words(x + 16, y + 1, text)]
        x += width
    return shapes


def _steps(values: Sequence[float | None], ticks: Sequence[float], role: Role, width: float) -> Shapes:
    """A line that rises at each charge; it is broken where a figure is not known."""
    step = (RIGHT - LEFT) / len(values)
    shapes: Shapes = []
    for known, places in groupby(range(len(values)), key=lambda place: values[place] is not None):
        if known:
            points = list[tuple[float, float]]()
            for place in places:
                y = _height(values[place] or 0.0, ticks)
                points += [(LEFT + (place + 0.2) * step, y), (LEFT + (place + 1.2) * step, y)]
            points[-1] = (points[-1][0] - 0.2 * step, points[-1][1])
            shapes.append(Line(tuple(points), role, width))
    return shapes


def _runs(charges: Sequence[ReportCharge]) -> list[tuple[int, tuple[str, int]]]:
    """Where charges of the same job follow one another: the first's place, the job, how many."""
    runs, place = list[tuple[int, tuple[str, int]]](), 0
    for job, group in groupby(charges, key=lambda charge: charge.job):
        several = len(list(group))
        runs.append((place, (job, several)))
        place += several
    return runs


def _newer(known: float | None, after: float | None) -> float | None:
    """A job's epsilon stays while other jobs are charged."""
    return known if after is None else after


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _bound(value: float) -> str:
    return words([at_most(value)])


def _short(name: str, letters: int) -> str:
    name = plain(name)
    return name if len(name) <= letters else f"{name[: max(letters - 1, 1)]}…"
