"""Shows the accuracies of a run, in a table that fits a terminal of 80 columns."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from medfedvqa.cli.terminal import plain, sentence
from medfedvqa.evaluation.accuracy import percent
from medfedvqa.evaluation.accuracy_table import ABSENT, COUNTED, AnswerWay, Entry, answering, asked, rows_of, text_table

MARGIN = 3
"""Columns between two columns of the table."""
BOLD = ("released", "finished", "kept_accuracy")
"""The columns with the method's own results."""


def show_results(console: Console, results: Mapping[str, Any]) -> None:
    """Print the notes, and last the table of accuracies, one row per site and one column per way of answering.

    A job that only counts has a table of counts instead.

    A cell has its interval beside the accuracy, or below it if the terminal is narrow.
    """
    for note in results["notes"]:
        console.print(f"Note: {sentence(note)}", soft_wrap=True)
    if "statistics" in results:
        console.print(text_table(results), COUNTED, sep="\n\n", highlight=False, soft_wrap=True)
        return
    ways = answering(results)
    labels = [f"{plain(site)}\n{rows_of(results, site)}".rstrip() for site in results["sites"]] + ["average"]
    narrow = _width(labels, ways) > console.width
    padding = 0 if narrow else 1
    title = f"{asked(results).capitalize()} answered right, % [95 % interval]"
    table = Table("site", box=box.SIMPLE_HEAD, padding=(0, padding), title=title)
    for way in ways:
        label = plain(way.label).replace("-", "-\n" if narrow else "-").replace(" (", "\n(")
        table.add_column(label, justify="right", style="bold" if way.name in BOLD else None, overflow="fold")
    for place, label in enumerate(labels):
        table.add_row(label, *(cell(way.entries[place], narrow) for way in ways))
    console.print(table)


def cell(entry: Entry, narrow: bool = False) -> str:
    """`61.2 [52.1, 69.6]`, or `61.2` above `52.1–69.6` in a narrow terminal; a dash without an accuracy."""
    if entry is None or entry["accuracy"] is None:
        return ABSENT
    low, high = (f"{100 * bound:.1f}" for bound in entry["interval"])
    accuracy = percent(entry["accuracy"]).removesuffix(" %")
    return f"{accuracy}\n{low}–{high}" if narrow else f"{accuracy} " + plain(f"[{low}, {high}]")


def _width(labels: list[str], ways: list[AnswerWay]) -> int:
    """The table's width, in columns of the terminal, with each interval beside its accuracy."""
    first = max(len(line) for label in labels for line in label.split("\n"))
    cells = (max(len("61.2 [52.1, 69.6]"), len(max(way.label.split(), key=len))) for way in ways)
    return first + MARGIN + sum(width + MARGIN for width in cells)
