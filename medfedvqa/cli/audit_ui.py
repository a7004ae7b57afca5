"""`medfedvqa audit ui`: the logs in a browser on this machine."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from audits import find_logs, sites_of
from audits.ui import AuditServer

Folder = Annotated[Path, typer.Argument(help="A run's folder, or one site's audit folder.")]
Against = Annotated[list[Path] | None, typer.Option(help="What others hold: a file of notes, or a folder; repeatable.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")]


def ui_command(folder: Folder, against: Against = None, port: Port = 0) -> None:
    """Browse what left, budgets and verdicts in a browser on this machine, until Ctrl-C; nothing is changed or sent."""
    console = Console()
    logs = find_logs(folder)
    held = {site: (*others, *(against or ())) for site, (_, others) in sites_of(logs, folder).items()}
    with AuditServer(logs, port, held) as server, contextlib.suppress(KeyboardInterrupt):
        console.print(server.url, highlight=False, soft_wrap=True)
        console.print("Open this address on this machine; whoever has it can read the logs. Ctrl-C ends it.")
        server.serve_forever()
