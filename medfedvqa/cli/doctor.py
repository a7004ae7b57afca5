"""`medfedvqa doctor`: is a site's startup kit fit to join?"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.checks import Check, hardening, record_digests
from medfedvqa.federation.flare.doctor import examine


def doctor(
    kit: Annotated[Path, typer.Argument(help="A site's startup kit: the folder with startup/ and local/.")],
    server: Annotated[bool, typer.Option("--server", help="Also see whether the federation's server answers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts: one JSON object.")] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="The kit's files are as they should be: remember them as they are now.")
    ] = False,
) -> None:
    """Check hardening, site.yml, folders, keys, disk and clock of a site; exit code 1 if the site should not join."""
    if accept:
        _accept(kit)
    found = examine(kit, server)
    sound = all(check.ok for check in found)
    if as_json:
        checks = [{"name": one.name, "ok": one.ok, "problem": one.problem, "remedy": one.remedy} for one in found]
        typer.echo(json.dumps({"ok": sound, "checks": checks}, indent=2))
    else:
        _show(found)
    raise typer.Exit(0 if sound else 1)


def _accept(kit: Path) -> None:
    if not all(check.ok for check in hardening(kit)):
        raise ConfigError(
            "the hardening does not hold, and that cannot be accepted: `medfedvqa doctor` says what is off"
        )
    record_digests(kit / "local")


def _show(found: list[Check]) -> None:
    console = Console()
    for check in found:
        mark = "[green]ok[/]  " if check.ok else "[bold red]FAIL[/]"
        said = "" if check.ok else f": {check.problem}; {check.remedy}"
        console.print(f"{mark} {check.name}{said}", highlight=False, soft_wrap=True)
    failed = sum(not check.ok for check in found)
    console.print(f"{len(found) - failed} of {len(found)} checks passed", highlight=False)
