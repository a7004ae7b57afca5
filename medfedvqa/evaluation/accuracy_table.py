"""The table of accuracies: one row per way of answering, one column per site, each with its interval; and the table in
three sentences.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import hypot
from pathlib import Path
from typing import Any

from audits.escaping import NAME, SENTENCE, for_markdown, for_terminal
from medfedvqa.atomic_files import write_whole
from medfedvqa.evaluation.accuracy import Interval, percent

TABLE = "table.md"
FREE = {"majority": "majority", "question_prior": "question-only prior"}
"""Labels of the baselines that need no training."""
KEPT = {"finished": "finished at the site", "kept_accuracy": "what each site keeps"}
"""Labels of the models that sites make from a released one."""
TRAINED = {"alone": "alone", "alone_equal": "alone with equal steps"}
"""Labels of the models that a site trains alone."""
ABSENT = "–"
CAPTION = (
    "Accuracy on the test rows with its 95 % interval (sites: Wilson; average: variance recovery), which counts rows, "
    "not patients: it is too narrow where a patient has several rows."
)
"""Sites release counts of rows only, from which no design effect follows."""
COUNTED = (
    "Numbers of patients with training or validation rows. In clear they are rounded down to whole groups, so that 0 "
    "is any number below the smallest group; under differential privacy they have noise. Categories that are 0 at all "
    "sites are left out."
)
KINDS = {"closed": "closed questions", "open": "open questions", "all": "open and closed questions"}
"""The words for the questions of a run; earlier versions had only closed ones, and did not record it."""

Results = Mapping[str, Any]
"""The content of `results.json`."""
Entry = Mapping[str, Any] | None


@dataclass(frozen=True)
class AnswerWay:
    """A row of the table: a baseline or a trained model, with its accuracies."""

    name: str
    """A baseline's name in `results.json`, `released` or one of `KEPT`."""
    label: str
    """The label in tables and plots."""
    entries: tuple[Entry, ...]
    """Each site's accuracy with its interval, then the average; None for a missing accuracy."""


def answering(results: Results) -> list[AnswerWay]:
    """The rows of a table of accuracies, without models that no site trained."""
    columns, method = [*results["sites"].values(), results["average"]], results["method"]
    trained = {name: _baseline(columns, name, label) for name, label in TRAINED.items()}
    kept = [
        AnswerWay(name, f"{method}, {label}", tuple(each.get(name) for each in columns)) for name, label in KEPT.items()
    ]
    kept = [row for row in kept if any(row.entries)]
    released = f"{method} (released)" if kept else method
    return [
        *(_baseline(columns, name, label) for name, label in FREE.items()),
        *(row for row in trained.values() if any(row.entries)),
        AnswerWay("released", released, tuple(columns)),
        *kept,
    ]


def asked(results: Results) -> str:
    """The kind of questions of a run, in words."""
    return KINDS[results["split"].get("questions", "closed")]


def _baseline(columns: list[Mapping[str, Any]], name: str, label: str) -> AnswerWay:
    return AnswerWay(name, label, tuple(each["baselines"][name] for each in columns))


def write_table(out: Path, results: Results) -> Path:
    """Writes `table.md` in the folder `out`, whole or not at all."""
    return write_whole(out / TABLE, markdown_table(results).encode())


def markdown_table(results: Results) -> str:
    """The table, the facts of the run below it, and each note as a paragraph of its own."""
    head, rows = _cells(results, for_markdown)
    paragraphs = [
        _aligned(head, rows),
        COUNTED if "statistics" in results else CAPTION,
        for_markdown(facts_line(results)),
        *map(for_markdown, results["notes"]),
    ]
    return "\n\n".join(paragraphs) + "\n"


def text_table(results: Results) -> str:
    """The accuracies alone, as plain text in columns."""
    head, rows = _cells(results, for_terminal)
    return "\n".join("  ".join(line) for line in _padded([head, *rows]))


def _cells(results: Results, escaped: Callable[[str, int], str]) -> tuple[list[str], list[list[str]]]:
    """The heading and the rows of the table, with foreign names escaped for the medium."""
    if "statistics" in results:
        return _counted(results["statistics"], escaped)
    names = (f"{escaped(site, NAME)} ({rows_of(results, site)})" for site in results["sites"])
    head = ["", *(name.removesuffix(" ()") for name in names), "average"]
    return head, [[escaped(way.label, SENTENCE), *map(accuracy_cell, way.entries)] for way in answering(results)]


Statistics = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Counts of patients by site, table and category."""


def categories_of(statistics: Statistics) -> dict[str, list[str]]:
    """The categories of each table in which any site has patients."""
    sites = list(statistics.values())
    return {
        table: [name for name in categories if any(site[table][name] >= 0.5 for site in sites)]
        for table, categories in sites[0].items()
    }


def _counted(statistics: Statistics, escaped: Callable[[str, int], str]) -> tuple[list[str], list[list[str]]]:
    """One row per category that any site has, one column per site."""
    rows = [
        [escaped(f"{table}: {name}", SENTENCE), *(f"{site[table][name]:.0f}" for site in statistics.values())]
        for table, names in categories_of(statistics).items()
        for name in names
    ]
    return ["", *(escaped(site, NAME) for site in statistics)], rows


def rows_of(results: Results, site: str) -> str:
    """The number of a site's test rows, `withheld` if the site withheld its results, or empty if unknown."""
    rows = results["sites"][site]["n"]
    return f"n = {rows}" if rows is not None else "withheld" if site in results.get("withheld", ()) else ""


