"""`medfedvqa plugins`, and the options that allow a run on this machine to load other distributions."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from medfedvqa.errors import ConfigError
from medfedvqa.installed_code import compile_every_source
from medfedvqa.plugins import allow, installed, pinned, read_passed

PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME or NAME=SHA256 of a distribution whose plug-ins to load, see `medfedvqa plugins`; repeatable."
    ),
]
ModuleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--module", "-m", help="Import a module in this folder that registers a method; only with engine local."
    ),
]


def plugins_command(
    site: Annotated[
        Path | None, typer.Option(help="A site.yml, to mark the methods that passed `audit neighbours` there.")
    ] = None,
) -> None:
    """List installed distributions with methods, readers or backbones, by the names and digests for site.yml."""
    plug_ins, passed = installed(), read_passed(site.parent) if site else {}
    typer.echo("plugins:" if plug_ins else "plugins: {}")
    for plug_in in plug_ins:
        offers = ", ".join(f"{group.removesuffix('s')} {name}" for group, name in plug_in.offers)
        if names := passed.get(plug_in.sha256):
            offers += f"; passed `audit neighbours`: {', '.join(names)}"
        elif site is not None and any(group == "methods" for group, _ in plug_in.offers):
            offers += "; has not passed `audit neighbours`"
        # The quotes keep YAML from reading a digest of digits as a number.
        typer.echo(f'  {plug_in.name}: "{plug_in.sha256}"  # {plug_in.version}; {offers}')


def allow_plugins(texts: list[str] | None) -> None:
    """Let this process, and the parties that it starts, load these distributions. Raises `ConfigError`."""
    for text in texts or []:
        name, _, digest = text.partition("=")
        allow({name: digest} if digest else pinned(name))


def import_modules(names: list[str] | None, engine: str) -> None:
    """Import modules for a quick trial, from this folder as Python itself would. Raises `ConfigError`."""
    if names and engine != "local":
        raise ConfigError(
            "--module is for quick trials with the engine 'local': other engines start processes of their own, for "
            "which the method is installed as a distribution (docs/extending.md)"
        )
    if names:
        compile_every_source()
    for name in names or []:
        if "" not in sys.path:
            sys.path.insert(0, "")
        if not all(part.isidentifier() for part in name.split(".")) or find_spec(name.partition(".")[0]) is None:
            raise ConfigError(f"there is no module '{name}' here: give its name as in `import`, from its folder")
        import_module(name)
