"""`medfedvqa privacy verify-report`, `verify-joined` and `registry-entry`: what anybody can do with a report."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audits import EXIT_CODES, Judgement, VerdictState, VerifierKey, origin_of
from medfedvqa.atomic_files import write_whole
from medfedvqa.cli.options import writable
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError
from medfedvqa.outside_files import bytes_of
from medfedvqa.version import code_digest

if TYPE_CHECKING:
    from privacy.report import JoinedReport

MARKS = {
    VerdictState.NOT_COMPARED: "not compared",
    VerdictState.SHOWN: "[green]shown[/]",
    VerdictState.NOT_SHOWN: "[yellow]not shown[/]",
    VerdictState.BROKEN: "[bold red]BROKEN[/]",
}
Reports = Annotated[list[Path], typer.Argument(help="Folders of reports, as `privacy report` wrote them.")]
KeyOption = Annotated[str | None, typer.Option(help="The site's verifier key, if you have it from the site itself.")]
KeysOption = Annotated[list[str] | None, typer.Option("--key", help="Verifier keys of the sites; repeatable.")]


def verify_command(
    path: Annotated[Path, typer.Argument(help="A report's folder, or its report.json beside the other files.")],
    key: KeyOption = None,
    log: Annotated[Path | None, typer.Option(help="The site's audit folder, to compare with what is quoted.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="An export of the site's ledger, to compare with.")] = None,
    withdrawn: Annotated[
        Path | None, typer.Option(help="Further versions whose epsilons are withdrawn, as JSON; see docs/privacy.md.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Check who signed a report, its proofs, and every figure in it, anywhere and offline.

    Exit code 0: all is shown; 1: something is broken; 2: nothing is broken, but something is not shown.
    """
    from privacy.report import verify_report
    from privacy.report.verify import as_record

    found = verify_report(path, VerifierKey.parse(key) if key else None, log, ledger, withdrawn, code_digest())
    if as_json:
        typer.echo(json.dumps(as_record(found), indent=2))
    else:
        _show(found)
    raise typer.Exit(EXIT_CODES[found.state])


def verify_joined_command(
    file: Annotated[Path, typer.Argument(help="A joined report, joined.json.")],
    reports: Reports,
    key: KeysOption = None,
) -> None:
    """Check that a joined report is what these reports, each of which is checked, come to; exit code 1 if it is not."""
    from privacy.report import verify_joined

    found = verify_joined(bytes_of(file), joined_of(reports, key))
    _show(found)
    raise typer.Exit(EXIT_CODES[found.state])


def registry_command(
    report: Annotated[Path, typer.Argument(help="A report's folder.")],
    out: Annotated[Path, typer.Option(help="The YAML file to write; must not exist.", callback=writable)],
) -> None:
    """Write an entry for the Differential Privacy Deployments Registry; what only the curator knows is left empty."""
    import yaml

    from privacy.report import read_report, registry_entry
    from privacy.report.report_files import JSON

    if out.exists():
        raise ConfigError(f"'{out}' exists already: choose another file")
    entry = registry_entry(read_report(bytes_of(report / JSON)))
    write_whole(out, yaml.safe_dump(entry, sort_keys=False, width=100).encode())


def joined_of(folders: list[Path], keys: list[str] | None) -> "JoinedReport":
    """Raises `ConfigError` for a report that is broken, or of another key than the one given for its site."""
    from privacy.report import SourceReport, join, read_report, verify_report
    from privacy.report.report_files import JSON

    known = {key.name: key for key in map(VerifierKey.parse, keys or ())}
    given = []
    for folder in folders:
        said = bytes_of(folder / JSON)
        report = read_report(said)
        found = verify_report(folder, known.get(origin_of(report.evidence.site)), code_digest=code_digest())
        if broken := [part for part in found.parts if part.state is VerdictState.BROKEN and part.name != "rules"]:
            raise ConfigError(f"'{folder}' does not hold: {broken[0].name}, {broken[0].said}")
        given.append(SourceReport(report, hashlib.sha256(said).hexdigest()))
    return join(given)


def _show(found: Judgement) -> None:
    terminal = Terminal()
    terminal.write_line(0, f"[bold]Verdict: {MARKS[found.state]}[/]")
    for part in found.parts:
        where = "" if part.entry is None else f"; entry {part.entry}"
        terminal.write_line(2, f"{plain(part.name)}: {MARKS[part.state]}{where}, {sentence(part.said)}")
