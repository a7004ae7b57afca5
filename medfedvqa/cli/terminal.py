"""The terminal, on which no text of others is obeyed: neither a terminal's control sequences nor rich's markup."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

from audits.escaping import NAME, SENTENCE, for_terminal, number, visible

HANGING = 8
"""Columns before what is left of a line that is longer than the terminal is wide; lines begin further to the left."""


class Terminal(Console):
    """A console that writes no control character but the line feed, wherever a text comes from.

    Markup has to be escaped where a sentence is put together: `plain` does both. Words such as `:ab:`, which stand in
    fingerprints, are no pictures here.
    """

    def __init__(self, *, stderr: bool = False, **settings: Any) -> None:
        super().__init__(stderr=stderr, emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What rich makes of it. Its own control sequences, as a bar of progress needs them, are apart from text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text, "\n"), segment.style)

    def write_line(self, indent: int, markup: str) -> None:
        """A line of its own for programs that read it. A person's terminal may be narrower: there what is left of it
        begins further to the right than any line, so that no text of others stands where a verdict does.
        """
        if not self.is_terminal:
            self.print(" " * indent + markup, soft_wrap=True, highlight=False)
            return
        lines = Text.from_markup(markup, emoji=False).wrap(self, max(self.width - HANGING, HANGING))
        for place, line in enumerate(lines):
            line.pad_left(HANGING if place else indent)
            self.print(line, soft_wrap=True, highlight=False)


def plain(text: str, most: int = NAME) -> str:
    """A text of others for rich, in one line: neither markup nor control sequences, and no longer than that.

    A backslash at the end is written as its number: rich (14) shows two of them unless markup follows.
    """
    shown = for_terminal(text, most)
    return escape(shown[:-1] + number(shown[-1]) if shown.endswith("\\") else shown)


def sentence(text: object) -> str:
    """As `plain`, of a sentence, which may quote others."""
    return plain(str(text), SENTENCE)
