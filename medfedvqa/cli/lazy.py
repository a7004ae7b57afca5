"""Commands whose modules are imported only when they are called, since torch alone takes seconds, and their errors."""

import ast
import datetime
import errno
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.models import ArgumentInfo, OptionInfo

from medfedvqa.near_miss import suggestion

# Names the values of options in `--help`: `PATH`, `N`, or the choices; a flag takes no value.

WORDS: dict[Any, str] = {
    bool: "",
    Path: "PATH",
    int: "N",
    float: "NUMBER",
    str: "TEXT",
    datetime.datetime: "YYYY-MM-DD",
}


def name_values(function: Callable[..., None]) -> None:
    """Name the value of every option of a command that has no name for it yet."""
    for name, hint in get_type_hints(function, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        kind, *settings = get_args(hint)
        for option in settings:
            if isinstance(option, OptionInfo) and option.metavar is None:
                option.metavar = word_for(kind)
            elif isinstance(option, ArgumentInfo) and option.metavar is None:
                option.metavar = name.upper() + ("..." if get_origin(kind) is list else "")


def word_for(kind: Any) -> str:
    """The word for a value of this type, or all choices."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return word_for(next(part for part in get_args(kind) if part is not type(None)))
    if origin is list:
        return word_for(get_args(kind)[0])
    if origin is Literal:
        return "|".join(map(str, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    return WORDS[kind]


LEFT_OUT = {"--secagg": ("masks", "crypten")}
"""The values of options that may stand without a value, which means the first. Typer (0.29) requires a value."""

NAMES_OF_HELP = {"help_option_names": ["-h", "--help"]}


class CommandSource(NamedTuple):
    """The place of a command: a module below `medfedvqa.cli`, and the function in it."""

    module: str
    function: str
    parts: "Mapping[str, CommandSource]" = {}
    """Subcommands: one of them runs instead if the first argument is its name."""

    @property
    def summary(self) -> str:
        """The first paragraph of the function's docstring, which is read without importing the module."""
        path = Path(__file__).with_name(f"{self.module}.py")
        functions = (node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef))
        docstring = next(ast.get_docstring(node) for node in functions if node.name == self.function)
        return " ".join((docstring or "").split("\n\n")[0].split())


