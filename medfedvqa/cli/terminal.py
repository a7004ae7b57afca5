"""A terminal on which untrusted text has no effect, neither by control sequences nor by rich's markup; and how it
prints verdicts.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

from audits import Judgement, VerdictState
from audits.escaping import NAME, SENTENCE, for_terminal, number, visible

HANGING = 8
"""The indent, in columns, of the rest of a wrapped line; lines themselves begin further to the left."""


class Terminal(Console):
    """A console that writes no control character except the line feed, wherever a text comes from.

    Markup must be escaped where a sentence is composed: `plain` does both. `:ab:`, as in fingerprints, is not replaced
    by a picture.
    """

    def __init__(self, *, stderr: bool = False, **settings: Any) -> None:
        super().__init__(stderr=stderr, emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments that rich renders, made visible. Control sequences of rich itself, as for a bar, stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text, "\n"), segment.style)

    def write_line(self, indent: int, markup: str) -> None:
        """Write one line. On a narrow terminal the rest of the line is indented further than any line begins, so that
        no untrusted text stands where a verdict does.
        """
        if not self.is_terminal:
            self.print(" " * indent + markup, soft_wrap=True, highlight=False)
            return
        lines = Text.from_markup(markup, emoji=False).wrap(self, max(self.width - HANGING, HANGING))
        for place, line in enumerate(lines):
            line.pad_left(HANGING if place else indent)
            self.print(line, soft_wrap=True, highlight=False)


def plain(text: str, length: int = NAME) -> str:
    """A text of others for rich: one line of at most this length, without markup and control sequences.

    A backslash at the end is written as its number: rich (14) shows two of them unless markup follows.
    """
    visible_text = for_terminal(text, length)
    ends_badly = visible_text.endswith("\\")
    return escape(visible_text[:-1] + number(visible_text[-1]) if ends_badly else visible_text)


def sentence(text: object) -> str:
    """Like `plain`, with a higher limit of characters, for a sentence that may quote untrusted text."""
    return plain(str(text), SENTENCE)


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
