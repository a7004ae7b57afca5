"""`medfedvqa audit`: what left each site, and whether its log is whole."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from audits import Row, describe, find_logs, verify
from medfedvqa.cli import attack
from medfedvqa.cli.display import show_log_totals

app = typer.Typer(help="What left each site, and whether its log is whole.", no_args_is_help=True)
app.command("attack")(attack.attack)
app.command("controls")(attack.controls)
Folder = Annotated[Path, typer.Argument(help="A run's folder, or one site's audit folder.")]


@app.command("verify")
def verify_command(folder: Folder) -> None:
    """Check the chain of every log below FOLDER; exit code 1 at the first entry that does not fit."""
    console, sound = Console(), True
    for site, path in find_logs(folder).items():
        verdict = verify(path)
        sound &= verdict.ok
        mark = "[green]intact[/]" if verdict.ok else "[bold red]BROKEN[/]"
        reason = "" if verdict.ok else f"; entry {verdict.first_bad}: {verdict.reason}"
        torn = f"; {verdict.torn_bytes} bytes of an entry that a crash cut off" if verdict.torn_bytes else ""
        facts = f"{verdict.entries} entries hold, head {verdict.head[:16]}{reason}{torn}"
        console.print(f"{site}: {mark}, {facts}", highlight=False, soft_wrap=True)
    raise typer.Exit(0 if sound else 1)


@app.command()
def show(folder: Folder) -> None:
    """Which tensors left, with shapes and bytes, to whom and when; then totals."""
    console, logs = Console(), find_logs(folder)
    for site, path in logs.items():
        table = Table("time", "round", "task", "event", "peer", "tensor", "shape", "bytes", title=f"Site {site}")
        for row in describe(path):
            table.add_row(*_cells(row))
        console.print(table)
    show_log_totals(console, logs)


def _cells(row: Row) -> tuple[str, ...]:
    entry, tensor = row.entry, row.tensor
    event = " ".join(filter(None, (entry.event, entry.outcome, entry.reason)))
    happened = entry.time, str(entry.round or ""), entry.task or "", event, entry.peer or ""
    if tensor is None:
        return *happened, "", "", ""
    return *happened, tensor.name, " x ".join(map(str, tensor.shape)) or "scalar", f"{tensor.nbytes:,}"
