"""`medfedvqa privacy report`, `verify-report`, `join-reports`, `verify-joined` and `registry-entry`."""

import hashlib
import json
from pathlib import Path
from typing import Annotated

import typer
import yaml

from audits import EXIT_CODES, AuditKey, Judgement, State, VerifierKey, origin_of
from medfedvqa.cli.audit_options import Against, Network
from medfedvqa.cli.report_inputs import bytes_of, evidence_of
from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError
from medfedvqa.federation.launch import check_new
from medfedvqa.files import write_whole
from medfedvqa.version import code_digest
from privacy.report import (
    Given,
    Joined,
    encoded,
    join,
    read_report,
    registry_entry,
    report_of,
    signed,
    verify_joined,
    verify_report,
    written,
)
from privacy.report.files import ENVELOPE, HTML, JSON, PDF
from privacy.report.join import JOINED
from privacy.report.verify import as_record

MARKS = {
    State.NOT_COMPARED: "not compared",
    State.SHOWN: "[green]shown[/]",
    State.NOT_SHOWN: "[yellow]not shown[/]",
    State.BROKEN: "[bold red]BROKEN[/]",
}
Reports = Annotated[list[Path], typer.Argument(help="Folders of reports, as `privacy report` wrote them.")]
KeyOption = Annotated[str | None, typer.Option(help="The site's verifier key, if you have it from the site itself.")]
KeysOption = Annotated[list[str] | None, typer.Option("--key", help="Verifier keys of the sites; repeatable.")]


def report_command(
    site: SiteFile,
    out: Annotated[Path, typer.Option(help="Folder for the report; new or empty.")],
    job: Annotated[str | None, typer.Option(help="Which job; by default the last one that opened.")] = None,
    results: Annotated[Path | None, typer.Option(help="The job's results.json, for its settings.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="results.json of the same job without privacy: shares the site's accuracies.")
    ] = None,
    attack: Annotated[Path | None, typer.Option(help="attack.json of `medfedvqa audit attack` on such a job.")] = None,
    against: Against = None,
    network: Network = True,
) -> None:
    """What a job released from this site and what it cost its patients: JSON, HTML and PDF, signed with the site's key.

    The job may still run. The log is signed as it is; nothing else of the site is changed.
    """
    check_new(out)
    config = config_of(site)
    report = report_of(evidence_of(config, job, results, baseline, attack, against or (), network))
    write_whole(out / JSON, written(report))
    # What draws takes seconds to import, and most commands do without it.
    from medfedvqa.evaluation.privacy_report import render

    render(report, out)
    said = {name: (out / name).read_bytes() for name in (JSON, HTML, PDF)}
    key = AuditKey.at(config.audit_key, origin_of(config.name))
    write_whole(out / ENVELOPE, signed(report, said, key))
    terminal = Terminal()
    terminal.write_line(0, sentence(report.sections.claim.sentence))
    for rule in report.sections.verdicts.rules:
        terminal.write_line(2, f"{plain(rule.rule)}: {MARKS[State(rule.state)]}, {sentence(rule.said)}")
    terminal.write_line(0, f"The report is in [bold]{sentence(out)}[/]")


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
    found = verify_report(path, VerifierKey.parse(key) if key else None, log, ledger, withdrawn, code_digest())
    if as_json:
        typer.echo(json.dumps(as_record(found), indent=2))
    else:
        _show(found)
    raise typer.Exit(EXIT_CODES[found.state])


def join_command(
    reports: Reports,
    out: Annotated[Path, typer.Option(help="The folder for the joined report; new or empty.")],
    key: KeysOption = None,
) -> None:
    """Put sites' reports on one job side by side, without what is a site's alone; none that is broken is taken."""
    check_new(out)
    joined = _joined(reports, key)
    write_whole(out / JOINED, encoded(joined.model_dump(mode="json")))
    from medfedvqa.evaluation.privacy_report import render_joined

    render_joined(joined, out)
    terminal = Terminal()
    terminal.write_line(0, f"[bold]Verdict: {MARKS[State(joined.state)]}[/]")
    terminal.write_line(0, sentence(joined.sentence))
    for one in joined.agreements:
        terminal.write_line(2, f"{plain(one.what)}: {MARKS[State(one.state)]}, {sentence(one.said)}")
    raise typer.Exit(EXIT_CODES[State(joined.state)])


def verify_joined_command(
    file: Annotated[Path, typer.Argument(help="A joined report, joined.json.")],
    reports: Reports,
    key: KeysOption = None,
) -> None:
    """Check that a joined report is what these reports, each of which is checked, come to; exit code 1 if it is not."""
    found = verify_joined(bytes_of(file), _joined(reports, key))
    _show(found)
    raise typer.Exit(EXIT_CODES[found.state])


def registry_command(
    report: Annotated[Path, typer.Argument(help="A report's folder.")],
    out: Annotated[Path, typer.Option(help="The YAML file to write; must not exist.")],
) -> None:
    """Write an entry for the Differential Privacy Deployments Registry; what only the curator knows is left empty."""
    if out.exists():
        raise ConfigError(f"'{out}' exists already: choose another file")
    entry = registry_entry(read_report(bytes_of(report / JSON)))
    write_whole(out, yaml.safe_dump(entry, sort_keys=False, width=100).encode())


def _joined(folders: list[Path], keys: list[str] | None) -> Joined:
    """Raises `ConfigError` for a report that is broken, or of another key than the one given for its site."""
    known = {key.name: key for key in map(VerifierKey.parse, keys or ())}
    given = []
    for folder in folders:
        said = bytes_of(folder / JSON)
        report = read_report(said)
        found = verify_report(folder, known.get(origin_of(report.evidence.site)), code_digest=code_digest())
        if broken := [part for part in found.parts if part.state is State.BROKEN and part.name != "rules"]:
            raise ConfigError(f"'{folder}' does not hold: {broken[0].name}, {broken[0].said}")
        given.append(Given(report, hashlib.sha256(said).hexdigest()))
    return join(given)


def _show(found: Judgement) -> None:
    terminal = Terminal()
    terminal.write_line(0, f"[bold]Verdict: {MARKS[found.state]}[/]")
    for part in found.parts:
        where = "" if part.entry is None else f"; entry {part.entry}"
        terminal.write_line(2, f"{plain(part.name)}: {MARKS[part.state]}{where}, {sentence(part.said)}")