def accuracy_cell(entry: Entry) -> str:
    """An accuracy with its interval, `61.2 % [52.1, 69.6]`; a dash if the entry has none."""
    if entry is None or entry["accuracy"] is None:
        return ABSENT
    low, high = entry["interval"]
    return f"{percent(entry['accuracy'])} [{100 * low:.1f}, {100 * high:.1f}]"


def facts_line(results: Results) -> str:
    """The facts of the run and its traffic, in one line."""
    backbone, split = results["backbone"], results["split"]
    data = "unknown" if backbone["seen"] is None else ", ".join(backbone["seen"]) or "nothing"
    facts = [
        f"Data {results['data'] or 'of each site'}, {asked(results)}, {split['kind']} split (seed {split['seed']})",
        f"backbone {backbone['name']} (trained on: {data})",
        f"{len(results['rounds'])} of {results['rounds_planned']} rounds",
        f"seed {results['seed']}",
        f"bytes per site and round: {_traffic(results, 'up')} up, {_traffic(results, 'down')} down",
        *_privacy(results),
    ]
    return "; ".join(facts) + "."


def _privacy(results: Results) -> list[str]:
    """The largest cost of the run for a patient."""
    if results["dp"] is None:
        return []
    spent = max((entry["epsilon"] or 0.0 for entry in results["sites"].values()), default=0.0)
    return [f"epsilon {spent:.2f} per patient at delta {results['dp']['delta']:g}"]


def _traffic(results: Results, direction: str) -> str:
    """The bytes of every site and round, or their range."""
    amounts = [traffic[direction] for record in results["rounds"] for traffic in record["bytes"].values()]
    if not amounts:
        return ABSENT
    low, high = min(amounts), max(amounts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _aligned(head: list[str], rows: list[list[str]]) -> str:
    """A markdown table with aligned columns, which reads well as plain text too."""
    head, *rows = _padded([head, *rows])
    rule = ["-" * len(head[0]), *("-" * (len(cell) - 1) + ":" for cell in head[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def _padded(lines: list[list[str]]) -> list[list[str]]:
    """Cells as wide as their column: the first column aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        for first, *others in lines
    ]


_Summary = Mapping[str, Any]
"""An accuracy with its interval, as in `results.json`."""


def explained(results: Mapping[str, Any]) -> list[str]:
    """Sentences on the averages over sites: best untrained baseline, training alone, and sharing.

    A sentence whose figures are missing is left out: a run may have no baseline, or keep its scores at the sites.
    """
    average, baselines = results["average"], results["average"]["baselines"]
    untrained = [baselines[name] for name in ("question_prior", "majority") if baselines[name]]
    alone = baselines["alone"]
    if not untrained or average["accuracy"] is None:
        return []
    free = max(untrained, key=lambda entry: float(entry["accuracy"]))
    words = "the most frequent answer to the same question" if free is untrained[0] else "the most frequent answer"
    sentences = [f"What is free: {words}, which looks at no picture and trains nothing, is right in {_cell(free)}."]
    if alone:
        sentences.append(
            f"What training alone gives: each site's model, trained without the others, is right in {_cell(alone)}, "
            f"{_gain(alone, free)} against what is free{_judged(alone, free)}."
        )
    against, of = (alone, "training alone") if alone else (free, "what is free")
    sentences.append(
        f"What sharing adds: {results['method']} is right in {_cell(average)}, {_gain(average, against)} against {of}"
        f"{_judged(average, against)}."
    )
    return sentences


def difference(one: _Summary, other: _Summary) -> tuple[float, Interval]:
    """The difference of two accuracies in -1..1 with its 95 % interval, by variance recovery from both intervals.

    The two are taken as independent. They share their test rows, so the interval is rather too wide than too narrow.
    Source: R. Newcombe, "Interval estimation for the difference between independent proportions", 1998, method 10.
    """
    gain = one["accuracy"] - other["accuracy"]
    below = hypot(one["accuracy"] - one["interval"][0], other["interval"][1] - other["accuracy"])
    above = hypot(one["interval"][1] - one["accuracy"], other["accuracy"] - other["interval"][0])
    return gain, (gain - below, gain + above)


def _gain(one: _Summary, other: _Summary) -> str:
    """The difference in points with its interval, `+6.4 points [0.1, 12.6]`."""
    gain, (low, high) = difference(one, other)
    return f"{100 * gain:+.1f} points [{100 * low:.1f}, {100 * high:.1f}]"


def _judged(one: _Summary, other: _Summary) -> str:
    _, (low, high) = difference(one, other)
    if low > 0 or high < 0:
        return ""
    return ", which these test rows do not tell apart from none"


def _cell(entry: _Summary) -> str:
    low, high = entry["interval"]
    return f"{percent(entry['accuracy'])} [{100 * low:.1f}, {100 * high:.1f}] of the test rows"
