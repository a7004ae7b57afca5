"""`medfedvqa audit`: what left each site, whether its log is whole, complete and as others hold it, and the log for
browsers, archives, SIEMs and TensorBoard.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from audits import EXIT_CODES, Entry, Examination, Outcome, VerifierKey, check_site, examine, find_logs, read
from audits.errors import known_code
from audits.examination import sites_of
from audits.export import ExportFormat, export_logs, verified_entries
from audits.judgement import worst
from audits.verifier import totals
from medfedvqa.checking import bytes_of
from medfedvqa.cli.options import JsonOption, new_file, writable
from medfedvqa.cli.terminal import MARKS, Terminal, plain, sentence, write_parts
from medfedvqa.errors import ConfigError

Folder = Annotated[Path, typer.Argument(help="A run's folder, or one site's audit folder.")]
Against = Annotated[
    list[Path] | None, typer.Option(help="Checkpoints that others hold: a file of notes, or a folder; repeatable.")
]
Key = Annotated[str | None, typer.Option(help="The site's verifier key, as the site itself gave it to you.")]
Running = Annotated[list[str] | None, typer.Option(help="A job that has not ended yet; repeatable.")]
Network = Annotated[
    bool, typer.Option(help="Expect records of network bytes; --no-network for a job that ran in one process.")
]


def judges(
    folder: Path, against: Sequence[Path] | None, key: str | None, running: Sequence[str] | None, network: bool
) -> dict[str, Callable[[], Examination]]:
    """A function for each log below the folder, by site, that examines it.

    Raises `LogError` if there is no log, or if the key is malformed.
    """
    trusted = VerifierKey.parse(key) if key else None

    def judge(path: Path, name: str, others: Sequence[Path]) -> Examination:
        places = (*others, *(against or ()))
        return examine(path, check_site(path, name), places, trusted, running or (), network)

    logs = sites_of(find_logs(folder), folder)
    return {name: partial(judge, path, name, others) for name, (path, others) in logs.items()}


def show_log_totals(console: Console, folders: Mapping[str, Path]) -> None:
    """Print a table of what left each site, by tensor and in total, from the site's own log."""
    table = Table(box=box.SIMPLE_HEAD, title="What left each site (from its audit log)")
    for name, numeric in (("site", False), ("tensor", False), ("releases", True), ("bytes", True)):
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for site, folder in folders.items():
        total = totals(folder)
        for tensor in total.tensors:
            if tensor.direction == "out":
                table.add_row(plain(site), plain(tensor.name), str(tensor.messages), f"{tensor.nbytes:,}")
        whole = "[bold]total[/]", f"[bold]{total.messages_out} messages[/]", f"[bold]{total.bytes_out:,}[/]"
        table.add_row(plain(site), *whole, end_section=True)
    console.print(table)


CELL = 400
"""The most characters of a field that `show` prints; the sentence that explains a refusal is the longest."""


def verify_command(
    folder: Folder,
    against: Against = None,
    key: Key = None,
    running: Running = None,
    network: Network = True,
    as_json: JsonOption = False,
) -> None:
    """Three verdicts on every log below FOLDER: integrity, completeness, consistency with what others hold.

    Exit code 0: all is shown; 1: something is broken; 2: nothing is broken, but something is not shown.
    """
    examinations = [judge() for judge in judges(folder, against, key, running, network).values()]
    state = worst(examination.state for examination in examinations)
    if as_json:
        typer.echo(json.dumps({"state": state, "logs": [each.record() for each in examinations]}, indent=2))
    else:
        terminal, count = Terminal(), "1 log" if len(examinations) == 1 else f"{len(examinations)} logs"
        terminal.write_line(0, f"[bold]Verdict on {count}: {MARKS[state]}[/]")
        for examination in examinations:
            _show(terminal, examination)
    raise typer.Exit(EXIT_CODES[state])


def show_command(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print every entry as JSON, one line each.")] = False,
) -> None:
    """List the tensors that left, with shapes and bytes, to whom and when; then totals. `verify` checks the log."""
    logs = find_logs(folder)
    if as_json:
        for site, path in logs.items():
            for entry in read(path):
                typer.echo(json.dumps({"site": site, **entry.record()}, default=list))
        return
    console = Terminal()
    console.write_line(0, "These are the logs' entries, unchecked: `medfedvqa audit verify` checks them.")
    for site, path in logs.items():
        console.write_line(0, "")
        console.write_line(0, f"[bold]Site {plain(site)}[/]")
        for entry in list(read(path)):  # all entries are read first, so that a broken log shows none
            _show_entry(console, entry)
    show_log_totals(console, logs)


