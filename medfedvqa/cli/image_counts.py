"""Shared by the commands that fill a folder for `medfedvqa ingest`: bounded memory, a bar, and counts of outcomes."""

import resource
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from medfedvqa.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections import Counter

MEMORY = 3072
"""MiB of address space, so that hostile content without end cannot fill the machine's memory."""
Watch = Callable[[int, int], None]
"""A function that receives the number of images done, and their total."""


Outcome = TypeVar("Outcome", bound=StrEnum)


def print_counts(
    work: "Callable[[Watch], Counter[Outcome]]",
    title: str,
    meanings: Mapping[Outcome, str],
    memory: int,
    quiet: bool,
) -> "Counter[Outcome]":
    """Do the work in at most `memory` MiB of address space, with a bar; print and return the counts of outcomes."""
    from rich.progress import Progress

    resource.setrlimit(resource.RLIMIT_AS, (memory * 2**20, memory * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    progress, console = Terminal(stderr=True, quiet=quiet), Terminal(quiet=quiet)
    with Progress(console=progress, disable=not progress.is_terminal) as bars:
        bar = bars.add_task(title, total=None)
        outcomes = work(lambda done, total: bars.update(bar, completed=done, total=total))
    for outcome, meaning in meanings.items():
        if outcomes[outcome]:
            console.print(f"{outcomes[outcome]} {meaning}")
    return outcomes
