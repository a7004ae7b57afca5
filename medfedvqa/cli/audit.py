"""`medfedvqa audit`: what left each site, and whether its log is whole, complete and as others hold it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from audits import EXIT_CODES, Entry, Examination, VerifierKey, find_logs, read
from audits.cose_receipt import ENTRY, RECEIPT, check_receipt
from audits.entry_proof import check, prove
from audits.judgement import worst
from audits.refusals import known_code
from medfedvqa.cli.audit_options import Against, Folder, Key, Network, Running, judges
from medfedvqa.cli.log_totals import show_log_totals
from medfedvqa.cli.options import JsonOption, new_file
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.cli.verdicts import MARKS, write_parts
from medfedvqa.outside_files import bytes_of

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
    """Write a bundle that shows one entry to somebody who has no log: `medfedvqa audit check` reads it."""
    out.write_text(json.dumps(prove(folder, seq), indent=2) + "\n", encoding="utf-8")
    Terminal().write_line(0, f"Entry {seq} is proven by '{sentence(out)}'")


def check_command(
    file: Annotated[
        Path, typer.Argument(help="A bundle that `medfedvqa audit proof` wrote, or the folder of an `audit receipt`.")
    ],
    key: Annotated[
        list[str], typer.Option(help="A verifier key that you trust and that must have signed; repeatable.")
    ],
) -> None:
    """Check a bundle or a receipt without the log, and print its entry; exit code 1 if it does not hold."""
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
