"""Writes a site's privacy-budget report: JSON, HTML, PDF, and the signature over them. Finds its evidence in a run's
folder.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from audits import AuditKey, origin_of
from audits.bounded_files import MAX_DOCUMENT, read_bounded
from medfedvqa.atomic_files import write_whole
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.results import RESULTS
from medfedvqa.federation.launch import LAUNCH, Launch, check_new
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.report.collect import evidence_of
from privacy.report import Report, report_bytes, report_of, sign_report
from privacy.report.report_files import ENVELOPE, HTML, JSON, PDF


@dataclass(frozen=True)
class RunEvidence:
    """The evidence in a run's folder for the reports of its sites."""

    run: Path
    """The folder itself. It holds the server's receipts and, on one machine, the other sites' copies of each log."""
    results: Path | None
    """The run's results.json; None while the run has written none."""
    network: bool
    """Whether the run's messages crossed a network, so that a log has to explain every byte on it."""

    @classmethod
    def find(cls, run: Path) -> "RunEvidence":
        """The evidence in a run's folder. Raises `ConfigError` if the folder holds no run.

        It does not look for the results of the job without privacy: a report with them shares the site's accuracies,
        and that is the site's decision.
        """
        results = run / RESULTS
        if results.is_file():
            return cls(run, results, _engine_of(results) != "local")
        if (run / LAUNCH).is_file():
            return cls(run, None, Launch.read(run).engine != "local")
        raise ConfigError(f"'{run}' holds neither {RESULTS} nor {LAUNCH}: give the folder of a run")

    @property
    def sites(self) -> dict[str, Path]:
        """The site.yml of each site that has its folder in the run's, by site."""
        return {path.parent.name: path for path in sorted(self.run.glob("sites/*/site.yml"))}


def _engine_of(results: Path) -> str:
    try:
        return str(json.loads(read_bounded(results, MAX_DOCUMENT))["engine"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError(f"'{results}' is not the results file of a run, or is of another version") from None


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
