"""`medfedvqa plugins`, and the options by which a run on this machine allows distributions from outside."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from medfedvqa.errors import ConfigError
from medfedvqa.plugins import allow, installed, pinned

PluginOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME or NAME=SHA256: load what this distribution brings, see `medfedvqa plugins`; repeatable."),
]
ModuleOption = Annotated[
    list[str] | None,
    typer.Option("--module", "-m", help="Import a module of this folder that registers a method; engine local only."),
]


def plugins_command() -> None:
    """Installed distributions with methods, readers or backbones, as site.yml allows them: by name and digest."""
    found = installed()
    typer.echo("plugins:" if found else "plugins: {}")
    for plug_in in found:
        offers = ", ".join(f"{group.removesuffix('s')} {name}" for group, name in plug_in.offers)
        # In quotes, as YAML reads digits alone as a number.
        typer.echo(f'  {plug_in.name}: "{plug_in.sha256}"  # {plug_in.version}; {offers}')


def allow_plugins(given: list[str] | None) -> None:
    """This process, and the parties that it starts, may load these. Raises `ConfigError`."""
    for text in given or []:
        name, _, digest = text.partition("=")
        allow({name: digest} if digest else pinned(name))


def import_modules(names: list[str] | None, engine: str) -> None:
    """Modules for a quick trial in this process, found as Python finds them from this folder. Raises `ConfigError`."""
    if names and engine != "local":
        raise ConfigError(
            "--module is for quick trials with the engine 'local': other engines start processes of their own, for "
            "which the method is installed as a distribution (docs/extending.md)"
        )
    for name in names or []:
        if "" not in sys.path:
            sys.path.insert(0, "")
        if not all(part.isidentifier() for part in name.split(".")) or find_spec(name.partition(".")[0]) is None:
            raise ConfigError(f"there is no module '{name}' here: give its name as in `import`, from its folder")
        import_module(name)
