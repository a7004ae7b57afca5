"""The benchmark's table in Markdown, and the prompt paper's tables beside this project's figures."""

from collections.abc import Mapping, Sequence

from audits.escaping import NAME, for_markdown
from medfedvqa.benchmark.grid import FREE, Grid
from medfedvqa.benchmark.outcome import RunOutcome
from medfedvqa.benchmark.printed import PRINTED, PrintedTable
from medfedvqa.benchmark.statistics import Summary, average, by_site, holm, p_value

Outcomes = Mapping[str, Sequence[RunOutcome]]


def markdown(grid: Grid, outcomes: Outcomes) -> str:
    """The whole page: the settings, every system, and the paper's table if it has one for this data."""
    reference = best_baseline(grid, outcomes)
    parts = [_facts(grid), _comparison(grid, outcomes, reference), _reading(reference)]
    if grid.reader in PRINTED:
        parts += [f"## {PRINTED[grid.reader].title}", beside_printed(PRINTED[grid.reader], outcomes)]
    return "\n\n".join(parts) + "\n"


def best_baseline(grid: Grid, outcomes: Outcomes) -> str:
    """The label of the baseline with the highest average accuracy."""
    labels = [*FREE, *(system.label for system in grid.systems if system.baseline)]
    return max(labels, key=lambda label: average(outcomes[label]).mean)


def _comparison(grid: Grid, outcomes: Outcomes, reference: str) -> str:
    others = [label for label in outcomes if label != reference]
    corrected = holm({label: p_value(outcomes[label], outcomes[reference]) for label in others})
    sites = [for_markdown(site, NAME) for site in grid.sites]
    head = ["system", *sites, "average", f"p against {reference}", "bytes up", "bytes down", "s", "trained"]
    rows = []
    for label, runs in outcomes.items():
        accuracies = [*by_site(runs).values(), average(runs)]
        first = runs[0]
        cost = ["", "", "", ""]
        if first.parameters:
            cost = [f"{first.bytes_up:,.0f}", f"{first.bytes_down:,.0f}", f"{first.seconds:.1f}"]
            cost.append(f"{first.parameters:,}")
        tested = f"{corrected[label]:.3f}" if label in corrected else "reference"
        rows.append([label, *map(cell, accuracies), tested, *cost])
    return _table(head, rows)


def beside_printed(printed: PrintedTable, outcomes: Outcomes) -> str:
    """The paper's table in its own layout, with its figures and ours, and what differs in each row."""
    head = ["", *(f"{column} ({which})" for column in printed.columns for which in ("paper", "here")), "what differs"]
    rows = []
    for row in printed.rows:
        ours = by_site(outcomes[row.label]) if row.label in outcomes else {}
        cells = []
        for site, figure in zip(printed.columns.values(), row.figures, strict=True):
            cells += [f"{figure:.2f}", f"{100 * ours[site].mean:.2f}" if site in ours else "–"]
        rows.append([row.name, *cells, row.differs])
    return "\n\n".join([_table(head, rows), *printed.notes])


def _facts(grid: Grid) -> str:
    budget = ", ".join(f"{name} {value}" for name, value in grid.budget.items()) or "each method's own budget"
    backbone = for_markdown(grid.job(grid.systems[0], 0).backbone)
    return (
        f"Data {grid.reader}, official split, {len(grid.sites)} sites; backbone {backbone}, frozen but for what is "
        f"trained; {grid.seeds} seeds; {budget}."
    )


def _reading(reference: str) -> str:
    return (
        "Accuracy on closed questions: mean over seeds, its standard deviation, and the 95 % interval of that mean on "
        "these test rows, by patient (sites: Wilson with effective rows; average: variance recovery). p: paired "
        f"permutation test over patients against {reference}, the best of the baselines, corrected after Holm for all "
        "rows. Bytes per site and round; s are processor seconds per round, of all sites together, without decoding pictures."
    )


def cell(summary: Summary) -> str:
    """`61.2 ± 1.4 [52, 70]`, in per cent."""
    low, high = summary.interval
    return f"{100 * summary.mean:.1f} ± {100 * summary.deviation:.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
