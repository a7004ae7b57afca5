"""`medfedvqa privacy report`, `join-reports`, and what anybody can do with a report: `verify-report`, `verify-joined`
and `registry-entry`.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from audits import EXIT_CODES, Judgement, VerdictState, VerifierKey, origin_of
from medfedvqa.atomic_files import write_whole
from medfedvqa.checking import bytes_of
from medfedvqa.cli.audit import Against, Key, Network
from medfedvqa.cli.options import JsonOption, config_of, new_file, writable
from medfedvqa.cli.terminal import MARKS, Terminal, plain, sentence, write_parts
from medfedvqa.errors import ConfigError
from medfedvqa.version import code_digest

if TYPE_CHECKING:
    from privacy.report import JoinedReport, Report

Reports = Annotated[list[Path], typer.Argument(help="Folders of reports that `privacy report` wrote.")]
KeysOption = Annotated[list[str] | None, typer.Option("--key", help="Verifier keys of the sites; repeatable.")]


def verify_command(
    path: Annotated[Path, typer.Argument(help="A report's folder, or the report.json in it.")],
    key: Key = None,
    log: Annotated[
        Path | None, typer.Option(help="The site's audit folder, to compare with the quoted entries.")
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="An export of the site's ledger, to compare with.")] = None,
    withdrawn: Annotated[
        Path | None, typer.Option(help="JSON file of further versions with withdrawn epsilons; see docs/privacy.md.")
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
        _show_report(judgement)
    raise typer.Exit(EXIT_CODES[judgement.state])


def verify_joined_command(
    file: Annotated[Path, typer.Argument(help="A joined report, joined.json.")],
    reports: Reports,
    key: KeysOption = None,
) -> None:
    """Check each of these reports, and that the joined report follows from them; exit code 1 if not."""
    from privacy.report import verify_joined

    judgement = verify_joined(bytes_of(file), joined_of(reports, key))
    _show_report(judgement)
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


def _show_report(judgement: Judgement) -> None:
    terminal = Terminal()
    terminal.write_line(0, f"[bold]Verdict: {MARKS[judgement.state]}[/]")
    write_parts(terminal, 2, judgement)


def report_command(
    out: Annotated[Path, typer.Option(help="Folder for the report; new or empty.", callback=writable)],
    site: Annotated[Path | None, typer.Option(help="The site's own site.yml.")] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="The job's run folder, with results and others' checkpoints. Without --site: reports on all its sites."
        ),
    ] = None,
    job: Annotated[str | None, typer.Option(help="The job's id; by default the last job that opened.")] = None,
    results: Annotated[Path | None, typer.Option(help="The job's results.json, for its settings.")] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="The results.json of the same job without privacy: shares the site's accuracies."),
    ] = None,
    attack: Annotated[
        Path | None, typer.Option(help="The attack.json of `medfedvqa audit attack` on such a job.")
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(help="With --baseline: the file of `medfedvqa groups --json`. Shares accuracies by group."),
    ] = None,
    against: Against = None,
    network: Network = True,
    audience: Annotated[
        Literal["officers", "patients"],
        typer.Option(help="For whom the pages are written. Patients get one page in plain words."),
    ] = "officers",
    language: Annotated[Literal["en", "de"], typer.Option(help="The language of the page for patients.")] = "en",
) -> None:
    """Write a report on what a job released from this site and what that cost its patients, signed with the site's key.

    It is JSON, HTML and PDF. The job may still run. The log is signed as it is; nothing else of the site is changed.
    """
    from medfedvqa.library.site_report import write_report

    if language != "en" and audience != "patients":
        raise ConfigError("only the page for patients is in other languages: add --audience patients")
    for site_file, folder in _folders(site, run, out).items():
        report = write_report(
            config_of(site_file),
            folder,
            run=run,
            job=job,
            results=results,
            baseline=baseline,
            attack=attack,
            groups=groups,
            against=against or (),
            network=network,
            audience=audience,
            language=language,
        )
        _show(report, folder)


def _folders(site: Path | None, run: Path | None, out: Path) -> dict[Path, Path]:
    """The folder of the report of each site.yml: `out` itself for one site, else a folder in it for each site."""
    from medfedvqa.federation.launch import check_new
    from medfedvqa.library.site_report import RunEvidence

    if site is not None:
        return {site: out}
    if run is None:
        raise ConfigError("give the report's site: --site with the site's site.yml, or --run with the folder of a run")
    check_new(out)
    sites = RunEvidence.find(run).sites
    if not sites:
        raise ConfigError(f"'{run}' holds no site's folder: add --site with the site's site.yml")
    return {path: out / name for name, path in sites.items()}


def _show(report: "Report", folder: Path) -> None:
    terminal = Terminal()
    terminal.write_line(0, sentence(report.sections.claim.sentence))
    for rule in report.sections.verdicts.rules:
        terminal.write_line(2, f"{plain(rule.rule)}: {MARKS[VerdictState(rule.state)]}, {sentence(rule.said)}")
    terminal.write_line(0, f"The report is in [bold]{sentence(folder)}[/]")


def join_command(
    reports: Reports,
    out: Annotated[Path, typer.Option(help="The folder for the joined report; new or empty.", callback=writable)],
    key: KeysOption = None,
) -> None:
    """Join sites' reports on one job into one, without facts about a single site; a broken report is refused."""
    from medfedvqa.federation.launch import check_new
    from privacy.report.join import JOINED

    check_new(out)
    joined = joined_of(reports, key)
    write_whole(out / JOINED, joined.to_bytes())
    from medfedvqa.report import render_joined

    render_joined(joined, out)
    terminal = Terminal()
    terminal.write_line(0, f"[bold]Verdict: {MARKS[VerdictState(joined.state)]}[/]")
    terminal.write_line(0, sentence(joined.sentence))
    for agreement in joined.agreements:
        state = MARKS[VerdictState(agreement.state)]
        terminal.write_line(2, f"{plain(agreement.what)}: {state}, {sentence(agreement.said)}")
    raise typer.Exit(EXIT_CODES[VerdictState(joined.state)])
