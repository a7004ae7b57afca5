"""`medfedvqa audit`: what left each site, and whether its log is whole, complete and what others hold of it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from audits import EXIT_CODES, Entry, Examination, VerdictState, VerifierKey, find_logs, read
from audits.entry_proof import check, prove
from audits.refusals import known_code
from medfedvqa.cli.audit_options import Against, Folder, Key, Network, Running, judges
from medfedvqa.cli.log_totals import show_log_totals
from medfedvqa.cli.options import writable
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError
from medfedvqa.outside_files import bytes_of

CELL = 400
"""Characters that `show` prints of one field: the longest is the sentence that explains a refusal."""
_MARKS = {
    VerdictState.SHOWN: "[green]shown[/]",
    VerdictState.NOT_SHOWN: "[yellow]not shown[/]",
    VerdictState.BROKEN: "[bold red]BROKEN[/]",
}


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
    worst = max((one.state for one in found), key=list(VerdictState).index)
    if as_json:
        typer.echo(json.dumps({"state": worst, "logs": [one.record() for one in found]}, indent=2))
    else:
        terminal, count = Terminal(), "1 log" if len(found) == 1 else f"{len(found)} logs"
        terminal.write_line(0, f"[bold]Verdict on {count}: {_MARKS[worst]}[/]")
        for one in found:
            _show(terminal, one)
    raise typer.Exit(EXIT_CODES[worst])


def show_command(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print every entry as JSON, one line each.")] = False,
) -> None:
    """Which tensors left, with shapes and bytes, to whom and when; then totals. Whether it is true is for `verify`."""
    logs = find_logs(folder)
    if as_json:
        for site, path in logs.items():
            for entry in read(path):
                typer.echo(json.dumps({"site": site, **entry.record()}, default=list))
        return
    console = Terminal()
    console.write_line(0, "This is what the logs say; whether they hold is said by `medfedvqa audit verify`.")
    for site, path in logs.items():
        console.write_line(0, "")
        console.write_line(0, f"[bold]Site {plain(site)}[/]")
        for entry in list(read(path)):  # all are read before the first is shown: a broken log shows none
            _show_entry(console, entry)
    show_log_totals(console, logs)


def _show_entry(console: Terminal, entry: Entry) -> None:
    """A line for the entry, and one for each of its tensors; nothing is cut, long lines are wrapped."""
    event = " ".join(filter(None, (entry.event, entry.outcome, known_code(entry.admission), entry.reason)))
    round_ = f"round {entry.round}" if entry.round else ""
    peer = f"peer {plain(entry.peer, CELL)}" if entry.peer else ""
    job = f"job {plain(entry.job, CELL)}" if entry.job else ""
    facts = (round_, plain(entry.task or "", CELL), plain(event, CELL), peer, job)
    console.write_line(2, f"{plain(entry.time)}  {', '.join(filter(None, facts))}")
    for tensor in entry.tensors:
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        console.write_line(4, f"tensor {plain(tensor.name, CELL)}: {shape}, {tensor.nbytes:,} bytes")


def proof_command(
    folder: Annotated[Path, typer.Argument(help="One site's audit folder.")],
    seq: Annotated[int, typer.Argument(help="Number of the entry, from 0.")],
    out: Annotated[Path, typer.Option(help="The file to write; must not exist.", callback=writable)],
) -> None:
    """Write a bundle that shows one entry to somebody who has no log: `medfedvqa audit check` reads it."""
    if out.exists():
        raise ConfigError(f"'{out}' exists already: choose another file")
    out.write_text(json.dumps(prove(folder, seq), indent=2) + "\n", encoding="utf-8")
    Terminal().write_line(0, f"Entry {seq} is proven by '{sentence(out)}'")


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
