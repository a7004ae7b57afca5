"""Commands whose modules are imported when they are called, and not before: torch alone takes seconds."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class Source(NamedTuple):
    """Where a command is, below `medfedvqa.cli`, and the sentence that a list of commands shows of it."""

    module: str
    function: str
    help: str


class LazyCommand(TyperCommand):
    """Stands for a command in a list; becomes it when it is called."""

    def __init__(self, name: str, source: Source) -> None:
        super().__init__(name, help=source.help)
        self._name, self._source = name, source

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """The context of the real command, which is then what runs."""
        return self.loaded().make_context(*arguments, **named)

    def loaded(self) -> TyperCommand:
        """The real command."""
        module = import_module(f"medfedvqa.cli.{self._source.module}")
        app = typer.Typer(add_completion=False)
        app.command(self._name)(getattr(module, self._source.function))
        command = get_command(app)
        assert isinstance(command, TyperCommand)
        return command


def group_of(sources: Mapping[str, Source]) -> type[TyperGroup]:
    """A kind of group that has these commands before all others."""

    class Group(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            lazy = {name: LazyCommand(name, source) for name, source in sources.items()}
            self.commands = {**lazy, **self.commands}

    return Group
