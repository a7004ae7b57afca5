"""`medfedvqa audit export` and `audit curves`: the log in the forms that archives, SIEMs and TensorBoard take in."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from audits import Entry, Outcome, find_logs
from audits.export import ExportFormat, export_logs, verified_entries
from medfedvqa.cli.audit_options import Folder
from medfedvqa.cli.options import new_file, writable
from medfedvqa.cli.terminal import Terminal
from medfedvqa.errors import ConfigError

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


def curves_command(
    folder: Folder, out: Annotated[Path, typer.Option(help="A new folder for TensorBoard.", callback=new_file)]
) -> None:
    """Write bytes and epsilon by round, as the logs below FOLDER say them, for TensorBoard; nothing if a log is broken.

    Each job of each site has its curves. Nothing leaves this machine.
    """
    logs = verified_entries(find_logs(folder))
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("TensorBoard is not installed: pip install 'medfedvqa[train]'") from None
    count = 0
    with SummaryWriter(str(out)) as writer:
        for entries in logs:
            for tag, value, step, seconds in _points(entries):
                writer.add_scalar(tag, value, step, walltime=seconds)
                count += 1
    Terminal().print(f"{count} points of {len(logs)} logs written", highlight=False)


def _points(entries: Iterator[Entry]) -> Iterator[tuple[str, float, int, float | None]]:
    """Name, value, round and, if readable, time of each point: the job's bytes so far, epsilon after each charge."""
    passed = Counter[str]()
    for entry in entries:
        job, seconds = f"{entry.site}/{entry.job}", None
        with suppress(ValueError, TypeError):
            seconds = datetime.fromisoformat(entry.time).timestamp()
        if entry.nbytes and entry.outcome in (Outcome.SENT, Outcome.ACCEPTED):
            name = f"{job}/bytes {'sent' if entry.direction == 'out' else 'received'}"
            passed[name] += entry.nbytes
            yield name, passed[name], entry.round or 0, seconds
        if entry.epsilon_after is not None:
            yield f"{job}/epsilon", entry.epsilon_after, entry.round or 0, seconds
