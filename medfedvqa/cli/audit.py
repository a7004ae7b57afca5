"""`medfedvqa audit`: what left each site, and whether its log is whole, complete and what others hold of it."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from audits import (
    EXIT_CODES,
    RETENTION_DAYS,
    AuditKey,
    AuditLog,
    Checkpoint,
    Examination,
    Row,
    State,
    VerifierKey,
    check,
    describe,
    expire,
    find_logs,
    known_code,
    origin_of,
    prove,
)
from medfedvqa.cli import attack
from medfedvqa.cli.audit_export import export_command
from medfedvqa.cli.audit_options import Against, Folder, Key, Network, Running, judges
from medfedvqa.cli.audit_ui import ui_command
from medfedvqa.cli.display import show_log_totals
from medfedvqa.cli.report_inputs import bytes_of
from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError

app = typer.Typer(help="What left each site, and whether its log is whole.", no_args_is_help=True)
app.command("attack")(attack.attack)
app.command("controls")(attack.controls)
app.command("export")(export_command)
app.command("ui")(ui_command)
CELL = 400
"""Characters of a cell in the table of what passed: the longest holds the sentence that explains a refusal."""
_MARKS = {State.SHOWN: "[green]shown[/]", State.NOT_SHOWN: "[yellow]not shown[/]", State.BROKEN: "[bold red]BROKEN[/]"}


@app.command("verify")
def verify_command(
    folder: Folder,
    against: Against = None,
    key: Key = None,
    running: Running = None,
    network: Network = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Three verdicts on every log below FOLDER: integrity, completeness, consistency with what others hold.

    Exit code 0: all is shown; 1: something is broken; 2: nothing is broken, but something is not shown.
    """
    found = [judge() for judge in judges(folder, against, key, running, network).values()]
    worst = max((one.state for one in found), key=list(State).index)
    if as_json:
        typer.echo(json.dumps({"state": worst, "logs": [one.record() for one in found]}, indent=2))
    else:
        terminal, count = Terminal(), "1 log" if len(found) == 1 else f"{len(found)} logs"
        terminal.write_line(0, f"[bold]Verdict on {count}: {_MARKS[worst]}[/]")
        for one in found:
            _show(terminal, one)
    raise typer.Exit(EXIT_CODES[worst])


@app.command()
def show(folder: Folder) -> None:
    """Which tensors left, with shapes and bytes, to whom and when; then totals. Whether it is true is for `verify`."""
    console, logs = Terminal(), find_logs(folder)
    console.write_line(0, "This is what the logs say; whether they hold is said by `medfedvqa audit verify`.")
    for site, path in logs.items():
        table = Table(
            "time", "job", "round", "task", "event", "peer", "tensor", "shape", "bytes", title=f"Site {plain(site)}"
        )
        for row in describe(path):
            table.add_row(*(plain(cell, CELL) for cell in _cells(row)))
        console.print(table)
    show_log_totals(console, logs)


@app.command()
def proof(
    folder: Annotated[Path, typer.Argument(help="One site's audit folder.")],
    seq: Annotated[int, typer.Argument(help="Number of the entry, from 0.")],
    out: Annotated[Path, typer.Option(help="The file to write; must not exist.")],
) -> None:
    """Write a bundle that shows one entry to somebody who has no log: `medfedvqa audit check` reads it."""
    if out.exists():
        raise ConfigError(f"'{out}' exists already: choose another file")
    out.write_text(json.dumps(prove(folder, seq), indent=2) + "\n", encoding="utf-8")
    Terminal().write_line(0, f"Entry {seq} is proven by '{sentence(out)}'")


@app.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(help="A bundle that `medfedvqa audit proof` wrote.")],
    key: Annotated[
        list[str], typer.Option(help="A verifier key that you trust and that must have signed; repeatable.")
    ],
) -> None:
    """Check a bundle without the log, and print its entry; exit code 1 if it does not hold."""
    proven = check(bytes_of(file), [VerifierKey.parse(one) for one in key])
    who = sentence(", ".join(proven.signers))
    where = f"{plain(proven.checkpoint.origin)}, {proven.checkpoint.size} entries"
    Terminal().write_line(0, f"[green]shown[/]: entry {proven.record['seq']} of {where}, signed by {who}")
    typer.echo(json.dumps(proven.record, indent=2))


@app.command("key")
def key_command(site: SiteFile) -> None:
    """Show the verifier key of a site's log, which others pin or give to `check`; it is made at first use."""
    config = config_of(site)
    typer.echo(str(AuditKey.at(config.audit_key, origin_of(config.name)).public))


@app.command("publish")
def publish_command(
    site: SiteFile,
    anew: Annotated[
        bool, typer.Option("--anew", help="Remove the public form first, and make all of it again from the log.")
    ] = False,
) -> None:
    """Sign a site's log, and bring its public form up to the last entry: the folder `tlog` for standard clients."""
    config = config_of(site)
    log = AuditLog(config.audit, config.name, AuditKey.at(config.audit_key, origin_of(config.name)))
    try:
        size = Checkpoint.parse(log.publish(anew).text).size
    finally:
        log.close()
    Terminal().print(f"{size} entries of the log are published", highlight=False)


@app.command("expire")
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
    log = AuditLog(config.audit, config.name, AuditKey.at(config.audit_key, origin_of(config.name)))
    try:
        pinned = [VerifierKey.parse(key) for key in config.audit_peers.values()]
        result = expire(log, days, pinned, date.date() if date else None)
    finally:
        log.close()
    terminal = Terminal()
    terminal.print(f"{result.deleted} files of the log expired", highlight=False)
    if result.waiting:
        terminal.print(
            f"{result.waiting} more are past their retention by this machine's clock alone, and are kept: take part in "
            "a job, whose sites sign the time, or give today's date yourself with --date",
            highlight=False,
        )
        raise typer.Exit(EXIT_CODES[State.NOT_SHOWN])


def _show(terminal: Terminal, found: Examination) -> None:
    torn = f"; {found.torn_bytes} bytes of an entry that a crash cut off" if found.torn_bytes else ""
    terminal.write_line(
        0, f"Log of [bold]{plain(found.site)}[/]: {found.entries} entries, head {found.head[:16]}{torn}"
    )
    for name, verdict in found.verdicts():
        terminal.write_line(2, f"{name}: {_MARKS[verdict.state]}")
        for part in verdict.parts:
            where = "" if part.entry is None else f"; entry {part.entry}"
            terminal.write_line(4, f"{part.name}: {_MARKS[part.state]}{where}, {sentence(part.said)}")


def _cells(row: Row) -> tuple[str, ...]:
    entry, tensor = row.entry, row.tensor
    event = " ".join(filter(None, (entry.event, entry.outcome, known_code(entry.admission), entry.reason)))
    happened = entry.time, entry.job or "", str(entry.round or ""), entry.task or "", event, entry.peer or ""
    if tensor is None:
        return *happened, "", "", ""
    return *happened, tensor.name, " x ".join(map(str, tensor.shape)) or "scalar", f"{tensor.nbytes:,}"
