"""`medfedvqa privacy report` and `join-reports`."""

from pathlib import Path
from typing import Annotated

import typer

from audits import EXIT_CODES, AuditKey, VerdictState, origin_of
from medfedvqa.atomic_files import write_whole
from medfedvqa.cli.audit_options import Against, Network
from medfedvqa.cli.options import writable
from medfedvqa.cli.report_verify import MARKS, KeysOption, Reports, joined_of
from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain, sentence


def report_command(
    site: SiteFile,
    out: Annotated[Path, typer.Option(help="Folder for the report; new or empty.", callback=writable)],
    job: Annotated[str | None, typer.Option(help="Which job; by default the last one that opened.")] = None,
    results: Annotated[Path | None, typer.Option(help="The job's results.json, for its settings.")] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="The results.json of the same job without privacy: shares the site's accuracies."),
    ] = None,
    attack: Annotated[
        Path | None, typer.Option(help="The attack.json of `medfedvqa audit attack` on such a job.")
    ] = None,
    against: Against = None,
    network: Network = True,
) -> None:
    """What a job released from this site and what it cost its patients: JSON, HTML and PDF, signed with the site's key.

    The job may still run. The log is signed as it is; nothing else of the site is changed.
    """
    from medfedvqa.federation.launch import check_new
    from medfedvqa.report.collect import evidence_of
    from privacy.report import report_bytes, report_of, sign_report
    from privacy.report.report_files import ENVELOPE, HTML, JSON, PDF

    check_new(out)
    config = config_of(site)
    report = report_of(evidence_of(config, job, results, baseline, attack, against or (), network))
    write_whole(out / JSON, report_bytes(report))
    # What draws takes seconds to import, and most commands do without it.
    from medfedvqa.report import render

    render(report, out)
    said = {name: (out / name).read_bytes() for name in (JSON, HTML, PDF)}
    key = AuditKey.at(config.audit_key, origin_of(config.name))
    write_whole(out / ENVELOPE, sign_report(report, said, key))
    terminal = Terminal()
    terminal.write_line(0, sentence(report.sections.claim.sentence))
    for rule in report.sections.verdicts.rules:
        terminal.write_line(2, f"{plain(rule.rule)}: {MARKS[VerdictState(rule.state)]}, {sentence(rule.said)}")
    terminal.write_line(0, f"The report is in [bold]{sentence(out)}[/]")


def join_command(
    reports: Reports,
    out: Annotated[Path, typer.Option(help="The folder for the joined report; new or empty.", callback=writable)],
    key: KeysOption = None,
) -> None:
    """Put sites' reports on one job side by side, without what is a site's alone; none that is broken is taken."""
    from medfedvqa.federation.launch import check_new
    from privacy.report import indented_json
    from privacy.report.join import JOINED

    check_new(out)
    joined = joined_of(reports, key)
    write_whole(out / JOINED, indented_json(joined.model_dump(mode="json")))
    from medfedvqa.report import render_joined

    render_joined(joined, out)
    terminal = Terminal()
    terminal.write_line(0, f"[bold]Verdict: {MARKS[VerdictState(joined.state)]}[/]")
    terminal.write_line(0, sentence(joined.sentence))
    for one in joined.agreements:
        terminal.write_line(2, f"{plain(one.what)}: {MARKS[VerdictState(one.state)]}, {sentence(one.said)}")
    raise typer.Exit(EXIT_CODES[VerdictState(joined.state)])
