"""`medfedvqa audit export`: the log in the forms that archives and SIEMs take in."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from audits import find_logs
from audits.export import ExportFormat, export_logs
from medfedvqa.cli.audit_options import Folder
from medfedvqa.cli.options import writable
from medfedvqa.cli.terminal import Terminal

Form = Annotated[
    ExportFormat, typer.Option("--format", help="FHIR R4 AuditEvents (NDJSON), JSON lines, or RFC 5424 syslog.")
]
Out = Annotated[Path, typer.Option(help="A new file to write into.", callback=writable)]


Since = Annotated[
    datetime | None,
    typer.Option(
        formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], help="Only entries from this time on, UTC: for an export each day."
    ),
]


def export_command(folder: Folder, form: Form, out: Out, since: Since = None) -> None:
    """Write every entry of the logs below FOLDER into a file for an archive or a SIEM; nothing if a log is broken."""
    logs = find_logs(folder)
    count = export_logs(logs, form, out, since and since.replace(tzinfo=UTC))
    Terminal().print(f"{count} entries of {len(logs)} logs written", highlight=False)
