"""`medfedvqa audit key`, `receipt`, `publish` and `expire`: commands on the log of the site that runs them."""

from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audits import EXIT_CODES, AuditKey, AuditLog, Checkpoint, VerdictState, VerifierKey, origin_of
from audits.cose_receipt import ENTRY, RECEIPT, issue
from audits.retention import RETENTION_DAYS, expire
from medfedvqa.cli.options import new_file
from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, sentence

if TYPE_CHECKING:
    from medfedvqa.federation.site_config import SiteConfig


def key_command(site: SiteFile) -> None:
    """Show the verifier key of a site's log, which others pin or give to `check`; it is made at first use."""
    typer.echo(str(key_of(config_of(site)).public))


def key_of(config: "SiteConfig") -> AuditKey:
    """The key of a site's log."""
    return AuditKey.at(config.audit_key, origin_of(config.name))


def log_of(config: "SiteConfig") -> closing[AuditLog]:
    """A site's log, closed after use."""
    return closing(AuditLog(config.audit, config.name, key_of(config)))


def receipt_command(
    seq: Annotated[int, typer.Argument(help="Number of the entry, from 0.")],
    site: SiteFile,
    out: Annotated[Path, typer.Option(help="The folder to make; must not exist.", callback=new_file)],
) -> None:
    """Sign a COSE Receipt (RFC 9942) for one entry of a site's log, which `medfedvqa audit check` and others read."""
    config = config_of(site)
    receipt, entry = issue(config.audit, seq, key_of(config))
    out.mkdir(parents=True)
    for name, content in ((RECEIPT, receipt), (ENTRY, entry)):
        (out / name).write_bytes(content)
    Terminal().write_line(0, f"Entry {seq} and its receipt are in '{sentence(out)}'")


def publish_command(
    site: SiteFile,
    anew: Annotated[
        bool, typer.Option("--anew", help="Remove the public form first, and make all of it again from the log.")
    ] = False,
) -> None:
    """Sign a site's log, and bring its public form up to the last entry: the folder `tlog` for standard clients."""
    with log_of(config_of(site)) as log:
        size = Checkpoint.parse(log.publish(anew).text).size
    Terminal().print(f"{size} entries of the log are published", highlight=False)


def expire_command(
    site: SiteFile,
    days: Annotated[
        int, typer.Option(help="Closed files of the log older than this many days lose their lines.", min=1, max=36500)
    ] = RETENTION_DAYS,
    date: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            help="Today's date, compared with a calendar by a person: for a site whose log nobody cosigns.",
        ),
    ] = None,
) -> None:
    """Delete lines of a site's log that are past their retention; their hashes stay, and the log says so.

    Times that other parties signed have to show the retention to have passed, not this machine's clock alone. Exit code
    2: files are kept that are past it by the clock alone.
    """
    config = config_of(site)
    pinned = list(map(VerifierKey.parse, config.audit_peers.values()))
    with log_of(config) as log:
        result = expire(log, days, pinned, date.date() if date else None)
    terminal = Terminal()
    terminal.print(f"{result.deleted} files of the log expired", highlight=False)
    if result.waiting:
        terminal.print(
            f"{result.waiting} more are past their retention by this machine's clock alone, and are kept: take part in "
            "a job, whose sites sign the time, or give today's date yourself with --date",
            highlight=False,
        )
        raise typer.Exit(EXIT_CODES[VerdictState.NOT_SHOWN])
