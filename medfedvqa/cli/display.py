"""What the terminal shows: progress while a run goes on, tables when it is over."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from medfedvqa.cli.terminal import plain, sentence
from medfedvqa.evaluation.accuracy_table import accuracy_cell, answering
from medfedvqa.federation.hub import TaskAnswer


class Bars:
    """One bar for the rounds and one for each site, with the time left."""

    def __init__(self, console: Console, sites: tuple[str, ...]) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        self._progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
        self._rounds = self._progress.add_task("rounds", total=None)
        self._sites = {site: self._progress.add_task(f"  {plain(site)}", total=None) for site in sites}
        self._answered: dict[tuple[int, str], set[str]] = {}

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def watch(self, event: TaskAnswer) -> None:
        """A site answered: move its bar, and the rounds' bar once all have."""
        answered = self._answered.setdefault((event.round, event.task), set())
        answered.add(event.site)
        evaluating = event.task == "evaluate"
        name = f"  {plain(event.site)}" + (", evaluated" if evaluating else "")
        self._progress.update(self._sites[event.site], total=event.rounds, completed=event.round, description=name)
        if len(answered) == len(self._sites):
            name = "rounds, evaluated" if evaluating else "rounds"
            self._progress.update(self._rounds, total=event.rounds, completed=event.round, description=name)


def show_results(console: Console, results: Mapping[str, Any]) -> None:
    """The table of accuracies: one column per site, one row per way of answering."""
    sites = results["sites"]
    columns = [f"{plain(site)}\nn={facts['n']}" for site, facts in sites.items()]
    table = Table("", *columns, "average", title="Closed questions answered right, % [95 % interval]")
    for way in answering(results):
        label = f"[bold]{plain(way.label)}[/]" if way.name in ("released", "finished") else plain(way.label)
        table.add_row(label, *map(_cell, way.entries))
    console.print(table)
    for note in results["notes"]:
        console.print(f"Note: {sentence(note)}", soft_wrap=True)


def _cell(entry: Mapping[str, Any] | None) -> str:
    return plain(accuracy_cell(entry).replace(" %", ""))
