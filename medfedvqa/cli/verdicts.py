"""Shows verdicts on a terminal."""

from audits import Judgement, VerdictState
from medfedvqa.cli.terminal import Terminal, plain, sentence

MARKS = {
    VerdictState.NOT_COMPARED: "not compared",
    VerdictState.SHOWN: "[green]shown[/]",
    VerdictState.NOT_SHOWN: "[yellow]not shown[/]",
    VerdictState.BROKEN: "[bold red]BROKEN[/]",
}


def write_parts(terminal: Terminal, indent: int, judgement: Judgement) -> None:
    """Write a line for each part of a verdict: its name, its state, the log's entry, and a sentence."""
    for part in judgement.parts:
        entry = "" if part.entry is None else f"; entry {part.entry}"
        terminal.write_line(indent, f"{plain(part.name)}: {MARKS[part.state]}{entry}, {sentence(part.said)}")
