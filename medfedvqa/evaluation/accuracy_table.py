"""`table.md`: one row per way of answering, one column per site, every accuracy with its interval."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audits.escaping import NAME, SENTENCE, for_markdown, for_terminal
from medfedvqa.atomic_files import write_whole
from medfedvqa.evaluation.accuracy import percent

TABLE = "table.md"
FREE = {"majority": "majority", "question_prior": "question-only prior"}
"""What needs no training, as tables name it."""
TRAINED = {"alone": "alone", "alone_equal": "alone with equal steps"}
"""Models that a site trains without the others, as tables name them."""
ABSENT = "–"

Results = Mapping[str, Any]
"""What `results.json` holds."""


Entry = Mapping[str, Any] | None


@dataclass(frozen=True)
class Answering:
    """One way of answering."""

    name: str
    """The name of a baseline in `results.json`, `released` or `finished`."""
    label: str
    """As tables and pictures name it."""
    entries: tuple[Entry, ...]
    """Each site's accuracy with its interval, and at last the average's; None where there is none."""


def answering(results: Results) -> list[Answering]:
    """The rows of a table of accuracies. A model that no site trained has none."""
    columns, method = [*results["sites"].values(), results["average"]], results["method"]
    trained = {name: _baseline(columns, name, label) for name, label in TRAINED.items()}
    finished = Answering("finished", f"{method}, finished at the site", tuple(each["finished"] for each in columns))
    released = f"{method} (released)" if any(finished.entries) else method
    return [
        *(_baseline(columns, name, label) for name, label in FREE.items()),
        *(row for row in trained.values() if any(row.entries)),
        Answering("released", released, tuple(columns)),
        *([finished] if any(finished.entries) else []),
    ]


def _baseline(columns: list[Mapping[str, Any]], name: str, label: str) -> Answering:
    return Answering(name, label, tuple(each["baselines"][name] for each in columns))


def write_table(out: Path, results: Results) -> Path:
    """Write `table.md` in the folder `out`, whole or not at all."""
    return write_whole(out / TABLE, markdown_table(results).encode())


def markdown_table(results: Results) -> str:
    """The table, the facts of the run below it, and each note as a paragraph of its own."""
    head, rows = _cells(results, for_markdown)
    paragraphs = [
        _aligned(head, rows),
        "Accuracy on the test rows with its 95 % interval (sites: Wilson; average: variance recovery).",
        for_markdown(facts_line(results)),
        *map(for_markdown, results["notes"]),
    ]
    return "\n\n".join(paragraphs) + "\n"


def text_table(results: Results) -> str:
    """The accuracies alone, as plain text in columns."""
    head, rows = _cells(results, for_terminal)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])

    return "\n".join(map(line, (head, *rows)))


def _cells(results: Results, escaped: Callable[[str, int], str]) -> tuple[list[str], list[list[str]]]:
    """The heading and the rows of the table, with names of others as the medium needs them."""
    columns = ((escaped(site, NAME), entry["n"]) for site, entry in results["sites"].items())
    head = ["", *(name if rows is None else f"{name} (n = {rows})" for name, rows in columns), "average"]
    return head, [[escaped(way.label, SENTENCE), *map(accuracy_cell, way.entries)] for way in answering(results)]


def accuracy_cell(entry: Entry) -> str:
    """`61.2 % [52.1, 69.6]` of an entry with an accuracy and an interval; a dash where there is none."""
    if entry is None or entry["accuracy"] is None:
        return ABSENT
    low, high = entry["interval"]
    return f"{percent(entry['accuracy'])} [{100 * low:.1f}, {100 * high:.1f}]"


def facts_line(results: Results) -> str:
    """What was run on what, and what travelled, in one line."""
    backbone, split = results["backbone"], results["split"]
    seen = "unknown" if backbone["seen"] is None else ", ".join(backbone["seen"]) or "nothing"
    facts = [
        f"Data {results['data'] or 'of each site'}, {split['kind']} split (seed {split['seed']})",
        f"backbone {backbone['name']} (trained on: {seen})",
        f"{len(results['rounds'])} of {results['rounds_planned']} rounds",
        f"seed {results['seed']}",
        f"bytes per site and round: {_traffic(results, 'up')} up, {_traffic(results, 'down')} down",
        *_privacy(results),
    ]
    return "; ".join(facts) + "."


def _privacy(results: Results) -> list[str]:
    """What the run cost each patient at most."""
    if results["dp"] is None:
        return []
    spent = max((entry["epsilon"] or 0.0 for entry in results["sites"].values()), default=0.0)
    return [f"epsilon {spent:.2f} per patient at delta {results['dp']['delta']:g}"]


def _traffic(results: Results, direction: str) -> str:
    """The bytes that every site and round had in common, or their range."""
    amounts = [traffic[direction] for record in results["rounds"] for traffic in record["bytes"].values()]
    if not amounts:
        return ABSENT
    low, high = min(amounts), max(amounts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _aligned(head: list[str], rows: list[list[str]]) -> str:
    """A markdown table that reads well as plain text too: figures to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

    def line(cells: list[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]) + " |"

    return "\n".join(line(cells) for cells in (head, rule, *rows))
