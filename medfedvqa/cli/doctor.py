"""`medfedvqa doctor` and `status`: whether a party can take part, and the health of a site."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from audits.escaping import SENTENCE, for_terminal
from medfedvqa.cli.options import JsonOption, SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain, sentence

if TYPE_CHECKING:
    from medfedvqa.federation.flare.kit_contents import Check
    from medfedvqa.federation.flare.site_health import SiteHealth

_MARKS = {"ok": ("ok     ", "green"), "warning": ("warning", "bold yellow"), "failed": ("FAIL   ", "bold red")}


def doctor(
    kit: Annotated[
        Path, typer.Argument(help="The startup kit of a site, a server or an administrator, with startup/ and local/.")
    ],
    server: Annotated[
        bool, typer.Option("--server", help="Also check that the federation's server answers, and compare clocks.")
    ] = False,
    running: Annotated[bool, typer.Option("--running", help="Also check that the site or server is running.")] = False,
    as_json: JsonOption = False,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Accept the kit's files as they are now, and remember them."),
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


def status(
    site: SiteFile,
    as_json: JsonOption = False,
    prometheus: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write FILE for node_exporter's textfile collector: name it *.prom."),
    ] = None,
) -> None:
    """Show whether a site is up, what it runs and refused, its budget, disk and certificate; exit code 1 if it is not
    well."""
    from medfedvqa.atomic_files import write_whole
    from medfedvqa.federation.flare.site_health import health_of

    health = health_of(config_of(site), site)
    if prometheus is not None:
        write_whole(prometheus, health.metrics().encode(), 0o644)
    if as_json:
        typer.echo(json.dumps(health.record(), indent=2))
    else:
        _show_status(health)
    raise typer.Exit(0 if health.ok else 1)


def _show_status(health: "SiteHealth") -> None:
    console = Terminal()
    lines = {
        "site": f"{plain(health.site)}, {'up' if health.up else 'not running'}",
        "running jobs": plain(", ".join(health.running)) or "none",
        "unclosed jobs": plain(", ".join(health.unclosed)) or "none",
        "audit log": sentence(health.log_problem) if health.log_problem else "readable",
        "newest entry": "none" if health.last_entry is None else f"{health.last_entry:%Y-%m-%d %H:%M:%S} UTC",
        "isolation": health.isolation or "no job yet",
        "refusals of 24 h": ", ".join(f"{code} {count}" for code, count in health.refusals.items()) or "none",
        "free disk": f"{health.free >> 20:,} MiB",
    }
    if health.budget is not None:
        limit = "no limit" if health.budget.limit is None else f"limit {health.budget.limit:g}"
        lines["budget"] = (
            f"epsilon {health.budget.spent:.3f} spent, {health.budget.authorised:.3f} with reserved, {limit}"
        )
    if health.certificate is not None:
        soon = f", in {(health.certificate - health.time).days} days: renew it" if health.ends_soon else ""
        lines["certificate"] = f"ends on {health.certificate:%Y-%m-%d}{soon}"
    for name, text in lines.items():
        console.print(f"{name + ':':17} {text}", highlight=False, soft_wrap=True)
