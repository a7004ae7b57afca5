"""Shows the stages of a run: with the time left on a terminal, as one line per round elsewhere."""

import time
from collections.abc import Callable
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from medfedvqa.cli.terminal import Terminal, plain
from medfedvqa.evaluation.accuracy import percent
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
            self._begin_evaluation()
        elif event.task != EVALUATE and event.round != self._round:
            self._end_round(event.accuracy)
            self._begin_round(event)
        self._answered = set()

    def _begin_round(self, event: TaskAnswer) -> None:
        if event.round < self._round:  # another run: a benchmark or an attack makes several
            self._seconds, self._evaluating = [], False
        self._round, self._planned, self._began = event.round, event.rounds, self._clock()
        self._show(f"round {event.round} of {event.rounds}", FIRST_ROUND if event.round == 1 else None)

    def _end_round(self, accuracy: float | None) -> None:
        if self._round == 0 or self._evaluating:
            return
        self._seconds.append(self._clock() - self._began)
        self._bar.update(self._task, completed=self._round)
        left = self._seconds_left(self._planned - self._round)
        curve = "" if accuracy is None else f", {percent(accuracy)} of validation rows right"
        self._line(f"round {self._round} of {self._planned}: {duration(self._seconds[-1])}{curve}{about(left)}")

    def _begin_evaluation(self) -> None:
        self._evaluating = True
        name = "evaluating, and training each site's baseline alone" if self._baseline else "evaluating"
        self._show(name, about(self._seconds_left(0)))

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
    """`, about 2 min left`; empty if the time is unknown or below a second."""
    return "" if seconds is None or seconds < 1 else f", about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """`0.4 s`, `37 s` or `2 min 5 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
