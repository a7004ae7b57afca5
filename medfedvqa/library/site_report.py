"""Writes a site's privacy-budget report: JSON, HTML, PDF, and the site's signature over them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from audits import AuditKey, origin_of
from medfedvqa.atomic_files import write_whole
from medfedvqa.federation.launch import check_new
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.library.run_evidence import RunEvidence
from medfedvqa.report.collect import evidence_of
from privacy.report import Report, report_bytes, report_of, sign_report
from privacy.report.report_files import ENVELOPE, HTML, JSON, PDF


def write_report(
    config: SiteConfig,
    out: Path,
    *,
    run: Path | None = None,
    job: str | None = None,
    results: Path | None = None,
    baseline: Path | None = None,
    attack: Path | None = None,
    groups: Path | None = None,
    against: Sequence[Path] = (),
    network: bool = True,
    audience: Literal["officers", "patients"] = "officers",
    language: Literal["en", "de"] = "en",
) -> Report:
    """Writes the report on `job`, by default the site's last one, into the new folder `out`, and returns it.

    `run`: the folder of the job's run, with its results and others' copies of the log's checkpoints.
    `results`, `baseline`: the job's results.json, and that of the same job without privacy. `attack`: an attack.json.
    `groups`: the output of `medfedvqa groups --json` about both, for accuracies by group of patients.
    `audience`, `language`: the pages' readers; pages for patients are in English or German.
    `against`: files and folders with others' copies of the log's checkpoints. `network`: False for a job in one
    process. The site's log is signed first. Raises `ConfigError`, `DataError`, `LogError` or `LedgerError`.
    """
    check_new(out)
    if run is not None:
        beside = RunEvidence.find(run)
        results, against, network = results or beside.results, (*against, run), network and beside.network
    report = report_of(evidence_of(config, job, results, baseline, attack, against, network, groups))
    write_whole(out / JSON, report_bytes(report))
    # The code that draws pages takes seconds to import, and most programs do not need it.
    from medfedvqa.report import render

    render(report, out, audience, language)
    files = {name: (out / name).read_bytes() for name in (JSON, HTML, PDF)}
    key = AuditKey.at(config.audit_key, origin_of(config.name))
    write_whole(out / ENVELOPE, sign_report(report, files, key))
    return report
