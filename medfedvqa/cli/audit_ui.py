"""`medfedvqa audit ui`: the logs in a browser on this machine."""

import contextlib
from typing import Annotated

import typer

from audits import find_logs
from audits.ui import AuditServer
from medfedvqa.cli.audit_options import Against, Folder, Key, Network, Running, judges
from medfedvqa.cli.terminal import Terminal

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")]


def ui_command(
    folder: Folder,
    against: Against = None,
    key: Key = None,
    running: Running = None,
    network: Network = True,
    port: Port = 0,
) -> None:
    """Browse releases, budgets and verdicts in a browser on this machine, until Ctrl-C; nothing is changed or sent."""
    console = Terminal()
    judged = judges(folder, against, key, running, network)
    with AuditServer(find_logs(folder), judged, port) as server, contextlib.suppress(KeyboardInterrupt):
        console.print(server.url, highlight=False, soft_wrap=True)
        console.print("Open this address on this machine; whoever has it can read the logs. Ctrl-C ends it.")
        server.serve_forever()
