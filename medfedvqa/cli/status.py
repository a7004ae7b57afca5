"""`medfedvqa status`: the health of a site, for people and for monitoring systems."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.cli.options import JsonOption
from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain, sentence

if TYPE_CHECKING:
    from medfedvqa.federation.flare.site_health import SiteHealth


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
        _show(health)
    raise typer.Exit(0 if health.ok else 1)


def _show(health: "SiteHealth") -> None:
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
