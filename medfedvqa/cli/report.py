"""`medfedvqa privacy report` and `join-reports`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from audits import EXIT_CODES, VerdictState
from medfedvqa.atomic_files import write_whole
from medfedvqa.cli.audit_options import Against, Network
from medfedvqa.cli.options import writable
from medfedvqa.cli.report_verify import KeysOption, Reports, joined_of
from medfedvqa.cli.sites import config_of
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.cli.verdicts import MARKS
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from privacy.report import Report


def report_command(
    out: Annotated[Path, typer.Option(help="Folder for the report; new or empty.", callback=writable)],
    site: Annotated[Path | None, typer.Option(help="The site's own site.yml.")] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="The job's run: its results and what others hold are found. Without --site: all its sites."),
    ] = None,
    job: Annotated[str | None, typer.Option(help="Which job; by default the last one that opened.")] = None,
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
        typer.Option(help="The readers of the pages. Patients get one page in short words."),
    ] = "officers",
    language: Annotated[Literal["en", "de"], typer.Option(help="The language of the page for patients.")] = "en",
) -> None:
    """What a job released from this site and what it cost its patients: JSON, HTML and PDF, signed with the site's key.

    The job may still run. The log is signed as it is; nothing else of the site is changed.
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
    from medfedvqa.library.run_evidence import RunEvidence

    if site is not None:
        return {site: out}
    if run is None:
        raise ConfigError("whose report? Give --site with the site's site.yml, or --run with the folder of a run")
    check_new(out)
    sites = RunEvidence.find(run).sites
    if not sites:
        raise ConfigError(f"'{run}' holds no site's own folder: add --site with the site's site.yml")
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
    """Put sites' reports on one job side by side, without what is a site's alone; none that is broken is taken."""
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
