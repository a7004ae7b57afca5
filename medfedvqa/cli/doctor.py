"""`medfedvqa doctor`: checks whether a party with this startup kit can take part."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from audits.escaping import SENTENCE, for_terminal
from medfedvqa.cli.options import JsonOption
from medfedvqa.cli.terminal import Terminal

if TYPE_CHECKING:
    from medfedvqa.federation.flare.kit_contents import Check

_MARKS = {"ok": ("ok     ", "green"), "warning": ("warning", "bold yellow"), "failed": ("FAIL   ", "bold red")}


def doctor(
    kit: Annotated[
        Path, typer.Argument(help="The startup kit of a site, a server or an administrator: has startup/ and local/.")
    ],
    server: Annotated[
        bool, typer.Option("--server", help="Also see whether the federation's server answers, and compare clocks.")
    ] = False,
    running: Annotated[bool, typer.Option("--running", help="Also see whether the site, or server, runs.")] = False,
    as_json: JsonOption = False,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="The kit's files are as they should be: remember them as they are now."),
    ] = False,
) -> None:
    """Check all that a party needs to take part, without starting it; exit code 1 if it should not join."""
    from medfedvqa.federation.flare.doctor import accept_changes, examine

    if accept:
        accept_changes(kit)
    checks = examine(kit, server, running)
    passed = all(check.ok for check in checks)
    if as_json:
        typer.echo(json.dumps({"ok": passed, "checks": [_record(check) for check in checks]}, indent=2))
    else:
        _show(checks)
    raise typer.Exit(0 if passed else 1)


def _record(check: "Check") -> dict[str, str | bool | None]:
    names = ("name", "state", "ok", "problem", "remedy", *(() if check.value is None else ("value",)))
    return {name: getattr(check, name) for name in names}


def _show(checks: list["Check"]) -> None:
    console = Terminal()
    for check in checks:
        explanation = "" if check.value is None else f": {check.value}"
        explanation = explanation if check.problem is None else f": {check.problem}; {check.remedy}"
        # Others wrote the files that names come from: `Text`, since rich would take brackets for its markup.
        line = Text.assemble(_MARKS[check.state], Text(f" {for_terminal(check.name + explanation, SENTENCE)}"))
        console.print(line, highlight=False, soft_wrap=True)
    failed, warnings = (sum(check.state == state for check in checks) for state in ("failed", "warning"))
    with_warning = f", {warnings} with a warning" if warnings else ""
    console.print(Text(f"{len(checks) - failed} of {len(checks)} checks passed{with_warning}"), highlight=False)