def _show_entry(console: Terminal, entry: Entry) -> None:
    """Print a line for the entry, and one for each of its tensors. Long lines are wrapped, not cut."""
    event = " ".join(filter(None, (entry.event, entry.outcome, known_code(entry.admission), entry.reason)))
    round_ = f"round {entry.round}" if entry.round else ""
    peer = f"peer {plain(entry.peer, CELL)}" if entry.peer else ""
    job = f"job {plain(entry.job, CELL)}" if entry.job else ""
    isolation = f"isolation {entry.isolation}" if entry.isolation else ""
    person, permit = (str((entry.admission or {}).get(name, "")) for name in ("approver", "permit"))
    approval = f"approved by {plain(person, CELL)}, permit {plain(permit, CELL)}" if permit else ""
    facts = (round_, plain(entry.task or "", CELL), plain(event, CELL), approval, isolation, peer, job)
    console.write_line(2, f"{plain(entry.time)}  {', '.join(filter(None, facts))}")
    for tensor in entry.tensors:
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        console.write_line(4, f"tensor {plain(tensor.name, CELL)}: {shape}, {tensor.nbytes:,} bytes")


def proof_command(
    folder: Annotated[Path, typer.Argument(help="One site's audit folder.")],
    seq: Annotated[int, typer.Argument(help="Number of the entry, from 0.")],
    out: Annotated[Path, typer.Option(help="The file to write; must not exist.", callback=new_file)],
) -> None:
    """Write a bundle that proves one entry without the log; `medfedvqa audit check` verifies the bundle."""
    from audits.entry_proof import prove

    out.write_text(json.dumps(prove(folder, seq), indent=2) + "\n", encoding="utf-8")
    Terminal().write_line(0, f"Entry {seq} is proven by '{sentence(out)}'")


def check_command(
    file: Annotated[
        Path, typer.Argument(help="A bundle that `medfedvqa audit proof` wrote, or the folder of an `audit receipt`.")
    ],
    key: Annotated[list[str], typer.Option(help="A trusted verifier key that must have signed; repeatable.")],
) -> None:
    """Check a bundle or a receipt without the log, and print its entry; exit code 1 if it does not hold."""
    from audits.entry_proof import ENTRY, RECEIPT, check, check_receipt

    trusted = list(map(VerifierKey.parse, key))
    if file.is_dir():
        record, where = check_receipt(bytes_of(file / RECEIPT), bytes_of(file / ENTRY), trusted), trusted[0].name
    else:
        proven = check(bytes_of(file), trusted)
        record, where = proven.record, f"{proven.checkpoint.origin}, {proven.checkpoint.size} entries"
    who = sentence(", ".join(each.name for each in trusted))
    Terminal().write_line(0, f"[green]shown[/]: entry {record['seq']} of {plain(where)}, signed by {who}")
    typer.echo(json.dumps(record, indent=2))


def _show(terminal: Terminal, examination: Examination) -> None:
    """Print the verdicts on one log, with their parts."""
    torn = f"; {examination.torn_bytes} bytes of an entry that a crash cut off" if examination.torn_bytes else ""
    facts = f"{examination.entries} entries, head {examination.head[:16]}{torn}"
    terminal.write_line(0, f"Log of [bold]{plain(examination.site)}[/]: {facts}")
    for name, judgement in examination.verdicts():
        terminal.write_line(2, f"{name}: {MARKS[judgement.state]}")
        write_parts(terminal, 4, judgement)


Port = Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free port.")]


def ui_command(
    folder: Folder,
    against: Against = None,
    key: Key = None,
    running: Running = None,
    network: Network = True,
    port: Port = 0,
) -> None:
    """Browse releases, budgets and verdicts in a browser on this machine, until Ctrl-C; nothing is changed or sent."""
    from audits.ui import AuditServer

    console = Terminal()
    judged = judges(folder, against, key, running, network)
    with AuditServer(find_logs(folder), judged, port) as server, contextlib.suppress(KeyboardInterrupt):
        console.print(server.url, highlight=False, soft_wrap=True)
        console.print("Open this address on this machine; whoever has it can read the logs. Ctrl-C ends it.")
        server.serve_forever()


Form = Annotated[
    ExportFormat, typer.Option("--format", help="FHIR R4 AuditEvents (NDJSON), JSON lines, or RFC 5424 syslog.")
]
Out = Annotated[Path, typer.Option(help="A new file to write into.", callback=writable)]


Since = Annotated[
    datetime | None,
    typer.Option(
        formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], help="Only entries from this time on, UTC, as for a daily export."
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
    """Write bytes and epsilon by round, from the logs below FOLDER, for TensorBoard; nothing if a log is broken.

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
    Terminal().print(f"{count} data points of {len(logs)} logs written", highlight=False)


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
