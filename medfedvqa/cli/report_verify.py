"""`medfedvqa privacy verify-report`, `verify-joined` and `registry-entry`: what anybody can do with a report."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audits import EXIT_CODES, Judgement, VerdictState, VerifierKey, origin_of
from medfedvqa.atomic_files import write_whole
from medfedvqa.cli.audit_options import Key
from medfedvqa.cli.options import JsonOption, new_file
from medfedvqa.cli.terminal import Terminal
from medfedvqa.cli.verdicts import MARKS, write_parts
from medfedvqa.errors import ConfigError
from medfedvqa.outside_files import bytes_of
from medfedvqa.version import code_digest

if TYPE_CHECKING:
    from privacy.report import JoinedReport

Reports = Annotated[list[Path], typer.Argument(help="Folders of reports, as `privacy report` wrote them.")]
KeysOption = Annotated[list[str] | None, typer.Option("--key", help="Verifier keys of the sites; repeatable.")]


def verify_command(
    path: Annotated[Path, typer.Argument(help="A report's folder, or its report.json beside the other files.")],
    key: Key = None,
    log: Annotated[Path | None, typer.Option(help="The site's audit folder, to compare with what is quoted.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="An export of the site's ledger, to compare with.")] = None,
    withdrawn: Annotated[
        Path | None, typer.Option(help="Further versions whose epsilons are withdrawn, as JSON; see docs/privacy.md.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check who signed a report, its proofs, and every figure in it, anywhere and offline.

    Exit code 0: all is shown; 1: something is broken; 2: nothing is broken, but something is not shown.
    """
    from privacy.report import verify_report
    from privacy.report.verify import as_record

    judgement = verify_report(path, VerifierKey.parse(key) if key else None, log, ledger, withdrawn, code_digest())
    if as_json:
        typer.echo(json.dumps(as_record(judgement), indent=2))
    else:
        _show(judgement)
    raise typer.Exit(EXIT_CODES[judgement.state])


def verify_joined_command(
    file: Annotated[Path, typer.Argument(help="A joined report, joined.json.")],
    reports: Reports,
    key: KeysOption = None,
) -> None:
    """Check that a joined report is what these reports, each of which is checked, come to; exit code 1 if it is not."""
    from privacy.report import verify_joined

    judgement = verify_joined(bytes_of(file), joined_of(reports, key))
    _show(judgement)
    raise typer.Exit(EXIT_CODES[judgement.state])


def registry_command(
    report: Annotated[Path, typer.Argument(help="A report's folder.")],
    out: Annotated[Path, typer.Option(help="The YAML file to write; must not exist.", callback=new_file)],
) -> None:
    """Write an entry for the Differential Privacy Deployments Registry; what only the curator knows is left empty."""
    import yaml

    from privacy.report import read_report, registry_entry
    from privacy.report.report_files import JSON

    entry = registry_entry(read_report(bytes_of(report / JSON)))
    write_whole(out, yaml.safe_dump(entry, sort_keys=False, width=100).encode())


def joined_of(folders: list[Path], keys: list[str] | None) -> "JoinedReport":
    """The joined report of these reports.

    Raises `ConfigError` for a report that is broken, or is signed by another key than `keys` has for its site.
    """
    from privacy.report import SourceReport, join, read_report, verify_report
    from privacy.report.report_files import JSON

    pinned = {key.name: key for key in map(VerifierKey.parse, keys or ())}
    sources = []
    for folder in folders:
        content = bytes_of(folder / JSON)
        report = read_report(content)
        judgement = verify_report(folder, pinned.get(origin_of(report.evidence.site)), code_digest=code_digest())
        if broken := [part for part in judgement.parts if part.state is VerdictState.BROKEN and part.name != "rules"]:
            raise ConfigError(f"'{folder}' does not hold: {broken[0].name}, {broken[0].said}")
        sources.append(SourceReport(report, hashlib.sha256(content).hexdigest()))
    return join(sources)


def _show(judgement: Judgement) -> None:
    terminal = Terminal()
    terminal.write_line(0, f"[bold]Verdict: {MARKS[judgement.state]}[/]")
    write_parts(terminal, 2, judgement)