class Command(TyperCommand):
    """A command whose `--help` is shown as a flag, without a value."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option `--help`, without the type that Typer (0.29) shows for flags."""
        return _flag(super().get_help_option(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments as they are parsed: an option of `LEFT_OUT` may stand without its value."""
        return super().parse_args(ctx, list(_with_values(args)))


class LazyCommand(Command):
    """Stands for a command in a list, and loads it when it is called."""

    def __init__(self, name: str, source: CommandSource) -> None:
        super().__init__(name)
        self._name, self._source = name, source
        del self.help  # so that the property below is read

    @cached_property
    def help(self) -> str:  # type: ignore[override]
        """The sentence that a list of commands shows."""
        return self._source.summary

    def make_context(self, *arguments: Any, **others: Any) -> Any:
        """The context of the command that the arguments name, which then runs."""
        name, words, *further = arguments
        command, rest = self.named(words)
        return command.make_context(" ".join([name, *words[: len(words) - len(rest)]]), rest, *further, **others)

    def named(self, words: list[str]) -> tuple[TyperCommand, list[str]]:
        """The real command, or the part of it that the first argument names, and the arguments that it gets."""
        if words and words[0] in self._source.parts:
            return LazyCommand(f"{self._name} {words[0]}", self._source.parts[words[0]]).named(words[1:])
        return self.loaded(), words

    def loaded(self) -> TyperCommand:
        """The command itself, from its imported module."""
        function = getattr(import_module(f"medfedvqa.cli.{self._source.module}"), self._source.function)
        return command_of(self._name, function)


def command_of(name: str, function: Callable[..., None]) -> TyperCommand:
    """The command that calls a function. Its help names the value of every option in plain words."""
    name_values(function)
    app = typer.Typer(add_completion=False)
    app.command(name, cls=Command, context_settings=NAMES_OF_HELP)(function)
    command = get_command(app)
    assert isinstance(command, TyperCommand)
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            vars(parameter)["display_type_rich"] = _no_type
    return command


def group_of(sources: Mapping[str, CommandSource]) -> type[TyperGroup]:
    """The class of a group with these commands before all others."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            lazy = {name: LazyCommand(name, source) for name, source in sources.items()}
            self.commands = {**lazy, **self.commands}

        def get_params(self, ctx: Any) -> list[Any]:
            """All options, with flags shown without a value."""
            return [_flag(option) for option in super().get_params(ctx)]

        def get_help_option(self, ctx: Any) -> Any:
            """See `Command.get_help_option`."""
            return _flag(super().get_help_option(ctx))

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Without a command the group shows its help, and exits with 2."""
            if not args and not ctx.resilient_parsing:
                typer.echo(ctx.get_help(), nl=False)
                raise typer.Exit(2)
            return super().parse_args(ctx, args)

    return LazyGroup


def _with_values(args: Sequence[str]) -> Iterator[str]:
    """The arguments, with the values that were left out."""
    for argument, following in pairwise([*args, ""]):
        yield argument
        if argument in LEFT_OUT and following not in LEFT_OUT[argument]:
            yield LEFT_OUT[argument][0]


def _no_type(ctx: Any) -> None:
    """Returns None in place of the Python type that Typer (0.29) shows beside an argument's name."""


def _flag(option: Any) -> Any:
    """The option; if it is a flag, its help shows no value."""
    if getattr(option, "is_flag", False):
        option.metavar = ""
    return option


# Explains in one sentence what is wrong with a command, or which packages it lacks.

PLACES = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT})
"""Errors about a path, which a user can replace by another."""
CHOICE = re.compile(r"'([^']*)' is not one of (.*)$")
RENAMED = {"--budget": "--rounds", "--epochs": "--local-epochs", "--root": "--data-root", "--output": "--out"}
"""The options that people mean by these names."""


def explained(error: typer.TyperException) -> str:
    """The error as a sentence, with the nearest names that exist and the command that lists them."""
    context: Any = getattr(error, "ctx", None)
    text = error.message.strip().rstrip(".")
    if context is None:
        return text
    name = getattr(error, "option_name", None)
    if name is not None and text.startswith("No such option"):
        options = [flag for option in context.command.params for flag in (*option.opts, *option.secondary_opts)]
        text = f"there is no option '{name}'"
        hint = f"did you mean '{RENAMED[name]}'?" if RENAMED.get(name) in options else suggestion(name, options)
        text = f"{text}: {hint}" if hint else text
    else:
        text = error.format_message().strip().rstrip(".").replace("Value error, ", "")
        text = text[:1].lower() + text[1:]
        if choice := CHOICE.search(text):
            close = suggestion(choice[1], re.findall(r"'([^']*)'", choice[2]))
            text = f"{text}: {close}" if close else text
    end = "" if text.endswith("?") else "."
    return f"{text}{end} `{context.command_path} --help` lists what there is."


def place_of(error: OSError) -> str | None:
    """Why a path that the user named cannot be used; None for an error of another kind."""
    if error.errno not in PLACES or error.filename is None:
        return None
    return f"'{error.filename}' cannot be used ({error.strerror}): choose another place"


TRAINING = frozenset(
    {
        *("torch", "torchvision", "open_clip", "opacus", "crypten", "nvflare", "monai", "pydicom", "PIL", "scipy"),
        *("matplotlib", "safetensors", "typst", "pyarrow", "pyrage"),
    }
)
"""The modules that the extra `train` brings."""
SENTENCE = (
    "this command needs packages that are not installed here, as torch: install them with "
    "`pip install 'medfedvqa[train]'`"
)


def is_missing_extra(error: BaseException) -> bool:
    """Whether the error is about a module that the extra `train` brings."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in TRAINING
