"""Shows a run: its stages, with the time left on a terminal and one line per round elsewhere, and its accuracies."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.evaluation.accuracy import percent
from medfedvqa.evaluation.accuracy_table import ABSENT, COUNTED, AnswerWay, Entry, answering, asked, rows_of, text_table
from medfedvqa.federation.hub import TaskAnswer

EVALUATE = "evaluate"
"""The last task of every method."""
FIRST_ROUND = ", in which each site loads its data and runs the backbone once"


class Stages:
    """Follows the events of a run: rounds first, then the evaluation.

    The time left follows from the rounds after the first, which also fills the caches. A baseline trains for as many
    rounds as the federation, so it is expected to take as long.
    """

    def __init__(
        self,
        console: Terminal,
        sites: int,
        rounds: int,
        baseline: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`baseline`: whether sites also train a model alone while they evaluate. `clock`: returns seconds."""
        self._console, self._sites, self._planned, self._baseline, self._clock = console, sites, rounds, baseline, clock
        self._units = rounds * (2 if baseline else 1) + (0 if baseline else 1)
        columns = TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn()
        time_left = TextColumn("{task.fields[left]}")
        self._bar = Progress(*columns, time_left, console=console, disable=not console.is_terminal or console.quiet)
        self._task = self._bar.add_task("starting the sites", total=self._units, left="")
        self._round, self._evaluating, self._answered = 0, False, set[str]()
        self._began = clock()
        self._seconds: list[float] = []
        """The seconds of each finished round."""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def watch(self, event: TaskAnswer) -> None:
        """Take in that a task was sent, or that a site answered it."""
        if event.site is not None:
            self._answer(event)
            return
        if event.task == EVALUATE and not self._evaluating:
            self._end_round(event.accuracy)
            self._evaluating = True
            name = "evaluating, and training each site's baseline alone" if self._baseline else "evaluating"
            self._show(name, about(self._seconds_left(0)))
        elif event.task != EVALUATE and event.round != self._round:
            self._end_round(event.accuracy)
            if event.round < self._round:  # another run: a benchmark or an attack makes several
                self._seconds, self._evaluating = [], False
            self._round, self._planned, self._began = event.round, event.rounds, self._clock()
            self._show(f"round {event.round} of {event.rounds}", FIRST_ROUND if event.round == 1 else None)
        self._answered = set()

    def _end_round(self, accuracy: float | None) -> None:
        if self._round == 0 or self._evaluating:
            return
        self._seconds.append(self._clock() - self._began)
        self._bar.update(self._task, completed=self._round)
        left = self._seconds_left(self._planned - self._round)
        curve = "" if accuracy is None else f", {percent(accuracy)} of validation rows right"
        self._line(f"round {self._round} of {self._planned}: {duration(self._seconds[-1])}{curve}{about(left)}")

    def _answer(self, event: TaskAnswer) -> None:
        self._answered.add(str(event.site))
        count = f"{len(self._answered)} of {self._sites} sites"
        if not self._evaluating:
            text = f"round {event.round} of {event.rounds}, {count}"
            self._bar.update(self._task, description=text)
            return
        done = self._round + (self._units - self._round) * len(self._answered) / self._sites
        self._bar.update(self._task, completed=done, description=f"evaluating, {count}")
        self._line(f"evaluated {plain(str(event.site))}, {count}")

    def _seconds_left(self, rounds: int) -> float | None:
        """The seconds that these rounds and the baseline after them will take; None before two rounds are over."""
        if len(self._seconds) < 2:
            return None
        each = sum(self._seconds[1:]) / len(self._seconds[1:])
        return each * (rounds + (self._planned if self._baseline else 0))

    def _show(self, stage: str, more: str | None) -> None:
        left = self._seconds_left(max(self._planned - self._round + 1, 0) if not self._evaluating else 0)
        self._bar.update(self._task, description=stage, left=about(left).removeprefix(", "))
        if more is not None:
            self._line(f"{stage}{more}")

    def _line(self, text: str) -> None:
        """Print a line where no bar is drawn."""
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True)


def about(seconds: float | None) -> str:
    """The time left as the end of a line, `, about 2 min left`; empty if it is unknown or below a second."""
    return "" if seconds is None or seconds < 1 else f", about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Seconds as text: `0.4 s`, `37 s` or `2 min 5 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


MARGIN = 3
"""Columns between two columns of the table."""
MOST_OF_NAME = 16
"""The characters of a site's name that are shown in any case."""
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
    table = Table(box=box.SIMPLE_HEAD, padding=(0, padding), pad_edge=False, show_edge=not narrow, title=title)
    longest = max(len(line) for label in labels for line in label.split("\n"))
    table.add_column("site", min_width=min(longest, MOST_OF_NAME), overflow="ellipsis")
    for way in ways:
        label = plain(way.label).replace(" (", "\n(")
        label = "\n".join(label.replace("-", "- ").split()) if narrow else label
        table.add_column(label, justify="right", style="bold" if way.name in BOLD else None, overflow="fold")
    for place, label in enumerate(labels):
        table.add_row(label, *(cell(way.entries[place], narrow) for way in ways))
    console.print(table)


def cell(entry: Entry, narrow: bool = False) -> str:
    """An accuracy and its interval, `61.2 [52.1, 69.6]`; a narrow terminal has `52–70` below it. A dash without one."""
    if entry is None or entry["accuracy"] is None:
        return ABSENT
    low, high = (f"{100 * bound:.{0 if narrow else 1}f}" for bound in entry["interval"])
    accuracy = percent(entry["accuracy"]).removesuffix(" %")
    return f"{accuracy}\n{low}–{high}" if narrow else f"{accuracy} " + plain(f"[{low}, {high}]")


def _width(labels: list[str], ways: list[AnswerWay]) -> int:
    """The table's width, in columns of the terminal, with each interval beside its accuracy."""
    first = max(len(line) for label in labels for line in label.split("\n"))
    cells = (max(len("61.2 [52.1, 69.6]"), len(max(way.label.split(), key=len))) for way in ways)
    return first + MARGIN + sum(width + MARGIN for width in cells)
