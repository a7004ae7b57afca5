"""Commands whose modules are imported when they are called, and not before: torch alone takes seconds."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from medfedvqa.cli.metavars import name_values

NAMES_OF_HELP = {"help_option_names": ["-h", "--help"]}


class Source(NamedTuple):
    """Where a command is, below `medfedvqa.cli`, and the sentence that a list of commands shows of it."""

    module: str
    function: str
    help: str


class Command(TyperCommand):
    """A command whose `--help` is a flag and says nothing of a value."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option `--help`, without the type that Typer (0.29) shows for flags."""
        return _flag(super().get_help_option(ctx))


class LazyCommand(Command):
    """Stands for a command in a list; becomes it when it is called."""

    def __init__(self, name: str, source: Source) -> None:
        super().__init__(name, help=source.help)
        self._name, self._source = name, source

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """The context of the real command, which is then what runs."""
        return self.loaded().make_context(*arguments, **named)

    def loaded(self) -> TyperCommand:
        """The real command."""
        function = getattr(import_module(f"medfedvqa.cli.{self._source.module}"), self._source.function)
        return command_of(self._name, function)


def command_of(name: str, function: Callable[..., None]) -> TyperCommand:
    """The command that a function is, with every option's value named in plain words."""
    name_values(function)
    app = typer.Typer(add_completion=False)
    app.command(name, cls=Command, context_settings=NAMES_OF_HELP)(function)
    command = get_command(app)
    assert isinstance(command, TyperCommand)
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            vars(parameter)["display_type_rich"] = _no_type
    return command


def group_of(sources: Mapping[str, Source]) -> type[TyperGroup]:
    """A kind of group that has these commands before all others."""

    class Group(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            lazy = {name: LazyCommand(name, source) for name, source in sources.items()}
            self.commands = {**lazy, **self.commands}

        def get_params(self, ctx: Any) -> list[Any]:
            """All options; no flag names a value."""
            return [_flag(option) for option in super().get_params(ctx)]

        def get_help_option(self, ctx: Any) -> Any:
            """See `Command.get_help_option`."""
            return _flag(super().get_help_option(ctx))

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Without a word the group explains itself, and exits with 2."""
            if not args and not ctx.resilient_parsing:
                typer.echo(ctx.get_help(), nl=False)
                raise typer.Exit(2)
            return super().parse_args(ctx, args)

    return Group


def _no_type(ctx: Any) -> None:
    """An argument's name says what it is; Typer (0.29) would show its Python type beside it."""


def _flag(option: Any) -> Any:
    if getattr(option, "is_flag", False):
        option.metavar = ""
    return option
